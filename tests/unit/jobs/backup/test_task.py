"""A backup's task, with a source that is told what to give."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.last_record import digest_of
from kbackup.archive.models import LastRecord
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment
from kbackup.errors import StoreError
from kbackup.formats.schema_ids import SchemaUse
from kbackup.jobs.backup import task as backup_task
from kbackup.jobs.backup.task import BackupWork, FileWork, LastRead, write_by_tasks
from kbackup.jobs.common import RETRIED
from kbackup.kafka.consume import Vanished
from kbackup.native.kernel import Kernel
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from tests.support.made_segments import TOPIC, block, schemas_of
from tests.support.memory_store import MemoryStore

EPOCH = 7
HOLE = range(20, 30)
"""Offsets that retention takes while the log is read."""


class Source:
    """In place of `RangeReader`: blocks of seven records, and a loss in between."""

    def __init__(self, *_: Any, **tuning: Any) -> None:
        self.vanished: list[Vanished] = []
        self.epochs: dict[TopicPartition, int] = {}

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        for asked in ranges:
            at = asked.start
            while at < asked.end:
                if at in HOLE:
                    self.vanished.append(Vanished(asked.tp, at, min(HOLE.stop, asked.end)))
                    at = HOLE.stop
                    continue
                stop = min(at + 7, asked.end, *([HOLE.start] if at < HOLE.start else []))
                self.epochs[asked.tp] = EPOCH if stop == asked.end else -1
                yield asked.tp, block(range(at, stop))
                at = stop

    def close(self) -> None: ...


def results_of(
    store: Store, *task: OffsetRange, since: float = 0.0, salvage: bool = True
) -> list[Segment | LastRead | Vanished | Kernel | SchemaUse]:
    work = BackupWork(
        source={},
        store=store,
        isolation="read_committed",
        group="",
        segment_bytes=1 << 20,
        compression="none",
        poll_timeout=1.0,
        incarnations={TOPIC: 1},
        since=since,
        salvage=salvage,
    )
    results = list(work(task, ProgressSender(None, 0)))
    written = [r for r in results if isinstance(r, Segment)]
    assert [r for r in results if isinstance(r, SchemaUse)] == schemas_of(store, written), "each record counts once"
    return results


def run(store: Store, *task: OffsetRange) -> tuple[list[tuple[int, int]], list[Vanished]]:
    """The segments' first and last offsets, and the losses."""
    results = results_of(store, *task)
    segments = [r for r in results if isinstance(r, Segment)]
    return [(s.first, s.last) for s in segments], [r for r in results if isinstance(r, Vanished)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(backup_task, "RangeReader", Source)
    return MemoryStore()


def test_a_segment_ends_before_a_loss(store: Store) -> None:
    loss = Vanished(TopicPartition(TOPIC, 0), 20, 30)
    assert run(store, OffsetRange(TOPIC, 0, 0, 50)) == ([(0, 19), (30, 49)], [loss])


def test_a_second_attempt_comes_upon_the_loss_as_well(store: Store) -> None:
    """The second attempt salvages the segments of the first; the losses that the first knew went with it."""
    first = run(store, OffsetRange(TOPIC, 0, 0, 50))
    assert run(store, OffsetRange(TOPIC, 0, 0, 50)) == first


def test_ranges_that_are_read_together(store: Store) -> None:
    segments, losses = run(store, OffsetRange(TOPIC, 0, 0, 25), OffsetRange(TOPIC, 1, 15, 40))
    assert segments == [(0, 19), (15, 19), (30, 39)]
    assert losses == [Vanished(TopicPartition(TOPIC, 0), 20, 25), Vanished(TopicPartition(TOPIC, 1), 20, 30)]


def test_without_a_loss_nothing_is_cut(store: Store) -> None:
    assert run(store, OffsetRange(TOPIC, 0, 30, 80)) == ([(30, 79)], [])


def test_ranges_read_together_take_over_what_an_earlier_attempt_wrote(store: Store) -> None:
    task = [OffsetRange(TOPIC, partition, 30, 60) for partition in range(20)]
    first = run(store, *task[3:9])
    assert first == ([(30, 59)] * 6, [])
    assert run(store, *task) == ([(30, 59)] * 20, [])


def test_a_segment_beside_that_of_a_late_task_of_a_failed_round(store: Store) -> None:
    """The next round, which cuts its ranges otherwise, writes beside it."""
    run(store, OffsetRange(TOPIC, 0, 30, 80))
    assert run(store, OffsetRange(TOPIC, 0, 30, 60)) == ([(30, 59)], [])
    assert run(store, OffsetRange(TOPIC, 0, 30, 60)) == ([(30, 59)], []), "a second attempt takes it over"
    assert len(names(store)) == 2


def names(store: Store) -> list[str]:
    return [e.key.rpartition("/")[2] for e in store.list(layout.TOPICS) if e.key.endswith("_records")]


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("orphan", ["whole", "damaged", "index alone", "index of another"])
def test_an_orphan_in_the_way_stays(store: Store, partitions: int, orphan: str) -> None:
    task = [OffsetRange(TOPIC, p, 30, 60) for p in range(partitions)]
    run(store, *(r._replace(end=50) for r in task))
    for entry in list(store.list(layout.TOPICS)):
        if orphan == "damaged" or (orphan == "index of another" and entry.key.endswith("_index")):
            store.put(entry.key, b"torn")
        elif orphan == "index alone" and entry.key.endswith("_records"):
            store.delete([entry.key])
    before = {e.key: store.get(e.key) for e in store.list()}
    later = time.time() + 60
    segments = [s for s in results_of(store, *task, since=later) if isinstance(s, Segment)]
    assert [(s.first, s.last) for s in segments] == [(30, 59)] * partitions
    assert {re.search(layout.SPECIAL_NAME, s.key) is not None for s in segments} == {True}
    assert {key: store.get(key) for key in before} == before
    assert [next(read_segment(store, s)).offsets[0] for s in segments] == [30] * partitions


def test_where_runs_read_otherwise_no_attempt_is_taken_over(store: Store) -> None:
    """The segment may be of a run that slept, with another isolation level."""
    run(store, OffsetRange(TOPIC, 0, 30, 60))
    results = results_of(store, OffsetRange(TOPIC, 0, 30, 60), salvage=False)
    assert [layout.stem_of(s.key)[-11:] for s in results if isinstance(s, Segment)] == ["00000000030"]
    assert len(names(store)) == 2


def test_padded_names_come_to_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(layout.records_key("", 999_999, 1 << 62, "zstd", backup_task._MAX_EXTRA_ZEROS)) < 255
    monkeypatch.setattr(backup_task, "_MAX_EXTRA_ZEROS", 2)
    for _ in range(3):
        results_of(store, OffsetRange(TOPIC, 0, 30, 60), salvage=False)
    with pytest.raises(RETRIED, match="2 others of interrupted runs are in the way") as met:
        results_of(store, OffsetRange(TOPIC, 0, 30, 60), salvage=False)
    assert isinstance(met.value, StoreError)
    assert "delete them by hand" in met.value.hint


@pytest.mark.parametrize("partitions", [1, 5])
def test_the_last_records_of_each_range_are_told_the_last_one_with_its_epoch(store: Store, partitions: int) -> None:
    task = [OffsetRange(TOPIC, p, 0, 50 + p) for p in range(partitions)]
    told = [r for r in results_of(store, *task) if isinstance(r, LastRead)]
    assert [(r.tp.partition, r.records) for r in told] == [
        (
            p,
            tuple(
                LastRecord(offset=n, leader_epoch=EPOCH if n == 49 + p else None, digest=digest_of(block([n]), 0))
                for n in range(46 + p, 50 + p)
            ),
        )
        for p in range(partitions)
    ]


def test_records_at_growing_distance_before_the_end_of_a_range_are_told(store: Store) -> None:
    told = [r for r in results_of(store, OffsetRange(TOPIC, 0, 10, 50)) if isinstance(r, LastRead)]
    offsets = [49 - distance for distance in (32, 16, 8, 4, 2, 1)]
    assert [r.earlier for r in told] == [tuple((n, digest_of(block([n]), 0)) for n in offsets)]


def test_salvaged_segments_report_no_last_read(store: Store) -> None:
    run(store, OffsetRange(TOPIC, 0, 30, 60))
    assert not any(isinstance(r, LastRead) for r in results_of(store, OffsetRange(TOPIC, 0, 30, 60)))


@pytest.mark.parametrize(
    ("files", "seconds", "rounds", "left"),
    [
        (3, 60, 0, 3),  # so few are the driver's
        (10, 60, 1, 0),
        (10, -1, 1, 10),  # the clocks of the workers are ahead: no task writes
    ],
)
def test_many_derived_files_are_written_by_tasks_while_the_lease_lasts(
    files: int, seconds: int, rounds: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def here(_: object, tasks: Sequence[Any], work: FileWork) -> list[Any]:
        sent.append(len(tasks))
        return [each for task in tasks for each in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr(backup_task, "run_tasks", here)
    monkeypatch.setattr(backup_task, "MANY_FILES", 3)
    monkeypatch.setattr(backup_task, "_TASK_FILES", 3)
    monkeypatch.setattr(backup_task, "_AT_ONCE", 2)
    store, due = MemoryStore(), {f"topics/t/{n}": b"%d" % n for n in range(files)}
    lease = SimpleNamespace(check=lambda: None, until=datetime.now(UTC) + timedelta(seconds=seconds))
    run: Any = SimpleNamespace(plain=store, lease=lease)
    remaining = write_by_tasks(run, lambda: None, due)  # type: ignore[arg-type,return-value]
    written = {entry.key: store.get(entry.key) for entry in store.list()}
    assert ({**written, **remaining}, len(remaining), sent) == (due, left, [4] * rounds)
