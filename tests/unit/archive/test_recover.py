"""What an unfinished run left: whole segments of the same topic are taken over, all else goes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.commit import open_or_create
from kbackup.archive.expire import prepare, publish, what_stays
from kbackup.archive.models import Intent
from kbackup.archive.reader import open_archive
from kbackup.archive.segments import Segment
from kbackup.errors import LeaseLostError, StoreError
from kbackup.jobs import recover as module
from kbackup.jobs.plan import Live, PartitionPlan, Plan, TopicPlan
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.recover import Recovered, recover
from kbackup.types import TopicPartition
from tests.support.faulty_store import Fault, FaultyStore
from tests.unit.archive.making import TOPIC, TOPIC_ID, committed, intend, state, target, write


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run here, one after the other."""

    def run(spark: object, tasks: Sequence[Any], work: Callable[..., Any]) -> list[Any]:
        return [found for task in tasks for found in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr(module, "run_tasks", run)


def plan(*ranges: tuple[int, int], topic_id: str = TOPIC_ID, incarnation: int = 1) -> Plan:
    """(start, end) of partitions 0, 1, ..."""
    partitions = tuple(
        PartitionPlan(number, start, end, Live(0, end, end), None)
        for number, (start, end) in enumerate(ranges)
    )
    return Plan((TopicPlan(TOPIC, topic_id, incarnation, partitions),), (), (), ())


def no_spark() -> Any:
    pytest.fail("a session is made for nothing")


def no_logs(segments: Sequence[Segment]) -> Any:
    pytest.fail("logs are read for nothing")


def ours() -> None:
    """The lease is held."""


def again(
    store: FaultyStore,
    wanted: Plan,
    intents: Sequence[Intent],
    isolation: str = "read_committed",
    check: Callable[[], None] = ours,
    cut: Collection[TopicPartition] = (),
) -> Recovered:
    spark: Any = object
    return recover(open_archive(store), wanted, intents, isolation, spark, check, lambda segments: cut)


def keys(store: FaultyStore) -> set[str]:
    return {e.key for e in store.list(layout.TOPICS)}


def both(segments: Sequence[Segment]) -> set[str]:
    return {s.key for s in segments} | {layout.index_key_of(s.key) for s in segments}


def test_without_unfinished_runs_nobody_looks(store: FaultyStore) -> None:
    archive = open_or_create(store)
    strays = write(store, target(), range(9))
    assert recover(archive, plan((0, 9)), [], "read_committed", no_spark, ours, no_logs) == Recovered([], [])
    assert keys(store) == both(strays)


def test_whole_segments_are_taken_over(store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    strays = write(store, target(0), range(30)) + write(store, target(1), range(5, 9))
    store.delete([layout.index_key_of(strays[0].key)])  # the run died between the two
    found = again(store, plan((0, 40), (5, 9)), [intent])
    assert sorted(found.segments) == sorted(strays)
    assert found.warnings == []
    assert keys(store) == both(strays)


def test_segments_of_a_log_that_was_cut_since_are_not_taken_over(store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    cut, whole = write(store, target(0), range(30)), write(store, target(1), range(9))
    found = again(store, plan((0, 40), (0, 9)), [intent], cut=[TopicPartition(TOPIC, 0)])
    assert cut
    assert found.segments == whole
    assert keys(store) == both(whole)


def test_what_is_damaged_goes_and_the_rest_stays(store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    strays = write(store, target(threshold=100), range(9))
    assert len(strays) > 3
    store.put(strays[1].key, store.get(strays[1].key)[:-3])
    store.delete([strays[2].key])  # an index alone
    found = again(store, plan((0, 9)), [intent])
    whole = [strays[0], *strays[3:]]
    assert found.segments == whole
    assert keys(store) == both(whole)


@pytest.mark.parametrize(
    ("wanted", "isolation"),
    [
        (plan((0, 30), topic_id="made anew"), "read_committed"),
        (plan((0, 30)), "read_uncommitted"),
        (plan((0, 0)), "read_committed"),
        (plan((30, 60)), "read_committed"),
    ],
    ids=["another topic of that name", "other isolation", "beyond the end", "before the start"],
)
def test_what_is_not_of_this_plan_goes(wanted: Plan, isolation: str, store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    write(store, target(), range(30))
    assert again(store, wanted, [intent], isolation) == Recovered([], [])
    assert keys(store) == set()


def test_of_two_unfinished_runs_nothing_is_taken_twice(store: FaultyStore) -> None:
    """They cut the partition elsewhere: [0,20) [20,..) and [12,..)."""
    archive = open_or_create(store)
    intents = [intend(archive, 1), intend(archive, 2)]
    wide = write(store, target(threshold=1 << 20), range(20)) + write(
        store, target(threshold=1 << 20), range(20, 26)
    )
    write(store, target(threshold=1 << 20), range(12, 24))
    found = again(store, plan((0, 40)), intents)
    assert found.segments == wide
    assert keys(store) == both(wide)


def test_a_segment_that_reaches_past_the_plan_is_read_again(store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    strays = write(store, target(threshold=1 << 20), range(10)) + write(
        store, target(threshold=1 << 20), range(10, 25)
    )
    found = again(store, plan((0, 24)), [intent])
    assert found.segments == strays[:1]
    assert keys(store) == both(strays[:1])


def test_what_is_committed_is_never_touched(store: FaultyStore) -> None:
    first = write(store, target(), range(30))
    archive, _ = committed(store, 1, None, first, [state((0, 0, 30), seq=1)])
    intent = intend(archive, 2, 1)
    strays = write(store, target(), range(30, 50))
    before = {key: store.get(key) for key in both(first)}
    found = again(store, plan((30, 40)), [intent])
    assert found.segments == [s for s in strays if s.last < 40]
    assert keys(store) == both([*first, *found.segments])
    assert {key: store.get(key) for key in before} == before


def test_what_has_expired_stays_for_its_readers(store: FaultyStore) -> None:
    """Their grace time is for 'kbackup expire' to tell."""
    first = write(store, target(), range(30))
    archive, _ = committed(store, 1, None, first, [state((0, 0, 30), seq=1)])
    publish(archive, prepare(archive, (), what_stays(archive), 1015, ()), ours)
    assert {s.key for s in first} > archive.keys()
    intent = intend(archive, 2, 1)
    strays = write(store, target(), range(30, 50))
    found = again(store, plan((30, 50)), [intent])
    assert found.segments == strays
    assert keys(store) == both([*first, *strays])


def test_files_that_are_no_segments_are_left_alone(store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    others = {
        f"topics/{TOPIC}/index_partition_000",
        f"topics/{TOPIC}/notes.txt",
        f"topics/{TOPIC}@2/segment_x",
    }
    for key in others:
        store.put_new(key, b"")
    assert again(store, plan((0, 9)), [intent]) == Recovered([], [])
    assert keys(store) == others


def test_what_cannot_be_deleted_is_told(store: FaultyStore) -> None:
    intent = intend(open_or_create(store), 1)
    (stray,) = write(store, target(threshold=1 << 20), range(5))
    store.faults.append(Fault("delete", "*_records", StoreError("the bucket is locked")))
    found = again(store, plan((9, 20)), [msgspec.structs.replace(intent, checksum="")])
    assert found.segments == []
    assert found.warnings == [
        f"object {stray.key} of an unfinished run can't be deleted: the bucket is locked"
    ]


def test_without_the_lease_nothing_is_deleted(store: FaultyStore) -> None:
    """Whoever took over may have found use for what this run has none for."""

    def lost() -> None:
        raise LeaseLostError("it is lost", "")

    intent = intend(open_or_create(store), 1)
    strays = write(store, target(), range(30))
    with pytest.raises(LeaseLostError):
        again(store, plan((0, 9)), [intent], check=lost)
    assert keys(store) == both(strays)
