"""Which checkpoints are written, and how groups of the target are set by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.models import GroupOffset
from kbackup.jobs.mirror import internal as module
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.jobs.mirror.internal import Journal, SyncJournal, checkpoints, emit_checkpoints, is_due
from kbackup.jobs.mirror.positions import GroupSync, sync_group_offsets
from kbackup.kafka.mirror_records import Checkpoint, OffsetSync
from kbackup.types import TopicPartition
from tests.support.fake_groups import FakeCluster, FakeGroups
from tests.support.flow_maps import map_of
from tests.support.mirrors import flow_of

TP, REMOTE = TopicPartition("orders", 0), TopicPartition("A.orders", 0)


def checkpoint(upstream: int, offset: int, group: str = "billing", metadata: str = "") -> Checkpoint:
    return Checkpoint(group, REMOTE, upstream, offset, metadata)


def committed(*offsets: int, metadata: str = "") -> list[GroupOffset]:
    return [GroupOffset(topic="orders", partition=n, offset=o, metadata=metadata) for n, o in enumerate(offsets)]


def test_only_known_positions_get_a_checkpoint() -> None:
    answers = {0: 5, 1: None, 2: -1, 3: 0}
    made = checkpoints(
        {"billing": committed(7, 7, 7, 7, metadata="md")},
        {"orders": "A.orders"},
        lambda tp, upstream: answers[tp.partition],
    )
    assert [(c.tp, c.upstream, c.offset, c.metadata) for c in made] == [
        (TopicPartition("A.orders", 0), 7, 5, "md"),
        (TopicPartition("A.orders", 3), 7, 0, "md"),
    ]


def test_metadata_that_no_record_can_hold_is_left_out() -> None:
    groups = {"billing": committed(7, metadata="x" * 32_768)}
    (made,) = checkpoints(groups, {"orders": "A.orders"}, lambda tp, upstream: upstream)
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
    topic: list[Checkpoint] = [checkpoint(3000, 3600)]
    added: list[Checkpoint] = []
    store = SimpleNamespace(translate=lambda tp, upstream: upstream)
    target: Any = SimpleNamespace(
        checkpoint_journal=Journal[Checkpoint](lambda: topic, added.extend),
        sync_journal=SimpleNamespace(store=lambda: store),
    )
    point: Any = SimpleNamespace(topics=[SimpleNamespace(name="orders", incarnation=1)])
    maps: Any = SimpleNamespace(partition=lambda *_: map_of([(n, n) for n in range(3000)]))
    archive: Any = None
    monkeypatch.setattr(module, "group_offsets", lambda *_: ({"billing": committed(3000)}, []))
    flow = flow_of(f"kbackup.checkpoints = {rule}\n")
    topics, positions = [RemoteTopic("orders", "A.orders", 1)], {REMOTE: AppliedPosition(1, 3000)}
    emitted = emit_checkpoints(flow, target, archive, point, topics, positions, maps)
    assert [c.offset for c in added] == written
    assert emitted.written == added
    assert [c.offset for c in emitted.current] == [offset]
    again = emit_checkpoints(flow, target, archive, point, topics, positions, maps)
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
    syncs = [OffsetSync(TP, n, n) for n in range(4)]
    topic.records = syncs[:1]
    journal: Journal[OffsetSync] = Journal(topic.read, topic.write)
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
    topic.records = [OffsetSync(TP, 0, 0)]
    journal = SyncJournal(topic.read, topic.write)
    journal.append([OffsetSync(TP, 50, 50)])
    assert [journal.store().translate(TP, n) for n in (0, 49, 200)] == [0, 1, 51]
    journal.append([OffsetSync(TP, 100, 101)])
    assert journal.store().translate(TP, 200) == 102
    assert topic.readings == 2


TP_KEY = OffsetSync(TP, 0, 0).key


def test_groups_are_set_forward_only_and_never_with_members() -> None:
    groups = FakeGroups(
        held={
            "behind": {REMOTE: (5, 3, "old")},
            "ahead": {REMOTE: (50, None, "")},
            "same": {REMOTE: (20, None, "")},
            "elsewhere": {("other", 0): (1, None, "")},
            "live": {REMOTE: (5, None, "")},
        },
        live={"live": 2},
        unreadable={"unreadable"},
    )
    names = ["absent", "behind", "ahead", "same", "elsewhere", "live", "unreadable"]
    synced = sync_group_offsets([checkpoint(9, 20, name, "md") for name in names], FakeCluster(groups).cluster)
    assert synced == GroupSync(
        {"absent": 1, "behind": 1, "elsewhere": 1}, {"live": "it has 2 live members", "unreadable": "it can't be read"}
    )
    assert {name: held.get(REMOTE) for name, held in groups.held.items()} == {
        "absent": (20, None, "md"),
        "behind": (20, None, "md"),
        "ahead": (50, None, ""),
        "same": (20, None, ""),
        "elsewhere": (20, None, "md"),
        "live": (5, None, ""),
    }
    assert groups.held["elsewhere"]["other", 0] == (1, None, "")
