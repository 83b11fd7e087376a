"""The rewrite job: small segments that lie side by side become one, and superseded records of compacted topics go.

It goes on beside a backup, as an expiration does: it takes no lease, and each of its commits swaps in what the archive
permits by then. The old segments wait for a sweep, like everything that has expired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.compacting import Candidate, note_compaction
from kbackup.archive.catalog.merging import (
    Merge,
    MergeSizes,
    begin_merge,
    check_may_rewrite,
    merge_segments,
    plan_merges,
)
from kbackup.archive.catalog.rewriting import NOTHING_ERASED, Swap
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import undoable_points
from kbackup.archive.derived import refresh_under_lease
from kbackup.archive.reader import Archive, open_archive, refuse_if_swept
from kbackup.archive.run import check_written
from kbackup.archive.segments.anew import NOTHING, write_anew
from kbackup.archive.segments.table import Segment
from kbackup.jobs.compact import CompactWork, due
from kbackup.jobs.spread import TaskProgress, Workers
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import plural
from kbackup.util.times import rfc3339

_BATCH_BYTES = 1 << 30
_SPARK_BATCH_BYTES = 64 << 30


class _HasBytes(Protocol):
    @property
    def bytes(self) -> int: ...


_Sized = TypeVar("_Sized", bound=_HasBytes)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What a rewrite does: merge segments by `sizes` (none if that is below 0 bytes), and with `compact` leave out
    superseded records. `spark` gives a session for much work; without it all is done in this process."""

    sizes: MergeSizes
    compact: bool = False
    spark: Spark | None = None


@dataclass(frozen=True, slots=True)
class RewrittenTopic:
    """What is rewritten of an incarnation of a topic: `segments` with `records` and `bytes` (of plain records files)
    become `merged`. `superseded` of the records go."""

    topic: str
    incarnation: int
    partitions: int
    segments: int
    merged: int
    records: int
    bytes: int
    superseded: int


@dataclass(frozen=True)
class RewriteReport:
    """What a rewrite did, or would do if it is not `confirmed`. `rewrite` is the number in the names of the newest
    segments, None if nothing was rewritten. `topics` are those with merged segments, `compacted` those that lost
    `superseded` records; the sums are of both. The archive has `segments_before` and `segments_after`. `waiting` more
    segments can be merged when expirations can no longer be undone. The old objects can be deleted from `deleted_from`
    on. `searched` records of compacted topics were looked at."""

    archive: str
    confirmed: bool
    rewrite: int | None
    topics: tuple[RewrittenTopic, ...]
    compacted: tuple[RewrittenTopic, ...]
    segments: int
    merged: int
    records: int
    bytes: int
    superseded: int
    searched: int
    segments_before: int
    segments_after: int
    waiting: int
    deleted_from: str | None
    seconds: dict[str, float] = field(default_factory=dict)


def rewrite(
    store: Store,
    rewriting: Rewriting,
    lease_seconds: float,
    grace: timedelta,
    listener: ProgressListener,
    *,
    confirm: bool,
) -> RewriteReport:
    """Rewrite segments of an archive. Without `confirm`, report what would be rewritten; a merge is planned by the
    catalog alone, a compaction reads the keys of compacted topics.

    `RefusedError` for a copy, and where an expiration without a grace time deletes what is read. `LockedError` beside
    an erasure or a repair, `CorruptError` if a segment is damaged. What was committed by then stays. `grace` is how
    long the objects of the old segments stay.
    """
    archive = open_archive(store)
    with refuse_if_swept(archive):
        return _rewrite(archive, rewriting, lease_seconds, grace, Phases(listener), confirm=confirm)


@dataclass
class _Rewritten:
    """What was rewritten, or would be."""

    merges: list[_Change] = field(default_factory=list)
    compactions: list[_Change] = field(default_factory=list)
    waiting: int = 0
    searched: int = 0
    number: int | None = None


class _Change(NamedTuple):
    """Segments that became one, without `superseded` records."""

    segments: tuple[Segment, ...]
    superseded: int


def _rewrite(
    archive: Archive, rewriting: Rewriting, lease_seconds: float, grace: timedelta, phases: Phases, *, confirm: bool
) -> RewriteReport:
    before = archive.state
    check_may_rewrite(before)
    done = _Rewritten()
    run = _Run(archive, Workers(phases.listener, rewriting.spark), phases, confirm)
    if rewriting.compact:
        # First: what is left of segments may be merged.
        _compact(run, rewriting.sizes.largest, done)
    _merge(run, rewriting.sizes, done)
    if done.number is not None:
        with phases.step("refresh derived files"):
            refresh_under_lease(archive, "kbackup rewrite", lease_seconds)
    return _report(run, before, done, grace)


class _Run(NamedTuple):
    """What a rewrite goes on with: the archive, where work is done, and whether anything is written (`confirm`)."""

    archive: Archive
    workers: Workers
    phases: Phases
    confirm: bool


def _report(run: _Run, before: State, done: _Rewritten, grace: timedelta) -> RewriteReport:
    merged = _by_topic(done.merges)
    compacted = _by_topic(done.compactions)
    topics = [*merged, *compacted]
    segments_saved = sum(topic.segments - topic.merged for topic in topics)
    deleted_from = None
    if done.number is not None:
        deleted_from = rfc3339(datetime.now(UTC) + grace)
    return RewriteReport(
        archive=run.archive.store.url,
        confirmed=run.confirm,
        rewrite=done.number,
        topics=tuple(merged),
        compacted=tuple(compacted),
        segments=sum(topic.segments for topic in topics),
        merged=sum(topic.merged for topic in topics),
        records=sum(topic.records for topic in topics),
        bytes=sum(topic.bytes for topic in topics),
        superseded=sum(topic.superseded for topic in topics),
        searched=done.searched,
        segments_before=len(before.segments),
        segments_after=len(before.segments) - segments_saved,
        waiting=done.waiting,
        deleted_from=deleted_from,
        seconds=run.phases.seconds,
    )


def _compact(run: _Run, largest: int, done: _Rewritten) -> None:
    """Leave superseded records out, and note in `done` which segments that concerned."""
    archive, workers, phases, confirm = run
    with phases.step("choose topics"):
        listed, undoable = _points(archive)
        looked_at = due(archive, listed | undoable, _ends(archive))
    if not looked_at:
        return
    number = _begin(archive, "compaction began") if confirm else 0
    swept = archive.state.swept
    work = CompactWork(archive.store, largest, number)
    done.searched = sum(candidate.records for candidate in looked_at)
    progress = workers.phase(done.searched)
    for batch, size in _batches(looked_at, workers):
        with phases.step("compact"):
            # One partition at a time in this process: its keys are in memory.
            found = workers.run(work, batch, size, progress, threads=1)
        if not confirm:
            done.compactions += [_Change(each.segments, each.superseded) for each in found]
            continue
        swaps = [each.swap for each in found if each.swap is not None]
        if swaps:
            done.number = number
            with phases.step("commit compaction"):
                done.compactions += _commit(archive, number, swept, swaps)
    if confirm:
        with phases.step("commit compaction"):
            _note(archive, looked_at)


def _note(archive: Archive, looked_at: Collection[Candidate]) -> None:
    """Note in the archive which partitions were looked through."""

    def operation(state: State) -> State:
        return note_compaction(state, looked_at)

    author = Author("rewrite", "", f"{plural(len(looked_at), 'partition')} looked through for superseded records")
    archive.move(commit(archive.store, archive.committed, operation, author))


@dataclass(frozen=True)
class _MergeWork:
    """Writes segments as one, with the number of a `rewrite` in the name."""

    store: Store
    rewrite: int

    def __call__(self, merge: Merge, progress: TaskProgress) -> Iterator[Swap]:
        new = write_anew(self.store, merge.segments, NOTHING, self.rewrite)
        progress.add(merge.records, merge.bytes)
        yield Swap(merge.segments, new, NOTHING_ERASED)


def _merge(run: _Run, sizes: MergeSizes, done: _Rewritten) -> None:
    """Merge small segments, and note in `done` which."""
    archive, workers, phases, confirm = run
    with phases.step("choose segments"):
        merges, done.waiting = _choose(archive, sizes)
    if not confirm:
        done.merges = [_Change(merge.segments, 0) for merge in merges]
        return
    if not merges:
        return
    number = _begin(archive, "rewrite began")
    # The archive may have changed just before: what is merged is what it has now.
    merges, done.waiting = _choose(archive, sizes)
    swept = archive.state.swept
    work = _MergeWork(archive.store, number)
    progress = workers.phase(sum(merge.records for merge in merges))
    for batch, size in _batches(merges, workers):
        with phases.step("merge"):
            swaps = workers.run(work, batch, size, progress)
        with phases.step("commit merge"):
            done.merges += _commit(archive, number, swept, swaps)
    if done.merges:
        done.number = number


def _choose(archive: Archive, sizes: MergeSizes) -> tuple[list[Merge], int]:
    """Return what to merge, and how many segments more could go if no expiration could be undone."""
    state = archive.state
    if not len(state.segments):
        return [], 0
    listed, undoable = _points(archive)
    ends = _ends(archive)
    merges = plan_merges(state, listed | undoable, ends, sizes)
    if not undoable:
        return merges, 0
    later = plan_merges(state, listed, ends, sizes)
    return merges, max(0, _saved(later) - _saved(merges))


def _points(archive: Archive) -> tuple[set[int], frozenset[int]]:
    """Return the restore points that are listed, and those that an undo may bring back."""
    return set(archive.state.numbers.tolist()), undoable_points(archive.store, archive.committed)


def _saved(merges: Collection[Merge]) -> int:
    """Return how many segments fewer an archive has after some merges."""
    return sum(len(merge.segments) - 1 for merge in merges)


def _ends(archive: Archive) -> Mapping[IncarnationPartition, int]:
    """Return the offsets of partitions at which the next backup may add segments: what is held, or the end."""
    head = archive.head
    if head is None:
        return {}
    return {place: partition.unbroken for place, partition in head.partitions().items()}


def _begin(archive: Archive, summary: str) -> int:
    """Return a number for new segments: that of a catalog in which nothing changes, behind those before a promotion."""
    archive.move(commit(archive.store, archive.committed, begin_merge, Author("rewrite", "", summary)))
    return archive.state.rewrite_number


def _batches(tasks: Sequence[_Sized], workers: Workers) -> Iterator[tuple[list[_Sized], int]]:
    """Yield tasks in groups that are committed together, with their bytes: an interrupted run loses no more."""
    total = sum(task.bytes for task in tasks)
    # Spark has to have enough to do at once.
    most = _SPARK_BATCH_BYTES if workers.use_spark(total) else _BATCH_BYTES
    batch: list[_Sized] = []
    size = 0
    for task in tasks:
        if batch and size + task.bytes > most:
            yield batch, size
            batch = []
            size = 0
        batch.append(task)
        size += task.bytes
    if batch:
        yield batch, size


def _commit(archive: Archive, number: int, swept: int, swaps: Sequence[Swap]) -> list[_Change]:
    """Swap new segments in, which other processes may have written. Return the changes that the archive has then."""
    check_written(archive.store, [swap.new for swap in swaps if swap.new is not None])
    segments = sum(len(swap.old) for swap in swaps)
    records = sum(swap.lost_records for swap in swaps)

    def operation(state: State) -> State:
        return merge_segments(state, number, swept, swaps)

    summary = f"{plural(segments, 'segment')} merged to {len(swaps)}"
    if records:
        without = plural(records, "superseded record")
        summary = f"{plural(segments, 'segment')} compacted to {len(swaps)}, without {without}"
    archive.move(commit(archive.store, archive.committed, operation, Author("rewrite", "", summary)))
    keys = archive.keys()
    changes: list[_Change] = []
    for swap in swaps:
        if swap.new is not None and swap.new.key in keys:
            changes.append(_Change(swap.old, swap.lost_records))
    return changes


def _by_topic(changes: Iterable[_Change]) -> list[RewrittenTopic]:
    """Sum changes up by the incarnation of a topic, in order."""
    own: dict[Incarnation, list[_Change]] = {}
    for change in changes:
        topic, incarnation, _ = change.segments[0].incarnation_partition
        own.setdefault((topic, incarnation), []).append(change)
    topics: list[RewrittenTopic] = []
    for (topic, incarnation), of_topic in sorted(own.items()):
        segments: list[Segment] = []
        for change in of_topic:
            segments += change.segments
        partitions = {segment.partition for segment in segments}
        row = RewrittenTopic(
            topic=topic,
            incarnation=incarnation,
            partitions=len(partitions),
            segments=len(segments),
            merged=len(of_topic),
            records=sum(segment.count for segment in segments),
            bytes=sum(segment.bytes for segment in segments),
            superseded=sum(change.superseded for change in of_topic),
        )
        topics.append(row)
    return topics
