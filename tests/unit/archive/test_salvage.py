"""Orphan segments of an interrupted run: whole segments of the same topic are taken over, all others stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import IsolationLevel, OpenRun
from kbackup.archive.catalog.operations import begin_run, next_incarnation, reserve_incarnations
from kbackup.archive.catalog.retention import expire_records
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.plan import PartitionPlan, Plan, TopicPlan
from kbackup.jobs.backup.task import Read, recover
from kbackup.jobs.capture import Live
from kbackup.types import TopicPartition
from tests.support.faulty_store import FaultyStore
from tests.support.made_segments import TOPIC, TOPIC_ID, committed, schemas_of, state, target, write

pytestmark = pytest.mark.usefixtures("tasks_run_here")


def plan(*ranges: tuple[int, int], topic_id: str = TOPIC_ID, incarnation: int = 1, before: int | None = None) -> Plan:
    """(start, end) of partitions 0, 1, ..., which the archive has up to `before`."""
    known = state((0, 0, before), number=1).partitions[0] if before is not None else None
    partitions = tuple(
        PartitionPlan(number, start, end, Live(0, end, end), known) for number, (start, end) in enumerate(ranges)
    )
    return Plan((TopicPlan(TOPIC, topic_id, incarnation, partitions),), (), (), ())


def no_spark() -> Any:
    pytest.fail("a session is made for nothing")


def no_logs(segments: Sequence[Segment]) -> Any:
    pytest.fail("logs are read for nothing")


def interrupt(store: FaultyStore, isolation_level: IsolationLevel = "read_committed") -> None:
    """A run begins and is never heard of again."""
    open_or_create(store)
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup", isolation_level)


def again(
    store: FaultyStore,
    selection: Plan,
    isolation_level: IsolationLevel = "read_committed",
    cut: Collection[TopicPartition] = (),
) -> list[Segment]:
    spark: Any = object
    with HeldLease(store, "kbackup test", 60) as lease:
        writing = begin_writing(store, lease, "backup", isolation_level)
        assert writing.interrupted
        read = recover(writing, selection, spark, lambda segments: cut)
    assert list(read.schemas) == schemas_of(store, read.segments)
    return list(read.segments)


def keys(store: FaultyStore) -> set[str]:
    return {e.key for e in store.list(layout.TOPICS)}


def both(segments: Sequence[Segment]) -> set[str]:
    return {s.key for s in segments} | {layout.index_key_of(s.key) for s in segments}


def test_without_interrupted_runs_nobody_looks(store: FaultyStore) -> None:
    open_or_create(store)
    strays = write(store, target(), range(9))
    with HeldLease(store, "kbackup test", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        assert recover(writing, plan((0, 9)), no_spark, no_logs) == Read([])
    assert keys(store) == both(strays)


def test_whole_segments_are_taken_over(store: FaultyStore) -> None:
    interrupt(store)
    strays = write(store, target(0), range(30)) + write(store, target(1), range(5, 9))
    store.delete([layout.index_key_of(strays[0].key)])  # the run died between the two
    found = again(store, plan((0, 40), (5, 9)))
    assert sorted(found) == sorted(strays)
    assert keys(store) == both(strays)


def test_segments_of_a_log_that_was_cut_since_are_not_taken_over(store: FaultyStore) -> None:
    interrupt(store)
    cut, whole = write(store, target(0), range(30)), write(store, target(1), range(9))
    found = again(store, plan((0, 40), (0, 9)), cut=[TopicPartition(TOPIC, 0)])
    assert cut
    assert found == whole


def test_damaged_segments_are_not_salvaged(store: FaultyStore) -> None:
    interrupt(store)
    strays = write(store, target(threshold=100), range(9))
    assert len(strays) > 3
    store.put(strays[1].key, store.get(strays[1].key)[:-3])
    store.delete([strays[2].key])  # an index alone
    before = keys(store)
    assert again(store, plan((0, 9))) == [strays[0], *strays[3:]]
    assert keys(store) == before


@pytest.mark.parametrize(
    ("selection", "isolation"),
    [
        (plan((0, 30)), "read_uncommitted"),
        (plan((0, 0)), "read_committed"),
        (plan((30, 60)), "read_committed"),
        (plan((0, 30), topic_id="made anew", incarnation=2), "read_committed"),
    ],
    ids=["other isolation", "beyond the end", "before the start", "another topic of that name"],
)
def test_segments_beyond_the_plan_are_not_salvaged(
    selection: Plan, isolation: IsolationLevel, store: FaultyStore
) -> None:
    """Runs reserve the numbers of incarnations by topic id, so nothing in the folder of one is of another topic. The
    sweep deletes what is of an incarnation that is over."""
    interrupt(store)
    strays = write(store, target(), range(30))
    assert again(store, selection, isolation) == []
    assert keys(store) == both(strays)


def test_a_topic_keeps_the_number_that_an_interrupted_run_reserved() -> None:
    cut_off, later = (
        OpenRun(run=name, command="backup", host="h", started_at="", isolation_level="read_committed")
        for name in ("cut off", "later")
    )
    reserved = reserve_incarnations(begin_run(State("a"), cut_off), "cut off", {(TOPIC, 1): TOPIC_ID})
    reserved = begin_run(reserved, later)
    assert next_incarnation(reserved, TOPIC, TOPIC_ID) == 1
    assert next_incarnation(reserved, TOPIC, "made anew") == 2


def test_of_two_interrupted_runs_nothing_is_taken_twice(store: FaultyStore) -> None:
    """They cut the partition elsewhere: [0,20) [20,..) and [12,..)."""
    interrupt(store)
    interrupt(store)
    wide = write(store, target(threshold=1 << 20), range(20)) + write(store, target(threshold=1 << 20), range(20, 26))
    write(store, target(threshold=1 << 20), range(12, 24))
    assert again(store, plan((0, 40))) == wide


def test_a_segment_that_reaches_past_the_plan_is_read_again(store: FaultyStore) -> None:
    interrupt(store)
    strays = write(store, target(threshold=1 << 20), range(10)) + write(store, target(threshold=1 << 20), range(10, 25))
    assert again(store, plan((0, 24))) == strays[:1]


def test_a_salvage_leaves_committed_segments_as_they_are(store: FaultyStore) -> None:
    first = write(store, target(), range(30))
    archive, _ = committed(store, 1, segments=first, topics=[state((0, 0, 30), number=1)])
    interrupt(store)
    strays = write(store, target(), range(30, 50))
    before = {key: store.get(key) for key in both(first)}
    assert archive.keys() == {s.key for s in first}
    found = again(store, plan((30, 40), before=30))
    assert found == [s for s in strays if s.last < 40]
    assert {key for key in keys(store) if "_from_offset_" in key} == both([*first, *strays])
    assert {key: store.get(key) for key in before} == before


def test_salvage_leaves_expired_segments_in_place(store: FaultyStore) -> None:
    """Their grace time is for 'kbackup expire' to tell."""
    first = write(store, target(), range(30))
    archive, _ = committed(store, 1, segments=first, topics=[state((0, 0, 30), number=1)])
    commit(
        store,
        archive.committed,
        lambda s: expire_records(s, {(TOPIC, 1, 0): first[-1].first}),
        Author("expire", "another", "old records were let go"),
    )
    archive.reopen()
    assert {s.key for s in first} > archive.keys()
    interrupt(store)
    strays = write(store, target(), range(30, 50))
    found = again(store, plan((30, 50), before=30))
    assert found == strays
    assert {key for key in keys(store) if "_from_offset_" in key} == both([*first, *strays])


def test_files_that_are_no_segments_are_left_alone(store: FaultyStore) -> None:
    interrupt(store)
    others = {f"topics/{TOPIC}/index_partition_000", f"topics/{TOPIC}/notes.txt", f"topics/{TOPIC}@2/segment_x"}
    for key in others:
        store.put_new(key, b"")
    assert again(store, plan((0, 9))) == []
    assert keys(store) == others
