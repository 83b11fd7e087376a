"""The segments that a round applies, and the records that it can't apply any more: from an archive's catalog and the
applied positions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kbackup.archive.catalog.state import LogStart
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.jobs.mirror.apply.pending import Pending, find_lost, find_pending
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.made_segments import TOPIC, committed, state, target, write
from tests.support.memory_store import MemoryStore

REMOTE = TopicPartition(f"A.{TOPIC}", 0)
OTHER = TopicPartition(f"A.{TOPIC}", 1)
TOPICS = [RemoteTopic(TOPIC, REMOTE.topic, 2)]

Positions = dict[TopicPartition, AppliedPosition]


@pytest.fixture
def archive() -> Archive:
    """Records 0 to 29 of partition 0 in three restore points, the third has partition 1 too; then incarnation 2."""
    store: Store = MemoryStore()
    for number in (1, 2, 3):
        segments = write(store, target(threshold=1 << 20), range(10 * number - 10, 10 * number))
        if number == 3:
            segments += write(store, target(1, 1 << 20), range(5, 8))
        committed(store, number, number - 1 or None, segments, [state((0, 0, 10 * number), (1, 5, 8), number=number)])
    anew = write(store, target(threshold=1 << 20, incarnation=2), range(4))
    committed(store, 4, 3, anew, [state((0, 0, 4), (1, 0, 0), number=4, incarnation=2)])
    archive = committed(store, 5, 4, [], [state((0, 0, 4), (1, 0, 0), number=5, incarnation=2)])[0]
    archive.reopen()
    return archive


def pending(
    archive: Archive, number: int, positions: Positions, after: dict[str, int] | None = None, stop: bool = False
) -> Pending:
    return find_pending(archive, point(archive, number), TOPICS, positions, after or {}, stop)


def point(archive: Archive, number: int) -> Manifest:
    return archive.restore_point(number)


def firsts(pending_ranges: Pending) -> dict[TopicPartition, list[tuple[int, int]]]:
    """By partition, incarnation and first offset of each segment."""
    return {
        tp: [(s.incarnation, s.first) for each in ranges for s in each.segments]
        for tp, ranges in pending_ranges.ranges.items()
    }


def test_a_new_flow_begins_with_the_newest_incarnation(archive: Archive) -> None:
    assert firsts(pending(archive, 3, {})) == {REMOTE: [(1, 0), (1, 10), (1, 20)], OTHER: [(1, 5)]}
    pending_ranges = pending(archive, 5, {})
    assert firsts(pending_ranges) == {REMOTE: [(2, 0)]}
    assert pending_ranges.held_back == ()


def test_only_what_lies_beyond_the_positions(archive: Archive) -> None:
    positions = {REMOTE: AppliedPosition(1, 15), OTHER: AppliedPosition(1, 8)}
    assert firsts(pending(archive, 3, positions)) == {REMOTE: [(1, 10), (1, 20)]}
    assert firsts(pending(archive, 2, positions)) == {REMOTE: [(1, 10)]}
    pending_ranges = pending(archive, 5, positions)
    assert firsts(pending_ranges) == {REMOTE: [(1, 10), (1, 20), (2, 0)]}
    assert [len(each.segments) for each in pending_ranges.ranges[REMOTE]] == [2, 1], "one range an incarnation"


def test_applied_restore_points_are_not_searched_again(archive: Archive) -> None:
    assert firsts(pending(archive, 3, {REMOTE: AppliedPosition(1, 0)}, {TOPIC: 2})) == {
        REMOTE: [(1, 20)],
        OTHER: [(1, 5)],
    }
    assert firsts(pending(archive, 5, {REMOTE: AppliedPosition(1, 0)}, {TOPIC: 5})) == {}


def test_a_new_incarnation_is_held_back_where_it_is_to_stop(archive: Archive) -> None:
    before = {REMOTE: AppliedPosition(1, 25)}
    assert pending(archive, 5, before).held_back == ()
    held = pending(archive, 5, before, stop=True)
    assert firsts(held) == {REMOTE: [(1, 20)], OTHER: [(1, 5)]}
    assert [(r.topic, r.incarnation, r.held_back) for r in held.held_back] == [(TOPIC, 2, True)]
    begun = {REMOTE: AppliedPosition(2, 2), OTHER: AppliedPosition(1, 8)}
    assert firsts(pending(archive, 5, begun, stop=True)) == {REMOTE: [(2, 0)]}


@dataclass
class Gaps:
    """An archive that lacks records: `starts` and `losses` as a state has them."""

    starts: dict[tuple[str, int, int], LogStart]
    rows: list[dict[str, object]]

    @property
    def state(self) -> Gaps:
        return self

    @property
    def losses(self) -> Gaps:
        return self

    def dicts(self) -> list[dict[str, object]]:
        return self.rows


def loss(start: int, end: int, kind: str = "retention", incarnation: int = 1) -> dict[str, object]:
    return {
        "point": 2, "topic": TOPIC, "incarnation": incarnation, "partition": 0, "kind": kind, "start": start,
        "end": end,
    }  # fmt: skip


def lost(archive: Archive, gaps: Gaps, before: Positions, after: Positions) -> list[tuple[int | None, ...]]:
    pending_ranges = find_lost(gaps, point(archive, 5), TOPICS, before, after)  # type: ignore[arg-type] # of a state this alone is asked
    return [(each.incarnation, each.start, each.end) for each in pending_ranges]


def test_expired_and_lost_records_are_reported_when_a_position_passes_them(archive: Archive) -> None:
    expired = LogStart(TOPIC, 1, 0, 20, 20, 999)
    gaps = Gaps({(TOPIC, 1, 0): expired}, [loss(22, 25), loss(26, 27, "truncated"), loss(27, 28, "damaged")])
    assert lost(archive, gaps, {}, {REMOTE: AppliedPosition(1, 30)}) == [], "a new flow has lost nothing"
    at = {REMOTE: AppliedPosition(1, 12)}
    assert lost(archive, gaps, at, {REMOTE: AppliedPosition(1, 30)}) == [(1, 12, 20), (1, 22, 25), (1, 27, 28)]
    assert lost(archive, gaps, at, {REMOTE: AppliedPosition(1, 21)}) == [(1, 12, 20)]
    late = {REMOTE: AppliedPosition(1, 25)}
    assert lost(archive, gaps, late, {REMOTE: AppliedPosition(2, 4)}) == [(1, 27, 28)]
    assert lost(archive, gaps, late, late) == []


def test_a_partition_that_the_flow_comes_to_late_has_lost_what_is_gone(archive: Archive) -> None:
    gaps = Gaps({(TOPIC, 1, 1): LogStart(TOPIC, 1, 1, 5, 5, 99)}, [])
    before = {REMOTE: AppliedPosition(1, 12)}
    assert lost(archive, gaps, before, before | {OTHER: AppliedPosition(1, 8)}) == [(1, 0, 5)]
