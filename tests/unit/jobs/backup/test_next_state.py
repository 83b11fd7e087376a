"""The last records and leader epochs that a restore point remembers of a partition."""

from __future__ import annotations

import msgspec

from kbackup.archive.models import EpochEnd, LastRecord, Manifest, PartitionState
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.plan import next_states
from kbackup.jobs.capture import Live
from kbackup.types import TopicPartition
from tests.support.made_segments import TOPIC, target, write
from tests.support.memory_store import MemoryStore
from tests.unit.jobs.backup.test_plan import archived, make_plan, topic

assert TOPIC == "orders"
TP = TopicPartition(TOPIC, 0)


def record(offset: int, epoch: int | None = None) -> LastRecord:
    return LastRecord(offset=offset, leader_epoch=epoch, digest=f"{offset:016x}")


def after(
    head: Manifest | None, offsets: range, *few: LastRecord, compacted: bool = True
) -> tuple[Manifest, PartitionState]:
    """The restore point after a run that read `few` as the last of the records at `offsets`."""
    plan = make_plan(head, [topic(Live(0, offsets.stop, offsets.stop))], [TOPIC])
    segments: list[Segment] = write(MemoryStore(), target(0), offsets) if offsets else []
    states = next_states(2, plan, segments, {TP: few} if few else {}, {TOPIC} if compacted else ())
    return _with(head or archived(0), states), states[0].partitions[0]


def _with(head: Manifest, states: tuple[object, ...]) -> Manifest:
    return msgspec.structs.replace(head, topics=states)


def test_a_compacted_topic_remembers_the_records_before_the_last_one() -> None:
    read = [record(n) for n in range(26, 29)], record(29, 4)
    _, partition = after(None, range(30), *read[0], read[1])
    assert (partition.tail, partition.last) == (tuple(read[0]), read[1])
    _, partition = after(None, range(30), *read[0], read[1], compacted=False)
    assert (partition.tail, partition.last) == ((), read[1])


def test_records_of_earlier_runs_are_remembered_where_a_run_adds_few() -> None:
    head, _ = after(None, range(30), *(record(n) for n in range(26, 29)), record(29, 4))
    _, partition = after(head, range(30, 32), record(30), record(31, 4))
    assert [r.offset for r in partition.tail] == [28, 29, 30]
    _, partition = after(head, range(30, 35), record(34, 4))
    assert partition.tail == (), "there are records between them that nobody remembers"
    _, partition = after(head, range(30, 35))
    assert (partition.tail, partition.last) == ((), None), "its segments were taken over"
    _, partition = after(head, range(30, 30))
    assert [r.offset for r in partition.tail] == [26, 27, 28]


def test_the_end_of_every_leader_epoch_is_remembered() -> None:
    head, partition = after(None, range(10), record(9, 4))
    assert partition.epochs == ()
    head, partition = after(head, range(10, 12), record(11, 4))
    assert partition.epochs == (), "it is the epoch of the last record"
    head, partition = after(head, range(12, 14), record(13, 6))
    assert partition.epochs == (EpochEnd(leader_epoch=4, offset=11),)
    head, partition = after(head, range(14, 16))
    assert partition.epochs[-1] == EpochEnd(leader_epoch=6, offset=13), "its segments were taken over"
    for epoch in range(7, 20):
        start = head.topics[0].partitions[0].end
        head, partition = after(head, range(start, start + 1), record(start, epoch))
    assert [e.leader_epoch for e in partition.epochs] == list(range(11, 19)), "the newest ones"
