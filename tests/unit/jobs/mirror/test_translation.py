"""Exact translation: never behind MirrorMaker 2's answer, and never past the group's next unread record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.jobs.mirror.internal import offset_syncs
from kbackup.jobs.mirror.positions import BEFORE_FIRST, OffsetSyncStore, Translate, exact_translation
from kbackup.kafka.mirror_records import OffsetSync
from kbackup.types import TopicPartition
from tests.support.flow_maps import Pairs, histories, map_of

TP, REMOTE = TopicPartition("orders", 3), TopicPartition("A.orders", 3)


class Maps:
    """The map of one partition and one incarnation."""

    def __init__(self, pairs: Pairs, incarnation: int) -> None:
        self._known = {(REMOTE, incarnation): map_of(pairs)} if pairs else {}

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap | None:
        return self._known.get((remote, incarnation))


def exactly(pairs: Pairs, archived: int = 1, applied: int = 1) -> Translate:
    """The translation of offsets of incarnation `archived`, where `pairs` of incarnation `applied` are applied."""
    positions = {REMOTE: AppliedPosition(applied, pairs[-1][0] + 1)} if pairs else {}
    return exact_translation({"orders": "A.orders"}, {"orders": archived}, positions, Maps(pairs, applied))


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
    committed = max(0, pairs[0][0] + ahead)
    for cut in cuts:
        applied = pairs[:cut]
        for sync in offset_syncs(TP, map_of(applied), last, lag):
            store.add(sync)
            last = sync
        exact, mirrormaker = exactly(applied)(TP, committed), store.translate(TP, committed)
        assert mirrormaker is not None
        assert (exact is None) is (committed < pairs[0][0] and pairs[0][1] > 0)
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
    assert (theirs == BEFORE_FIRST) is (committed < pairs[0][0])


def test_a_partition_of_which_nothing_was_applied_has_no_answer() -> None:
    assert exactly([])(TP, 5) is None


def test_before_the_first_record_there_is_an_answer_where_the_log_begins_with_it() -> None:
    """Offsets before the first record may be unread records that another program has mirrored."""
    assert exactly([(10, 0), (11, 1)])(TP, 3) == 0
    assert exactly([(10, 8), (11, 9)])(TP, 3) is None
    assert exactly([(10, 8), (11, 9)])(TP, 10) == 8


def test_an_offset_of_the_next_incarnation_has_no_answer_before_its_records_are_applied() -> None:
    """The offset would be taken for one of the older incarnation."""
    pairs = [(n, n) for n in range(10)]
    assert exactly(pairs, archived=2, applied=1)(TP, 3) is None
    assert exactly(pairs, archived=2, applied=2)(TP, 3) == 3


def test_the_store_forgets_what_lies_before_a_rewind() -> None:
    store = OffsetSyncStore()
    for upstream, offset in [(0, 0), (100, 100), (0, 101), (50, 151)]:
        store.add(OffsetSync(TP, upstream, offset))
    assert [store.translate(TP, n) for n in (0, 10, 50, 99)] == [101, 102, 151, 152]
    assert store.translate(TopicPartition("other", 0), 0) is None
