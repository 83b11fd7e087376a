"""The rewrite job: small segments that lie side by side become one, and superseded records of compacted topics go.

It goes on beside a backup, as an expiration does: it takes no lease, and each of its commits swaps in what the archive
permits by then. The old segments wait for a sweep, like everything that has expired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np

from kbackup.archive import layout
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
from kbackup.archive.segments.read import read_segment, read_small
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.errors import CorruptError
from kbackup.formats.block import select_records
from kbackup.jobs.common import SearchProgress
from kbackup.jobs.compact import due, plan_compactions
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, Int64Array, RecordBlock
from kbackup.util.text import plural
from kbackup.util.times import rfc3339

_THREADS = 4
_BATCH_BYTES = 1 << 30
"""Segments of so many bytes are committed at a time: an interrupted run loses no more."""
_SMALL_BYTES = 16 << 20
_NEVER_CUT = 1 << 62
"""The size in bytes at which a new segment would be cut: never. What becomes one was chosen by its size."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What a rewrite does: merge segments by `sizes` (none if that is below 0 bytes), and with `compact` leave out
    superseded records."""

    sizes: MergeSizes
    compact: bool = False


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

    merges: list[Merge] = field(default_factory=list)
    compactions: list[Merge] = field(default_factory=list)
    waiting: int = 0
    searched: int = 0
    number: int | None = None


def _rewrite(
    archive: Archive, rewriting: Rewriting, lease_seconds: float, grace: timedelta, phases: Phases, *, confirm: bool
) -> RewriteReport:
    before = archive.state
    check_may_rewrite(before)
    done = _Rewritten()
    if rewriting.compact:
        # First: what is left of segments may be merged.
        _compact(archive, rewriting.sizes.largest, done, phases, confirm)
    _merge(archive, rewriting.sizes, done, phases, confirm)
    if done.number is not None:
        with phases.step("refresh derived files"):
            refresh_under_lease(archive, "kbackup rewrite", lease_seconds)
    return _report(archive.store, before, done, grace, phases, confirm=confirm)


def _report(
    store: Store, before: State, done: _Rewritten, grace: timedelta, phases: Phases, *, confirm: bool
) -> RewriteReport:
    merged = _by_topic(done.merges)
    compacted = _by_topic(done.compactions)
    topics = [*merged, *compacted]
    segments_saved = sum(topic.segments - topic.merged for topic in topics)
    deleted_from = None
    if done.number is not None:
        deleted_from = rfc3339(datetime.now(UTC) + grace)
    return RewriteReport(
        archive=store.url,
        confirmed=confirm,
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
        seconds=phases.seconds,
    )


# Which segments.


def _compact(archive: Archive, largest: int, done: _Rewritten, phases: Phases, confirm: bool) -> None:
    """Leave superseded records out, and note in `done` which segments that concerned."""
    with phases.step("choose topics"):
        listed, undoable = _points(archive)
        looked_at = due(archive, listed | undoable, _ends(archive))
    if not looked_at:
        return
    with phases.step("look for superseded records"):
        searched = SearchProgress(phases.listener, sum(candidate.records for candidate in looked_at))
        planned = list(plan_compactions(archive.store, looked_at, largest, searched.add))
        done.searched = searched.records
    if not confirm:
        done.compactions = planned
        return
    if planned:
        number = _begin(archive, "compaction began")
        done.compactions = _write(archive, planned, number, phases)
        if done.compactions:
            done.number = number
    with phases.step("commit compaction"):
        _note(archive, looked_at)


def _note(archive: Archive, looked_at: Collection[Candidate]) -> None:
    """Note in the archive which partitions were looked through."""

    def operation(state: State) -> State:
        return note_compaction(state, looked_at)

    author = Author("rewrite", "", f"{plural(len(looked_at), 'partition')} looked through for superseded records")
    archive.move(commit(archive.store, archive.committed, operation, author))


def _merge(archive: Archive, sizes: MergeSizes, done: _Rewritten, phases: Phases, confirm: bool) -> None:
    """Merge small segments, and note in `done` which."""
    with phases.step("choose segments"):
        merges, done.waiting = _choose(archive, sizes)
    if not confirm:
        done.merges = merges
        return
    if not merges:
        return
    number = _begin(archive, "rewrite began")
    # The archive may have changed just before: what is merged is what it has now.
    merges, done.waiting = _choose(archive, sizes)
    done.merges = _write(archive, merges, number, phases)
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


# Write and swap in.


def _begin(archive: Archive, summary: str) -> int:
    """Return a number for new segments: that of a catalog in which nothing changes."""
    archive.move(commit(archive.store, archive.committed, begin_merge, Author("rewrite", "", summary)))
    return archive.state.number


def _write(archive: Archive, merges: Sequence[Merge], number: int, phases: Phases) -> list[Merge]:
    """Write new segments with the `number` of a rewrite in their names and swap them in, in batches. Return the merges
    that the archive has now."""
    swept = archive.state.swept
    expected = sum(merge.records for merge in merges)
    done: list[Merge] = []
    records = 0
    nbytes = 0
    for batch in _batches(merges):
        with phases.step("rewrite"), ThreadPoolExecutor(_THREADS, "rewrite") as pool:
            swaps: list[Swap] = []
            for merge, swap in zip(batch, pool.map(partial(_merged, archive.store, number), batch), strict=True):
                swaps.append(swap)
                records += merge.records
                nbytes += merge.bytes
                phases.listener.progress(records, nbytes, expected)
            check_written(archive.store, [swap.new for swap in swaps if swap.new is not None])
        with phases.step("commit rewrite"):
            present = _commit(archive, number, swept, swaps)
        for merge, swap in zip(batch, swaps, strict=True):
            if swap.new is not None and swap.new.key in present:
                done.append(merge)
    return done


def _batches(merges: Sequence[Merge]) -> Iterator[list[Merge]]:
    """Yield the merges in groups that are committed together."""
    batch: list[Merge] = []
    size = 0
    for merge in merges:
        if batch and size + merge.bytes > _BATCH_BYTES:
            yield batch
            batch = []
            size = 0
        batch.append(merge)
        size += merge.bytes
    if batch:
        yield batch


def _merged(store: Store, number: int, merge: Merge) -> Swap:
    """Write adjacent segments as one. The old ones are held against their checksums meanwhile."""
    last = merge.segments[-1]
    target = SegmentTarget(
        *last.incarnation_partition,
        _NEVER_CUT,
        layout.compression_of(last.key),
        rewrite=number,
        compacted=max(merge.compacted, *(layout.compacted_of(old.key) for old in merge.segments)),
    )
    with PartitionWriter(store, target) as writer:
        for old in merge.segments:
            # A small one takes one request, without its index, and is checked before its first record is written.
            read = read_small if old.bytes <= _SMALL_BYTES else read_segment
            for block in read(store, old):
                kept = _without(block, merge.superseded)
                if len(kept):
                    writer.append(kept)
        # Only now is it known that the old bytes are those that were archived.
        (new,) = writer.finish()
    count = merge.records - len(merge.superseded)
    if (new.first, new.last, new.count) != (merge.segments[0].first, last.last, count):
        raise CorruptError(
            f"file {last.key}, or one before it, has other records than the catalog says; it was not rewritten",
            "run 'kbackup verify', which lists every finding",
        )
    return Swap(merge.segments, new, NOTHING_ERASED)


def _without(block: RecordBlock, superseded: Int64Array) -> RecordBlock:
    """Return a block without the records at the offsets `superseded`."""
    start, stop = np.searchsorted(superseded, [block.offsets[0], block.offsets[-1] + 1])
    if start == stop:
        return block
    return select_records(block, ~np.isin(block.offsets, superseded[start:stop]))


def _commit(archive: Archive, number: int, swept: int, swaps: Sequence[Swap]) -> Collection[str]:
    """Swap new segments in. Return the keys of all that the archive has then."""
    segments = sum(len(swap.old) for swap in swaps)
    records = sum(swap.lost_records for swap in swaps)

    def operation(state: State) -> State:
        return merge_segments(state, number, swept, swaps)

    summary = f"{plural(segments, 'segment')} merged to {len(swaps)}"
    if records:
        summary = (
            f"{plural(segments, 'segment')} compacted to {len(swaps)}, without {plural(records, 'superseded record')}"
        )
    archive.move(commit(archive.store, archive.committed, operation, Author("rewrite", "", summary)))
    return archive.keys()


def _by_topic(merges: Iterable[Merge]) -> list[RewrittenTopic]:
    """Sum merges up by the incarnation of a topic, in order."""
    own: dict[Incarnation, list[Merge]] = {}
    for merge in merges:
        topic, incarnation, _ = merge.segments[0].incarnation_partition
        own.setdefault((topic, incarnation), []).append(merge)
    topics: list[RewrittenTopic] = []
    for (topic, incarnation), of_topic in sorted(own.items()):
        segments: list[Segment] = []
        for merge in of_topic:
            segments += merge.segments
        partitions = {segment.partition for segment in segments}
        row = RewrittenTopic(
            topic=topic,
            incarnation=incarnation,
            partitions=len(partitions),
            segments=len(segments),
            merged=len(of_topic),
            records=sum(merge.records for merge in of_topic),
            bytes=sum(merge.bytes for merge in of_topic),
            superseded=sum(len(merge.superseded) for merge in of_topic),
        )
        topics.append(row)
    return topics
