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
from operator import itemgetter
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
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader, Vanished
from kbackup.metrics.registry import ProgressListener
from kbackup.native.kernel import Kernel, log_kernels, selected_kernel
from kbackup.spark.tasks import ProgressSender, Spark, run_counted, run_tasks
from kbackup.store.base import Store
from kbackup.types import OffsetRange, Offsets, RecordBlock, TopicPartition
from kbackup.util.system import in_threads


class LastRead(NamedTuple):
    """The last records of a range, as a task read them from the source. The very last one has its leader epoch.
    `earlier` are some records before the end of the range, at growing distance."""

    tp: TopicPartition
    records: tuple[LastRecord, ...]
    earlier: tuple[OffsetDigest, ...] = ()


TaskResult = Segment | LastRead | Vanished | Kernel | SchemaUse


class TaskReader(NamedTuple):
    """Reads the records of a task without the offsets in `skips`, and counts the records and the schemas they name."""

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
        """Return whether records between the offsets `at` and `first` vanished, or were skipped by this run."""
        for vanished in self.reader.vanished:
            if vanished.tp == tp and at < vanished.end <= first:
                return True
        return any(at < end <= first for _, end in self.skips.get(tp, ()))


def overlap(segment: Segment, skips: Mapping[TopicPartition, Offsets]) -> bool:
    """Return whether a segment reaches into offsets that a run skips."""
    ranges = skips.get(TopicPartition(segment.topic, segment.partition), ())
    return any(start <= segment.last and segment.first < end for start, end in ranges)


_HELD_BYTES = 64 << 20
"""Bytes that small partitions of one task may have in memory together. With more, they are written one by one."""

FETCH_BYTES = 1 << 20
"""Compressed bytes of a partition that one fetch asks for: librdkafka's default."""

_WRITERS = 8
"""Threads of a task that write small partitions; they mostly wait for the store."""
_MAX_EXTRA_ZEROS = 100
"""Zeros that the name of a segment gets at most, to differ from other names: a file name has at most 255 bytes."""


@dataclass(frozen=True)
class BackupWork:
    """The function of all tasks of a run: it reads ranges of offsets and writes their segments.

    `incarnations` are the numbers in the names of the topics' folders. `since` is the start of this run, in seconds by
    the store's clock. With `salvage`, all runs of the archive read records with the same isolation level. `far` is how
    many times more than usual a fetch asks for. `skips` are offsets that are not read; no segment reaches over them.
    """

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
        incarnation = self.incarnations[tp.topic]
        return SegmentTarget(tp.topic, incarnation, tp.partition, self.segment_bytes, self.compression, extra_zeros)

    def __call__(self, task: Sequence[OffsetRange], progress: ProgressSender) -> Iterator[TaskResult]:
        """Archive the ranges of a task: one range, or several small ones of different partitions."""
        yield selected_kernel()
        fetch_bytes = max(FETCH_BYTES, self.far * FETCH_BYTES // len(task))
        tuning = {"fetch.message.max.bytes": fetch_bytes}
        reader = RangeReader(self.source, self.isolation, self.group, self.poll_timeout, len(task), tuning=tuning)
        schemas = SchemaCounter()
        source = TaskReader(reader, progress, schemas, self.skips)
        with closing(reader):
            if len(task) == 1:
                yield from self._write(source, task[0], [])
            else:
                yield from self._together(source, task)
            yield from dict.fromkeys(reader.vanished)  # without duplicates: a range may be read twice
        yield from schemas.result()

    def _together(self, source: TaskReader, task: Sequence[OffsetRange]) -> Iterator[Segment | LastRead]:
        """Read small ranges together into memory, and write them by a few threads, which mostly wait for the store.

        The size of a range is unknown before it is read. If the ranges turn out to be too large for memory, they are
        written one after the other.
        """
        blocks: dict[TopicPartition, list[RecordBlock]] = {offsets.tp: [] for offsets in task}
        size = 0
        for tp, block in source.read(task):
            blocks[tp].append(block)
            size += block.nbytes
            if size > _HELD_BYTES:
                break
        if size > _HELD_BYTES:
            for offsets in task:
                yield from self._write(source, offsets, blocks.pop(offsets.tp))
            return

        def try_range(offsets: OffsetRange) -> tuple[list[Segment | LastRead], SegmentTakenError | None]:
            return self._try(source, offsets, blocks.pop(offsets.tp))

        with ThreadPoolExecutor(_WRITERS, "kbackup-write") as pool:
            tries = pool.map(try_range, task)
            for offsets, (segments, taken) in zip(task, tries, strict=True):
                yield from segments
                if taken is not None:
                    # In this thread: the rest of the range is read by the one reader of the task.
                    salvaged, rest, extra_zeros = self._pass_taken(source.schemas, offsets, taken, 0)
                    yield from salvaged
                    yield from self._write(source, rest, [], extra_zeros)

    def _write(
        self, source: TaskReader, offsets: OffsetRange, held: list[RecordBlock], extra_zeros: int = 0
    ) -> Iterator[Segment | LastRead]:
        """Write a range, of which the first blocks may be `held` in memory already. A range whose segment's name is
        taken continues behind what is salvaged, or with other names."""

        def blocks() -> Iterator[RecordBlock]:
            yield from held
            start = int(held[-1].offsets[-1]) + 1 if held else offsets.start
            yield from (block for _, block in source.read([offsets._replace(start=start)]))

        # Each turn gets farther: behind what is salvaged, or on to the next name.
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
        """Write the blocks of a range as segments, and yield them and then the last records of the range."""
        target = self.target(offsets.tp, extra_zeros)
        with PartitionWriter(self.store, target) as writer:
            at: int = offsets.start - 1
            last: tuple[LastRecord, ...] = ()
            # The offsets to remember are chosen by the planned end. The last record is known too late for that: the
            # buffers of earlier blocks are in use again by then.
            remembered = earlier_offsets(offsets.end)
            earlier: list[OffsetDigest] = []
            for block in blocks:
                first = int(block.offsets[0])
                if source.gap(offsets.tp, at, first):
                    # No segment reaches over a gap: a later run that salvages the segment must report the loss as
                    # well, or have what this run skipped.
                    yield from writer.finish()
                # Digests are taken now: the buffer of the block is used again later.
                last = last_of(block, last)
                earlier += records_at(block, remembered)
                yield from writer.append(block)
                at = last[-1].offset
            yield from writer.finish()
        if last:
            epoch = source.reader.epochs.get(offsets.tp, -1)
            last_with_epoch = with_epoch(last[-1], epoch)
            yield LastRead(offsets.tp, (*last[:-1], last_with_epoch), tuple(earlier))

    def _pass_taken(
        self, schemas: SchemaCounter, offsets: OffsetRange, taken: SegmentTakenError, extra_zeros: int
    ) -> tuple[list[Segment], OffsetRange, int]:
        """Return how to continue where a segment's name is taken: the salvaged segment, if there is one, the rest of
        the range, and the extra zeros of the next names.

        A segment is salvaged if another attempt of this run wrote it. An orphan of an earlier run stays: no run deletes
        or replaces objects beyond an end, so a run that slept can't damage a segment of a later run. The new segment
        gets another name.
        """
        # By the store's clock: a worker's may differ by more than a run takes.
        if self.salvage and self.store.stat(taken.key).modified >= self.since:
            target = self.target(offsets.tp, extra_zeros)
            count_schemas = partial(schemas.add, offsets.tp, end=offsets.end)
            with suppress(CorruptError):
                segment = salvage_segment(self.store, target, taken.key, count_schemas)
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
    """What a run has archived. `vanished` are ranges that retention deleted before they were read, `lasts` and
    `earlier` the records to remember of each partition, `schemas` the schemas that records of the segments name."""

    segments: Sequence[Segment]
    vanished: Sequence[Vanished] = ()
    lasts: Mapping[TopicPartition, tuple[LastRecord, ...]] = field(default_factory=dict)
    schemas: Sequence[SchemaUse] = ()
    earlier: Mapping[TopicPartition, Sequence[OffsetDigest]] = field(default_factory=dict)


def read_records(
    work: BackupWork, tasks: Sequence[Sequence[OffsetRange]], spark: Spark | None, listener: ProgressListener
) -> Read:
    """Run the tasks, which write the segments, on Spark. Without `spark` they run in this process, one by one."""
    results: list[TaskResult] = []
    if spark is None:
        for task in tasks:
            results += work(task, ProgressSender(None, 0))
    else:
        total = sum(map(_size_of, tasks))
        results = run_counted(spark, tasks, work, listener, total)
    log_kernels(r for r in results if isinstance(r, Kernel))
    segments = [r for r in results if isinstance(r, Segment)]
    vanished = [r for r in results if isinstance(r, Vanished)]
    schemas = merge(r for r in results if isinstance(r, SchemaUse))
    # Tasks end in any order. A large partition is read as several ranges: its last records are those of its last range.
    ranges = [r for r in results if isinstance(r, LastRead)]
    ranges.sort(key=_last_offset)
    lasts: dict[TopicPartition, tuple[LastRecord, ...]] = {}
    earlier: dict[TopicPartition, list[OffsetDigest]] = defaultdict(list)
    for read in ranges:
        lasts[read.tp] = read.records
        earlier[read.tp] += read.earlier
    return Read(segments, vanished, lasts, schemas, earlier)


def _last_offset(read: LastRead) -> int:
    return read.records[-1].offset


# Distribute the offsets that a backup reads over Spark tasks. Pure.


PACK_PARTITIONS = 256
"""Partitions that share a task and its consumer, at most."""


def without(ranges: Iterable[OffsetRange], taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return `ranges` without the offsets that are `taken`, in ranges that don't overlap."""
    by_partition: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for hole in taken:
        by_partition[hole.tp].append(hole)
    remaining: list[OffsetRange] = []
    for offsets in ranges:
        at = offsets.start
        for hole in sorted(by_partition[offsets.tp]):
            if hole.start > at:
                end = min(hole.start, offsets.end)
                remaining.append(offsets._replace(start=at, end=end))
            at = max(at, hole.end)
        start = min(at, offsets.end)
        remaining.append(offsets._replace(start=start))
    return [r for r in remaining if r.start < r.end]


def make_tasks(ranges: Iterable[OffsetRange], split_records: int, pack_records: int) -> list[list[OffsetRange]]:
    """Distribute ranges over tasks.

    A range of more than `split_records` offsets is cut; ranges of fewer than `pack_records` share a task. Ranges of
    one partition stand beside each other in `ranges`; no task gets two of them, since its consumer reads one range of
    a partition. Sizes are in offsets, since the records of a range are unknown before it is read. Big tasks come
    first, so that no long task runs alone at the end.
    """
    alone: list[list[OffsetRange]] = []
    packs: list[list[OffsetRange]] = []
    room = 0
    for offsets in ranges:
        size = offsets.end - offsets.start
        if size >= pack_records:
            count = -(-size // split_records)  # rounded up
            marks = [offsets.start + size * i // count for i in range(count + 1)]
            for start, end in pairwise(marks):
                alone.append([offsets._replace(start=start, end=end)])
        elif size > 0:
            if not packs or size > room or len(packs[-1]) == PACK_PARTITIONS or packs[-1][-1].tp == offsets.tp:
                packs.append([])
                room = pack_records
            packs[-1].append(offsets)
            room -= size
    return sorted(alone + packs, key=_size_of, reverse=True)


def _size_of(task: Sequence[OffsetRange]) -> int:
    """Return the number of offsets that a task reads."""
    return sum(r.end - r.start for r in task)


# Write derived files. Each file that goes to S3 takes 1.4 ms of CPU. The threads of the driver take turns at the CPU;
# tasks have one each.

MANY_FILES = 2000
"""With more derived files than these, tasks write them."""
_TASK_FILES = 500
_AT_ONCE = 100
"""Files that a task writes before it checks the clock again."""


@dataclass(frozen=True)
class FileWork:
    """The function of tasks that write derived files. A task stops when the lease of the driver may have ended, and
    yields the files that it has not written."""

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
    """Write derived files by tasks if they are many. Return the files that are left for the driver, which renews its
    lease while it writes them."""
    waiting = list(files.items())
    before = 0
    # A task can't renew the lease: files that it has not written when the lease may have ended come again in the next
    # round. A round that wrote nothing is the last one.
    while len(waiting) > MANY_FILES and len(waiting) != before:
        before = len(waiting)
        run.lease.check()
        tasks = [waiting[at : at + _TASK_FILES] for at in range(0, before, _TASK_FILES)]
        work = FileWork(run.plain.for_writing(), run.lease.until)
        waiting = []
        for left in run_tasks(spark(), tasks, work):
            waiting += left
    return dict(waiting)


# Salvage the segments of an interrupted run: whole segments are taken over, other objects stay where they are.
#
# Runs under the lease, after the fence. Each incarnation has one topic id, so segments in its folder are of that
# topic. Where runs read with different isolation levels nothing is taken over (`operations.may_salvage`).


_PER_TASK = 16


@dataclass(frozen=True)
class SalvageWork:
    """The function of tasks that read segments of an interrupted run."""

    store: Store

    def __call__(
        self, task: Sequence[RecordsObject], progress: ProgressSender
    ) -> Iterator[tuple[Segment, list[SchemaUse]]]:
        for orphan in task:
            schemas = SchemaCounter()
            tp = TopicPartition(orphan.target.topic, orphan.target.partition)
            count_schemas = partial(schemas.add, tp)
            # Records of a corrupt segment are read from the source again by the tasks of the backup.
            with suppress(CorruptError):
                segment = salvage_segment(self.store, orphan.target, orphan.key, count_schemas)
                progress.add(segment.count, segment.bytes)
                yield segment, schemas.result()


def recover(
    run: WritingRun, plan: Plan, spark: Spark, truncated: Callable[[Sequence[Segment]], Collection[TopicPartition]]
) -> Read:
    """Return the segments of an interrupted run that `plan` can use.

    The other segments stay: the tasks use other names, and a sweep deletes the segments once they lie below the end.
    `truncated` returns the partitions whose log was cut since the segments were written: their segments are not used.
    """
    if not run.interrupted or not may_salvage(run.archive.state):
        return Read([])
    orphans = _orphans(run, plan)
    if not orphans:
        return Read([])
    tasks = [orphans[i : i + _PER_TASK] for i in range(0, len(orphans), _PER_TASK)]
    ranges = {r.tp: r for r in plan.ranges}
    skips = plan.skips
    fitting: list[tuple[Segment, list[SchemaUse]]] = []
    for segment, schemas in run_tasks(spark(), tasks, SalvageWork(run.plain)):
        planned = ranges.get(TopicPartition(segment.topic, segment.partition))
        # A segment with records that this run skips would bring them into the restore point all the same.
        if planned is None or overlap(segment, skips):
            continue
        if planned.start <= segment.first and segment.last < planned.end:
            fitting.append((segment, schemas))
    kept, _ = drop_overlaps(fitting, itemgetter(0))
    cut = truncated([segment for segment, _ in kept])
    segments: list[Segment] = []
    uses: list[SchemaUse] = []
    for segment, schemas in kept:
        if TopicPartition(segment.topic, segment.partition) not in cut:
            segments.append(segment)
            uses += schemas
    return Read(segments, schemas=merge(uses))


def _orphans(run: WritingRun, plan: Plan) -> list[RecordsObject]:
    """Return the objects of segments that no restore point has, at or beyond the archived end of their partition."""
    store = run.archive.store
    known = run.archive.keys()

    def keys_in(folder: str) -> list[str]:
        return [entry.key for entry in store.list(folder)]

    folders = [layout.topic_dir(topic.name, topic.incarnation) for topic in plan.topics]
    listings = in_threads(keys_in, folders)
    orphans: list[RecordsObject] = []
    for topic, keys in zip(plan.topics, listings, strict=True):
        ends: dict[int, int] = {}
        for partition in topic.partitions:
            if partition.before is not None:
                ends[partition.partition] = partition.before.end
        for key in keys:
            found = parse_records_object(key)
            if found is None or found.key in known:
                continue
            if found.start >= ends.get(found.target.partition, 0):
                orphans.append(found)
    return orphans
