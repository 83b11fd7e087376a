"""Positions in the target: translated exactly or by offset syncs, written as checkpoints, set in groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.models import GroupOffset
from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.mirror import internal as module
from kbackup.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.mirror.internal import Journal, SyncJournal, checkpoints, emit_checkpoints, is_due, offset_syncs
from kbackup.mirror.positions import (
    BEFORE_FIRST,
    AppliedTopics,
    ExactTranslator,
    GroupSync,
    OffsetSyncStore,
    sync_group_offsets,
)
from kbackup.mirror.records import Checkpoint, OffsetSync
from kbackup.types import TopicPartition
from tests.support.archives import group_at
from tests.support.flow_maps import Pairs, flow_of, histories, map_of
from tests.support.kafka_raw import FakeCluster, FakeGroups

TP, REMOTE = TopicPartition("orders", 3), TopicPartition("A.orders", 3)


class Maps:
    """The map of one partition and one incarnation."""

    def __init__(self, pairs: Pairs, incarnation: int) -> None:
        self._known = {(REMOTE, incarnation): map_of(pairs)} if pairs else {}

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap | None:
        return self._known.get((remote, incarnation))


def exactly(pairs: Pairs, archived: int = 1, applied: int = 1) -> ExactTranslator:
    """The translation of offsets of incarnation `archived`, where `pairs` of incarnation `applied` are applied."""
    positions = {REMOTE: AppliedPosition(applied, pairs[-1][0] + 1)} if pairs else {}
    return ExactTranslator({"orders": "A.orders"}, {"orders": archived}, positions, Maps(pairs, applied))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Pairs, list[int]]:
    """Records of a source, and how many of them were applied after each round."""
    pairs = draw(histories().filter(bool))
    cuts = draw(st.lists(st.integers(1, len(pairs)), min_size=1, max_size=5))
    return pairs, sorted(cuts)


@given(rounds(), st.integers(0, 20), st.integers(-5, 1_000))
def test_exact_is_never_behind_mirrormaker_and_never_past_the_next_record(
    made: tuple[Pairs, list[int]], lag: int, ahead: int
) -> None:
    pairs, cuts = made
    store, last = OffsetSyncStore(), None
    (first_source, first_target), *_ = pairs
    committed = max(0, first_source + ahead)
    for cut in cuts:
        applied = pairs[:cut]
        for sync in offset_syncs(TP, map_of(applied), last, lag):
            store.add(sync)
            last = sync
        exact, mirrormaker = exactly(applied).translate(TP, committed), store.translate(TP, committed)
        assert mirrormaker is not None
        assert (exact is None) is (committed < first_source and first_target > 0)
        if exact is None:
            assert mirrormaker == BEFORE_FIRST
            continue
        assert exact >= mirrormaker
        assert all(exact <= target for source, target in pairs if source >= committed)
        assert all(exact > target for source, target in applied if source < committed)


@given(histories().filter(bool), st.integers(0, 20), st.data())
def test_mirrormaker_never_skips_a_record_by_our_syncs(pairs: Pairs, lag: int, data: st.DataObject) -> None:
    store = OffsetSyncStore()
    for sync in offset_syncs(TP, map_of(pairs), None, lag):
        store.add(sync)
    committed = data.draw(st.integers(0, pairs[-1][0] + 5))
    theirs = store.translate(TP, committed)
    assert theirs is not None
    assert all(theirs <= target for source, target in pairs if source >= committed)
    (first, _), *_ = pairs
    assert (theirs == BEFORE_FIRST) is (committed < first)


def test_before_the_first_record_there_is_an_answer_where_the_log_begins_with_it() -> None:
    """Offsets before the first record may be unread records that another program has mirrored."""
    assert exactly([]).translate(TP, 5) is None, "nothing was applied"
    assert exactly([(10, 0), (11, 1)]).translate(TP, 3) == 0
    assert exactly([(10, 8), (11, 9)]).translate(TP, 3) is None
    assert exactly([(10, 8), (11, 9)]).translate(TP, 10) == 8


def test_an_offset_of_the_next_incarnation_has_no_answer_before_its_records_are_applied() -> None:
    """The offset would be taken for one of the older incarnation."""
    pairs = [(n, n) for n in range(10)]
    assert exactly(pairs, archived=2, applied=1).translate(TP, 3) is None
    assert exactly(pairs, archived=2, applied=2).translate(TP, 3) == 3


def test_the_store_forgets_what_lies_before_a_rewind() -> None:
    store = OffsetSyncStore()
    for upstream, offset in [(0, 0), (100, 100), (0, 101), (50, 151)]:
        store.add(OffsetSync(TP, upstream, offset))
    assert [store.translate(TP, n) for n in (0, 10, 50, 99)] == [101, 102, 151, 152]
    assert store.translate(TopicPartition("other", 0), 0) is None


# Offset syncs made from an offset map.


def synced(pairs: Pairs, last: OffsetSync | None = None, lag: int = 100) -> Pairs:
    return [(s.upstream, s.offset) for s in offset_syncs(TP, map_of(pairs), last, lag)]


def straight(count: int, source: int = 0, target: int = 0) -> Pairs:
    return [(source + i, target + i) for i in range(count)]


def test_a_round_has_the_syncs_that_mirrormaker_writes() -> None:
    assert synced(straight(250)) == [(n, n) for n in (0, 101, 202, 249)]


def test_the_next_round_goes_on_from_the_last_sync() -> None:
    last = OffsetSync(TP, 249, 249)
    assert synced(straight(400), last) == [(350, 350), (399, 399)]
    assert synced(straight(250), last) == []
    assert synced(straight(251), last) == [(250, 250)]


def test_a_new_incarnation_begins_anew() -> None:
    """Its first sync goes back in the source, so that readers forget what they know."""
    assert synced(straight(50, target=250), OffsetSync(TP, 249, 249)) == [(0, 250), (49, 299)]


def test_a_topic_without_records_has_none() -> None:
    assert synced([]) == []


def test_a_sync_is_at_the_next_record_where_one_is_missing() -> None:
    pairs = [*straight(100), *straight(100, source=500, target=105)]
    assert synced(pairs) == [(0, 0), (500, 105), (597, 202), (599, 204)]


def test_a_large_round_has_few_syncs_and_they_lie_near_its_end() -> None:
    offsets = [offset for _, offset in synced(straight(1_000_000))]
    assert offsets[0] == 0
    assert offsets[-1] == 999_999
    assert len(offsets) < 64
    assert np.diff(offsets[-32:-1]).tolist() == [101] * 30


@given(histories(), st.integers(0, 50))
def test_every_sync_is_a_record_and_the_last_record_has_one(pairs: Pairs, lag: int) -> None:
    found = synced(pairs, lag=lag)
    assert set(found) <= set(pairs)
    assert found == sorted(set(found))
    assert found[:1] == pairs[:1]
    assert found[-1:] == pairs[-1:]


@given(histories(), st.data())
def test_rounds_give_records_behind_the_last_sync_only(pairs: Pairs, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(pairs)))
    before = synced(pairs[:cut])
    last = OffsetSync(TP, *before[-1]) if before else None
    after = synced(pairs, last)
    assert all(pair > before[-1] for pair in after) if before else after == synced(pairs)
    assert after[-1:] == (pairs[-1:] if cut < len(pairs) else [])


# Which checkpoints are written, and how groups of the target are set by them.


ORDERS, REMOTE_ORDERS = TopicPartition("orders", 0), TopicPartition("A.orders", 0)


def checkpoint(upstream: int, offset: int, group: str = "billing", metadata: str = "") -> Checkpoint:
    return Checkpoint(group, REMOTE_ORDERS, upstream, offset, metadata)


def committed(*offsets: int, metadata: str = "") -> list[GroupOffset]:
    return [GroupOffset(topic="orders", partition=n, offset=o, metadata=metadata) for n, o in enumerate(offsets)]


@dataclass
class Answers:
    """A translator that has an answer for each partition."""

    by_partition: Mapping[int, int | None]

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        return self.by_partition[tp.partition]


def test_only_known_positions_get_a_checkpoint() -> None:
    answers = {0: 5, 1: None, 2: -1, 3: 0}
    groups = {"billing": committed(7, 7, 7, 7, metadata="md")}
    made = checkpoints(groups, {"orders": "A.orders"}, Answers(answers))
    assert [(c.tp.partition, c.upstream, c.offset, c.metadata) for c in made] == [(0, 7, 5, "md"), (3, 7, 0, "md")]


def test_metadata_that_no_record_can_hold_is_left_out() -> None:
    groups = {"billing": committed(7, metadata="x" * 32_768)}
    (made,) = checkpoints(groups, {"orders": "A.orders"}, Answers({0: 7}))
    assert made.metadata == ""


@pytest.mark.parametrize(
    ("upstream", "offset", "due"),
    [(10, 20, False), (11, 20, False), (11, 21, True), (11, 19, False), (9, 19, True), (9, 20, True)],
)
def test_a_checkpoint_is_due_by_mirrormakers_rule(upstream: int, offset: int, due: bool) -> None:
    assert is_due(checkpoint(upstream, offset), checkpoint(10, 20), exact=False) is due
    assert is_due(checkpoint(upstream, offset), None, exact=False)


@pytest.mark.parametrize(("rule", "written", "offset"), [("exact", [3000], 3000), ("mm2", [], 3600)])
def test_a_remote_topic_that_was_made_anew_takes_an_exact_checkpoint_back(
    rule: str, written: list[int], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are in the new remote topic without the markers that the old one had."""
    added: list[Checkpoint] = []
    journal_topic = SimpleNamespace(read=lambda: [checkpoint(3000, 3600)], write=added.extend)
    store = SimpleNamespace(translate=lambda tp, upstream: upstream)
    target: Any = SimpleNamespace(
        checkpoint_journal=Journal[Checkpoint](journal_topic), sync_journal=SimpleNamespace(store=lambda: store)
    )
    point: Any = SimpleNamespace(topics=[SimpleNamespace(name="orders", incarnation=1)])
    maps: Any = SimpleNamespace(partition=lambda *_: map_of([(n, n) for n in range(3000)]))
    archive: Any = None
    monkeypatch.setattr(
        module, "captured_groups", lambda *_: ({"billing": group_at("billing", ("orders", 0, 3000))}, {})
    )
    flow = flow_of(f"kbackup.checkpoints = {rule}\n")
    topics, positions = [RemoteTopic("orders", "A.orders", 1)], {REMOTE_ORDERS: AppliedPosition(1, 3000)}
    applied = AppliedTopics(topics, positions, maps)
    emitted = emit_checkpoints(flow, target, archive, point, applied)
    assert [c.offset for c in added] == written
    assert emitted.written == added
    assert [c.offset for c in emitted.current] == [offset]
    again = emit_checkpoints(flow, target, archive, point, applied)
    assert (again.current, again.written) == (emitted.current, []), "nothing is new"


class Topic:
    """An internal topic that refuses writes while `away`, after it took the first record."""

    def __init__(self) -> None:
        self.records: list[OffsetSync] = []
        self.away = False
        self.readings = 0

    def read(self) -> Iterable[OffsetSync]:
        self.readings += 1
        return list(self.records)

    def write(self, records: Sequence[OffsetSync]) -> None:
        if self.away:
            self.records.append(records[0])
            raise ConnectionError
        self.records += records


def test_a_journal_reads_its_topic_once_and_again_after_a_failure() -> None:
    topic = Topic()
    syncs = [OffsetSync(ORDERS, n, n) for n in range(4)]
    topic.records = syncs[:1]
    journal: Journal[OffsetSync] = Journal(topic)
    journal.append([])
    assert topic.readings == 0
    journal.append(syncs[1:2])
    assert (topic.readings, journal.last()) == (1, {TP_KEY: syncs[1]})
    topic.away = True
    with pytest.raises(ConnectionError):
        journal.append(syncs[2:])
    topic.away = False
    assert (journal.last(), topic.readings) == ({TP_KEY: syncs[2]}, 2)


def test_the_store_of_a_journal_knows_old_syncs_and_new_ones() -> None:
    topic = Topic()
    topic.records = [OffsetSync(ORDERS, 0, 0)]
    journal = SyncJournal(topic)
    journal.append([OffsetSync(ORDERS, 50, 50)])
    assert [journal.store().translate(ORDERS, n) for n in (0, 49, 200)] == [0, 1, 51]
    journal.append([OffsetSync(ORDERS, 100, 101)])
    assert journal.store().translate(ORDERS, 200) == 102
    assert topic.readings == 2


TP_KEY = OffsetSync(ORDERS, 0, 0).key


def test_groups_are_set_forward_only_and_never_with_members() -> None:
    groups = FakeGroups(
        held={
            "behind": {REMOTE_ORDERS: (5, 3, "old")},
            "ahead": {REMOTE_ORDERS: (50, None, "")},
            "same": {REMOTE_ORDERS: (20, None, "")},
            "elsewhere": {("other", 0): (1, None, "")},
            "live": {REMOTE_ORDERS: (5, None, "")},
        },
        live={"live": 2},
        unreadable={"unreadable"},
    )
    names = ["absent", "behind", "ahead", "same", "elsewhere", "live", "unreadable"]
    synced = sync_group_offsets([checkpoint(9, 20, name, "md") for name in names], FakeCluster(groups).cluster)
    assert synced == GroupSync(
        {"absent": 1, "behind": 1, "elsewhere": 1}, {"live": "it has 2 live members", "unreadable": "it can't be read"}
    )
    assert {name: held.get(REMOTE_ORDERS) for name, held in groups.held.items()} == {
        "absent": (20, None, "md"),
        "behind": (20, None, "md"),
        "ahead": (50, None, ""),
        "same": (20, None, ""),
        "elsewhere": (20, None, "md"),
        "live": (5, None, ""),
    }
    assert groups.held["elsewhere"]["other", 0] == (1, None, "")
