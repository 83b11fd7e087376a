"""Records that a restore point leaves to the next one: read, archived, compared and repaired as if they were not there,
until they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive.catalog.sweep import find_orphans
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import joined, pieces
from kbackup.jobs.backup import log_check
from kbackup.jobs.backup import task as backup_task
from kbackup.jobs.backup.plan import (
    NO_PATIENCE,
    BatchingPolicy,
    Plan,
    hold_back,
    make_plan,
    next_states,
    says_more,
    vanished_losses,
)
from kbackup.jobs.backup.task import BackupWork, LastRead, make_tasks
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.jobs.compare.job import ComparedPartition, topic_blocks
from kbackup.jobs.verify import verify
from kbackup.kafka.consume import Vanished
from kbackup.metrics.registry import Silent
from kbackup.mirror.apply.pending import find_pending
from kbackup.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import OffsetRange, Offsets, RecordBlock, TopicPartition
from tests.support.archives import commit_point
from tests.support.made_segments import TOPIC, TOPIC_ID, block
from tests.support.memory_store import MemoryStore
from tests.support.repairs import catalogs, no_spark, run

TP = TopicPartition(TOPIC, 0)


class Log:
    """In place of `RangeReader`: a log with a record at every offset."""

    vanished: Sequence[Vanished] = ()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.epochs: dict[TopicPartition, int] = {}

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        for asked in ranges:
            self.epochs[asked.tp] = 4
            for at in range(asked.start, asked.end, 7):
                yield asked.tp, block(range(at, min(at + 7, asked.end)))

    def close(self) -> None: ...


def planned(head: Manifest | None, end: int, held: Offsets, start: int = 0) -> Plan:
    topic = LiveTopic(TOPIC, TOPIC_ID, {0: Live(start, end, end, 4, held)})
    return make_plan(head, [topic], [TOPIC], lambda *_: 1)


def back_up(store: Store, archive: Archive, plan: Plan, compacted: bool) -> None:
    """Do the tasks of a plan, and commit what they wrote."""
    work = BackupWork(
        source={},
        store=store,
        isolation="read_committed",
        group="",
        segment_bytes=400,
        compression="none",
        poll_timeout=1.0,
        incarnations={TOPIC: 1},
        since=0.0,
        salvage=True,
        skips=plan.skips,
    )
    results = [each for task in make_tasks(plan.ranges, 9, 3) for each in work(task, ProgressSender(None, 0))]
    segments = [each for each in results if isinstance(each, Segment)]
    lasts = {each.tp: each.records for each in results if isinstance(each, LastRead)}
    number = archive.state.next_point
    topics = next_states(number, plan, segments, lasts, {TOPIC} if compacted else ())
    commit_point(archive, number, topics=topics, segments=segments, losses=plan.losses)


def offsets_at(archive: Archive, manifest: Manifest) -> list[int]:
    found = (block.offsets for s in archive.segments(manifest) for block in read_segment(archive.store, s))
    return [int(offset) for offset in np.concatenate([np.empty(0, np.int64), *found])]


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_task, "RangeReader", Log)


def spans(low: int, high: int) -> st.SearchStrategy[Offsets]:
    pairs = st.tuples(st.integers(low, high - 1), st.integers(1, 6)).map(lambda p: (p[0], min(p[0] + p[1], high)))
    return st.lists(pairs, max_size=4).map(joined)


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[int, Offsets]]:
    """The end of each restore point, and what it holds of its own new offsets."""
    ends = [0, *sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=4)))]
    return [(end, draw(spans(before, end))) for before, end in itertools.pairwise(ends)]


@given(rounds(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_each_restore_point_has_all_but_what_it_holds(made: list[tuple[int, Offsets]], compacted: bool) -> None:
    store = MemoryStore()
    archive = open_or_create(store)
    for end, held in [*made, (60, ())]:
        head = archive.head
        back_up(store, archive, planned(head, end, held), compacted)
        due = [n for n in range(end) if not any(a <= n < b for a, b in held)]
        head = archive.head
        assert head is not None
        assert offsets_at(archive, head) == due
        (partition,) = head.topics[0].partitions
        assert (partition.records, partition.end, partition.held) == (len(due), end, held)
        assert partition.last is None or partition.last.offset == due[-1], "None: it is read from the archive"
        assert log_differs(head) == {}, "the log is the one that was archived"
    for point, (end, held) in zip(archive.restore_points, made, strict=False):
        earlier = [n for n in range(end) if not any(a <= n < b for a, b in held)]
        assert offsets_at(archive, archive.manifest(point)) == earlier, "it has what it had"
    report = verify(store, "all", True, no_spark, Silent())
    assert report.findings == ()


def log_differs(head: Manifest) -> dict[TopicPartition, int]:
    expected = log_check.expectations(head, [LiveTopic(TOPIC, TOPIC_ID, {0: Live(0, 60, 60)})], exact=True)
    reader: Any = Log()
    return log_check.compare(reader, expected, exact=True)[0]


def held_archive() -> tuple[MemoryStore, Archive]:
    """A restore point that ends at 40 and holds 10 to 14 and 20 to 21."""
    store = MemoryStore()
    archive = open_or_create(store)
    back_up(store, archive, planned(None, 40, ((10, 15), (20, 22))), compacted=False)
    return store, archive


def head_of(archive: Archive) -> Manifest:
    assert archive.head is not None
    return archive.head


def test_retention_takes_what_is_held() -> None:
    plan = planned(head_of(held_archive()[1]), 50, (), start=12)
    assert [(loss.start, loss.end) for loss in plan.losses] == [(10, 12)]
    assert (plan.ranges, plan.skips) == ([OffsetRange(TOPIC, 0, 12, 50)], {TP: ((15, 20), (22, 40))})
    gone = make_plan(head_of(held_archive()[1]), [], [], lambda *_: 1)
    assert [(loss.start, loss.end) for loss in gone.losses] == [(10, 15), (20, 22)], "deleted with the topic"


def test_what_vanishes_while_it_is_read_is_lost_as_far_as_it_was_not_archived() -> None:
    plan = planned(head_of(held_archive()[1]), 50, ())
    losses = vanished_losses(plan, [Vanished(TP, 10, 45)])
    assert [(loss.start, loss.end) for loss in losses] == [(10, 15), (20, 22), (40, 45)]


def test_what_is_held_does_not_wait_for_more_records() -> None:
    plan = planned(head_of(held_archive()[1]), 41, ())
    patient = BatchingPolicy(1 << 30, 600.0, 0)
    assert hold_back(plan, batching=patient, since={}, now=0.0) == plan
    fresh = planned(None, 40, ())
    assert hold_back(fresh, NO_PATIENCE, {}, 0.0) == fresh
    assert hold_back(fresh, patient, {}, 0.0).ranges == [OffsetRange(TOPIC, 0, 0, 0)]
    assert hold_back(fresh, patient, {}, 0.0, never=[TP]) == fresh, "its transactions reach into other partitions"
    _, archive = held_archive()
    head = head_of(archive)
    assert says_more(planned(head, 40, ()), head)


def test_no_segment_of_another_run_reaches_over_what_is_held() -> None:
    assert [len(piece) for piece in pieces(block(range(30)), ((3, 5), (5, 9), (28, 99)))] == [3, 19]
    assert [len(piece) for piece in pieces(block(range(30)), ())] == [30]


def test_a_mirror_applies_up_to_what_is_held_and_then_goes_on() -> None:
    store, archive = held_archive()
    topic = RemoteTopic(TOPIC, "A.orders", 1)

    def firsts(applied: int) -> list[int]:
        positions = {TopicPartition("A.orders", 0): AppliedPosition(1, applied)}
        found = find_pending(archive, head_of(archive), [topic], positions, {}, False)
        return [s.first for ranges in found.ranges.values() for each in ranges for s in each.segments]

    assert max(firsts(0)) < 10
    assert firsts(10) == []
    back_up(store, archive, planned(head_of(archive), 44, ()), compacted=False)
    assert min(firsts(10)) == 10
    assert sorted(firsts(10)) == firsts(10)


def test_a_comparison_with_the_source_leaves_out_what_is_held() -> None:
    part = UnitRange(topic=TOPIC, partition=0, target=TOPIC, segments=())
    compared = ComparedPartition(part, 0, 0, 40, True, None, ((10, 15), (20, 22)))
    reader: Any = Log()
    read = np.concatenate([block.offsets for block in topic_blocks(reader, compared)(0)])
    assert read.tolist() == [n for n in range(40) if not (10 <= n < 15 or 20 <= n < 22)]


def test_a_sweep_spares_segments_that_the_next_backup_is_about_to_write() -> None:
    store, archive = held_archive()
    prefix = f"topics/{TOPIC}/segment_partition_000_from_offset_"
    for first in (9, 12):  # one that an earlier run left, and one of the run that goes on
        store.put_new(f"{prefix}{first:010d}_records", b"\x01")
    orphans = find_orphans(store, archive.committed, list(store.list("")), cutoff=float("inf"))
    assert [each.key for each in orphans.objects if each.key.startswith(prefix)] == [f"{prefix}{9:010d}_records"]


def test_a_repair_gives_each_segment_back_to_its_restore_point() -> None:
    store, archive = held_archive()
    back_up(store, archive, planned(head_of(archive), 60, ((50, 52),)), compacted=False)
    back_up(store, archive, planned(head_of(archive), 70, ()), compacted=False)
    due = [offsets_at(archive, archive.manifest(point)) for point in archive.restore_points]
    store.delete(catalogs(store))
    run(store)
    mended = open_archive(store)
    assert [offsets_at(mended, mended.manifest(point)) for point in mended.restore_points] == due
