"""Archive records on Spark: distribute the offsets over tasks, read ranges of the source, write segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.catalog.operations import may_salvage
from kbackup.archive.derived import Files, put_files
from kbackup.archive.last_record import OffsetDigest, earlier_offsets, last_of, records_at, with_epoch
from kbackup.archive.models import LastRecord
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.salvage import RecordsObject, drop_overlaps, parse_records_object, salvage_segment
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import pieces
from kbackup.archive.segments.writer import PartitionWriter, SegmentTakenError, SegmentTarget
from kbackup.errors import CorruptError, StoreError
from kbackup.formats.schema_ids import SchemaCounter, SchemaUse, merge
from kbackup.jobs.backup.plan import Plan
from kbackup.kafka import kernel
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader, Vanished
from kbackup.kafka.kernel import Kernel, selected_kernel
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark, run_counted, run_tasks
from kbackup.store.base import Store
from kbackup.types import OffsetRange, Offsets, RecordBlock, TopicPartition
from kbackup.util.system import in_threads


class LastRead(NamedTuple):
    """The last records of a range, as they were read from the source; the last one with its leader epoch. `earlier`
    are some before the end of the range, at growing distance."""

    tp: TopicPartition
    records: tuple[LastRecord, ...]
    earlier: tuple[OffsetDigest, ...] = ()


class TaskReader(NamedTuple):
    """Reads the records of a task without `skips`, and counts them and the schemas that they name."""

    reader: RangeReader
    progress: ProgressSender
    schemas: SchemaCounter
    skips: Mapping[TopicPartition, Offsets]

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        for tp, block in self.reader.read(ranges):
            for piece in pieces(block, self.skips.get(tp, ())):
                self.progress.add(len(piece), piece.nbytes)
                self.schemas.add(tp, piece)
                yield tp, piece

    def gap(self, tp: TopicPartition, at: int, first: int) -> bool:
        """Whether offsets between two records are none of this run's: they vanished, or are skipped."""
        ends = [v.end for v in self.reader.vanished if v.tp == tp] + [end for _, end in self.skips.get(tp, ())]
        return any(at < end <= first for end in ends)


def overlap(segment: Segment, skips: Mapping[TopicPartition, Offsets]) -> bool:
    ranges = skips.get(TopicPartition(segment.topic, segment.partition), ())
    return any(start <= segment.last and segment.first < end for start, end in ranges)


_HELD_BYTES = 64 << 20  # blocks of small partitions that are read together, before they are written one by one

FETCH_BYTES = 1 << 20  # of a partition, compressed: librdkafka's default

_WRITERS = 8
_MAX_EXTRA_ZEROS = 100
"""A file name has at most 255 bytes."""


@dataclass(frozen=True)
class BackupWork:
    """Function of all tasks of a run. `incarnations` are the topics' folders; `since` is the start of this run, in
    seconds by the store's clock. `salvage`: all runs of the archive read records with the same isolation level.
    `far` times as much as usual is asked for at once. `skips` are not read; no segment reaches over one."""

    source: Properties = field(repr=False)
    store: Store
    isolation: str
    group: str
    segment_bytes: int
    compression: str
    poll_timeout: float
    incarnations: dict[str, int]
    since: float
    salvage: bool
    far: int = 1
    skips: Mapping[TopicPartition, Offsets] = field(default_factory=dict)

    def target(self, tp: TopicPartition, extra_zeros: int = 0) -> SegmentTarget:
        return SegmentTarget(
            tp.topic, self.incarnations[tp.topic], tp.partition, self.segment_bytes, self.compression, extra_zeros
        )

    def __call__(
        self, task: Sequence[OffsetRange], progress: ProgressSender
    ) -> Iterator[Segment | LastRead | Vanished | Kernel | SchemaUse]:
        """`task` has one range, or several small ones of different partitions."""
        yield selected_kernel()
        tuning = {"fetch.message.max.bytes": max(FETCH_BYTES, self.far * FETCH_BYTES // len(task))}
        reader = RangeReader(self.source, self.isolation, self.group, self.poll_timeout, len(task), tuning=tuning)
        source = TaskReader(reader, progress, SchemaCounter(), self.skips)
        with closing(reader):
            if len(task) == 1:
                yield from self._write(source, task[0], [])
            else:
                yield from self._together(source, task)
            yield from dict.fromkeys(reader.vanished)
        yield from source.schemas.result()

    def _together(self, source: TaskReader, task: Sequence[OffsetRange]) -> Iterator[Segment | LastRead]:
        """Read small ranges together into memory, and write them by a few threads that wait for the store. Where the
        ranges are larger than expected, they are written one after the other."""
        blocks: dict[TopicPartition, list[RecordBlock]] = {r.tp: [] for r in task}
        size, whole = 0, True
        for tp, block in source.read(task):
            blocks[tp].append(block)
            size += block.nbytes
            if size > _HELD_BYTES:
                whole = False
                break
        if not whole:
            for offsets in task:
                yield from self._write(source, offsets, blocks.pop(offsets.tp))
            return
        with ThreadPoolExecutor(_WRITERS, "kbackup-write") as pool:
            tries = pool.map(lambda offsets: self._try(source, offsets, blocks.pop(offsets.tp)), task)
            for offsets, (segments, taken) in zip(task, tries, strict=True):
                yield from segments
                if taken is not None:
                    salvaged, rest, extra_zeros = self._pass_taken(source.schemas, offsets, taken, 0)
                    yield from salvaged
                    yield from self._write(source, rest, [], extra_zeros)

    def _write(
        self, source: TaskReader, offsets: OffsetRange, held: list[RecordBlock], extra_zeros: int = 0
    ) -> Iterator[Segment | LastRead]:
        """Write a range, of which the first blocks may be `held` already."""

        def blocks() -> Iterator[RecordBlock]:
            yield from held
            start = int(held[-1].offsets[-1]) + 1 if held else offsets.start
            yield from (block for _, block in source.read([offsets._replace(start=start)]))

        while True:
            try:
                yield from self._segments(source, offsets, blocks(), extra_zeros)
            except SegmentTakenError as taken:
                salvaged, offsets, extra_zeros = self._pass_taken(source.schemas, offsets, taken, extra_zeros)
            else:
                return
            yield from salvaged
            held = []

    def _try(
        self, source: TaskReader, offsets: OffsetRange, blocks: list[RecordBlock]
    ) -> tuple[list[Segment | LastRead], SegmentTakenError | None]:
        """Write a range that is in memory; return its segments, and the error of a name that is taken."""
        segments: list[Segment | LastRead] = []
        try:
            segments.extend(self._segments(source, offsets, blocks))
        except SegmentTakenError as taken:
            return segments, taken
        return segments, None

    def _segments(
        self, source: TaskReader, offsets: OffsetRange, blocks: Iterable[RecordBlock], extra_zeros: int = 0
    ) -> Iterator[Segment | LastRead]:
        with PartitionWriter(self.store, self.target(offsets.tp, extra_zeros)) as writer:
            at: int = offsets.start - 1
            last: tuple[LastRecord, ...] = ()
            # Chosen by the end that is planned, not by the last record, which is known too late: then the buffers of
            # the blocks are used again.
            remembered = earlier_offsets(offsets.end)
            earlier: list[OffsetDigest] = []
            for block in blocks:
                first = int(block.offsets[0])
                if source.gap(offsets.tp, at, first):
                    # a later run that salvages the segment must report the loss as well, or have what was skipped
                    yield from writer.finish()
                last = last_of(block, last)  # before its buffer is used again
                earlier += records_at(block, remembered)
                yield from writer.append(block)
                at = last[-1].offset
            yield from writer.finish()
        if last:
            epoch = source.reader.epochs.get(offsets.tp, -1)
            yield LastRead(offsets.tp, (*last[:-1], with_epoch(last[-1], epoch)), tuple(earlier))

    def _pass_taken(
        self, schemas: SchemaCounter, offsets: OffsetRange, taken: SegmentTakenError, extra_zeros: int
    ) -> tuple[list[Segment], OffsetRange, int]:
        """Return how to continue where a segment's name is taken.

        Returns the segment if another attempt of this run wrote it, the rest of the range, and the extra zeros of the
        next names. An orphan of an earlier run stays: no run deletes or replaces objects beyond an end, so a run that
        slept can't damage a segment of a later run. The new segment gets another name.
        """
        if self.salvage and self.store.stat(taken.key).modified >= self.since:
            with suppress(CorruptError):
                see = partial(schemas.add, offsets.tp, end=offsets.end)
                segment = salvage_segment(self.store, self.target(offsets.tp, extra_zeros), taken.key, see)
                if segment.last < offsets.end and not overlap(segment, self.skips):
                    return [segment], offsets._replace(start=segment.last + 1), extra_zeros
        if extra_zeros == _MAX_EXTRA_ZEROS:
            raise StoreError(
                f"object {taken.key} and {extra_zeros} others of interrupted runs are in the way",
                "delete them by hand while nothing writes to the archive",
            )
        return [], offsets._replace(start=taken.first), extra_zeros + 1


@dataclass(frozen=True)
class Read:
    """Archived data of a run: segments, records that retention deleted meanwhile, last and some earlier records by
    partition, and the schemas that records of the segments name."""

    segments: Sequence[Segment]
    vanished: Sequence[Vanished] = ()
    lasts: Mapping[TopicPartition, tuple[LastRecord, ...]] = field(default_factory=dict)
    schemas: Sequence[SchemaUse] = ()
    earlier: Mapping[TopicPartition, Sequence[OffsetDigest]] = field(default_factory=dict)


def read_records(
    work: BackupWork, tasks: Sequence[Sequence[OffsetRange]], spark: Spark | None, listener: ProgressListener
) -> Read:
    """Run the tasks, which write the segments, on Spark; without `spark` here, one after the other."""
    if spark is None:
        results = [result for task in tasks for result in work(task, ProgressSender(None, 0))]
    else:
        results = run_counted(spark, tasks, work, listener, sum(r.end - r.start for task in tasks for r in task))
    kernel.say(r for r in results if isinstance(r, Kernel))
    lasts = sorted((r for r in results if isinstance(r, LastRead)), key=lambda r: r.records[-1].offset)
    earlier: dict[TopicPartition, list[OffsetDigest]] = defaultdict(list)
    for each in lasts:  # a large partition is read as several ranges
        earlier[each.tp] += each.earlier
    return Read(
        [r for r in results if isinstance(r, Segment)],
        [r for r in results if isinstance(r, Vanished)],
        {r.tp: r.records for r in lasts},
        merge(r for r in results if isinstance(r, SchemaUse)),
        earlier,
    )


# Distribute the offsets that a backup reads over Spark tasks. Pure.


PACK_PARTITIONS = 256  # partitions that share a task and its consumer, at most


def without(ranges: Iterable[OffsetRange], taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return `ranges` without the offsets that are `taken`, in ranges that don't overlap."""
    by_partition: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for each in taken:
        by_partition[each.tp].append(each)
    remaining: list[OffsetRange] = []
    for offsets in ranges:
        at = offsets.start
        for each in sorted(by_partition[offsets.tp]):
            if each.start > at:
                remaining.append(offsets._replace(start=at, end=min(each.start, offsets.end)))
            at = max(at, each.end)
        remaining.append(offsets._replace(start=min(at, offsets.end)))
    return [r for r in remaining if r.start < r.end]


def make_tasks(ranges: Iterable[OffsetRange], split_records: int, pack_records: int) -> list[list[OffsetRange]]:
    """Distribute ranges over tasks.

    A range of more than `split_records` offsets is cut; ranges of fewer than `pack_records` share a task. `ranges` of
    one partition are neighbours; no task has two of them, since its consumer reads one range of a partition.
    Sizes are in offsets, since the records of a range are unknown before it is read. Big tasks come first, so that no
    long task runs alone at the end.
    """
    alone: list[list[OffsetRange]] = []
    packs: list[list[OffsetRange]] = []
    room = 0
    for offsets in ranges:
        size = offsets.end - offsets.start
        if size >= pack_records:
            count = -(-size // split_records)
            marks = [offsets.start + size * i // count for i in range(count + 1)]
            alone += [[offsets._replace(start=a, end=b)] for a, b in pairwise(marks)]
        elif size > 0:
            if not packs or size > room or len(packs[-1]) == PACK_PARTITIONS or packs[-1][-1].tp == offsets.tp:
                packs.append([])
                room = pack_records
            packs[-1].append(offsets)
            room -= size
    return sorted(alone + packs, key=lambda task: -sum(r.end - r.start for r in task))


# Write derived files. One to S3 takes 1.4 ms of CPU, which the driver's threads take in turns; tasks have their own.

MANY_FILES = 2000
_TASK_FILES = 500
_AT_ONCE = 100  # between two looks at the clock


@dataclass(frozen=True)
class FileWork:
    """Writes files until the lease of the driver may have ended, and yields those that are left."""

    store: Store
    until: datetime

    def __call__(
        self, task: Sequence[tuple[str, bytes]], progress: ProgressSender
    ) -> Iterator[Sequence[tuple[str, bytes]]]:
        while task and datetime.now(UTC) < self.until:
            put_files(self.store, task[:_AT_ONCE])
            task = task[_AT_ONCE:]
        yield task


def write_by_tasks(run: WritingRun, spark: Spark, files: Files) -> Files:
    """Write derived files by tasks if they are many; return those that are left for the driver, which then renews its
    lease."""
    waiting, before = list(files.items()), 0
    while MANY_FILES < len(waiting) != before:
        before = len(waiting)
        run.lease.check()
        tasks = [waiting[at : at + _TASK_FILES] for at in range(0, before, _TASK_FILES)]
        work = FileWork(run.plain.for_writing(), run.lease.until)
        waiting = [entry for left in run_tasks(spark(), tasks, work) for entry in left]
    return dict(waiting)


# Salvage of the segments of an interrupted run: whole segments are taken over, others stay where they are.
#
# Runs under the lease, after the fence. Each incarnation has one topic id, so segments in its folder are of that
# topic. Where runs read with different isolation levels nothing is taken over (`operations.may_salvage`).


_PER_TASK = 16


@dataclass(frozen=True)
class SalvageWork:
    store: Store

    def __call__(
        self, task: Sequence[RecordsObject], progress: ProgressSender
    ) -> Iterator[tuple[Segment, list[SchemaUse]]]:
        for orphan in task:
            schemas, tp = SchemaCounter(), TopicPartition(orphan.target.topic, orphan.target.partition)
            with suppress(CorruptError):  # the tasks of the backup write it again
                segment = salvage_segment(self.store, orphan.target, orphan.key, partial(schemas.add, tp))
                progress.add(segment.count, segment.bytes)
                yield segment, schemas.result()


def recover(
    run: WritingRun, plan: Plan, spark: Spark, truncated: Callable[[Sequence[Segment]], Collection[TopicPartition]]
) -> Read:
    """Return the segments of an interrupted run that `plan` can use. The other segments stay: the tasks use other
    names, and a sweep deletes them once they lie below the end. `truncated` returns the partitions whose log was cut
    since; their segments are not used."""
    if not run.interrupted or not may_salvage(run.archive.state):
        return Read([])
    known = run.archive.keys()
    skips = plan.skips
    orphans: list[RecordsObject] = []  # at or beyond the archived end of their partition
    folders = (layout.topic_dir(topic.name, topic.incarnation) for topic in plan.topics)
    listings = in_threads(lambda folder: [entry.key for entry in run.archive.store.list(folder)], folders)
    for topic, keys in zip(plan.topics, listings, strict=True):
        ends = {p.partition: p.before.end for p in topic.partitions if p.before is not None}
        objects = filter(None, map(parse_records_object, keys))
        orphans += [o for o in objects if o.key not in known and o.start >= ends.get(o.target.partition, 0)]
    if not orphans:
        return Read([])
    tasks = [orphans[i : i + _PER_TASK] for i in range(0, len(orphans), _PER_TASK)]
    ranges = {r.tp: r for r in plan.ranges}
    fitting = [
        (s, schemas)
        for s, schemas in run_tasks(spark(), tasks, SalvageWork(run.plain))
        if (planned := ranges.get(TopicPartition(s.topic, s.partition))) is not None
        and planned.start <= s.first
        and s.last < planned.end
        and not overlap(s, skips)
    ]
    kept = drop_overlaps(fitting, lambda each: each[0])[0]
    cut = truncated([s for s, _ in kept])
    kept = [(s, schemas) for s, schemas in kept if TopicPartition(s.topic, s.partition) not in cut]
    return Read([s for s, _ in kept], schemas=merge(use for _, schemas in kept for use in schemas))
