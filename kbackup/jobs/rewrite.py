"""The rewrite job: small segments that lie side by side become one.

It goes on beside a backup, as an expiration does: it takes no lease, and each of its commits swaps in what the archive
permits by then. The old segments wait for a sweep, like everything that has expired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
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
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import plural
from kbackup.util.times import rfc3339

_THREADS = 4
_BATCH_BYTES = 1 << 30
"""Merges of so many bytes are committed at a time: an interrupted run loses no more."""
_SMALL_BYTES = 16 << 20
_NEVER_CUT = 1 << 62
"""The size in bytes at which a merged segment would be cut: never. What is merged was chosen by its size."""


@dataclass(frozen=True, slots=True)
class MergedTopic:
    """The merges of an incarnation of a topic: `segments` of `bytes` (of plain records files) become `merged`."""

    topic: str
    incarnation: int
    partitions: int
    segments: int
    merged: int
    records: int
    bytes: int


@dataclass(frozen=True)
class RewriteReport:
    """What a rewrite did, or would do if it is not `confirmed`. `rewrite` is the number in the names of the new
    segments, None if nothing was merged. The archive has `segments_before` and `segments_after`. `waiting` more
    segments can be merged when expirations can no longer be undone. The old objects can be deleted from
    `deleted_from` on."""

    archive: str
    confirmed: bool
    rewrite: int | None
    topics: tuple[MergedTopic, ...]
    segments: int
    merged: int
    records: int
    bytes: int
    segments_before: int
    segments_after: int
    waiting: int
    deleted_from: str | None
    seconds: dict[str, float] = field(default_factory=dict)


def rewrite(
    store: Store,
    sizes: MergeSizes,
    lease_seconds: float,
    grace: timedelta,
    listener: ProgressListener,
    *,
    confirm: bool,
) -> RewriteReport:
    """Merge small segments of an archive. Without `confirm`, report what would be merged, by the catalog alone.

    `RefusedError` for a copy, and where an expiration without a grace time deletes what is read. `LockedError` beside
    an erasure or a repair, `CorruptError` if a segment is damaged. What was committed by then stays. `grace` is how
    long the objects of the old segments stay.
    """
    archive = open_archive(store)
    with refuse_if_swept(archive):
        return _rewrite(archive, sizes, lease_seconds, grace, Phases(listener), confirm=confirm)


def _rewrite(
    archive: Archive, sizes: MergeSizes, lease_seconds: float, grace: timedelta, phases: Phases, *, confirm: bool
) -> RewriteReport:
    store = archive.store
    before = archive.state
    with phases.step("choose segments"):
        check_may_rewrite(before)
        merges, waiting = _choose(archive, sizes)
    number: int | None = None
    done: Sequence[Merge] = merges
    if confirm and merges:
        archive.move(commit(store, archive.committed, begin_merge, Author("rewrite", "", "rewrite began")))
        number = archive.state.number
        # The archive may have changed just before: what is merged is what it has now.
        merges, waiting = _choose(archive, sizes)
        done = _merge(archive, merges, number, archive.state.swept, phases)
        with phases.step("refresh derived files"):
            refresh_under_lease(archive, "kbackup rewrite", lease_seconds)
    topics = _by_topic(done)
    segments = sum(topic.segments for topic in topics)
    merged = sum(topic.merged for topic in topics)
    records = sum(topic.records for topic in topics)
    nbytes = sum(topic.bytes for topic in topics)
    if not done:
        # What was begun merged nothing: the archive did not permit any of it.
        number = None
    deleted_from = None
    if number is not None:
        deleted_from = rfc3339(datetime.now(UTC) + grace)
    return RewriteReport(
        archive=store.url,
        confirmed=confirm,
        rewrite=number,
        topics=tuple(topics),
        segments=segments,
        merged=merged,
        records=records,
        bytes=nbytes,
        segments_before=len(before.segments),
        segments_after=len(before.segments) - segments + merged,
        waiting=waiting,
        deleted_from=deleted_from,
        seconds=phases.seconds,
    )


def _choose(archive: Archive, sizes: MergeSizes) -> tuple[list[Merge], int]:
    """Return what to merge, and how many segments more could go if no expiration could be undone."""
    state = archive.state
    if not len(state.segments):
        return [], 0
    listed = set(state.numbers.tolist())
    undoable = undoable_points(archive.store, archive.committed)
    ends = _ends(archive)
    merges = plan_merges(state, listed | undoable, ends, sizes)
    if not undoable:
        return merges, 0
    later = plan_merges(state, listed, ends, sizes)
    return merges, max(0, _saved(later) - _saved(merges))


def _saved(merges: Collection[Merge]) -> int:
    """Return how many segments fewer an archive has after some merges."""
    return sum(len(merge.segments) - 1 for merge in merges)


def _ends(archive: Archive) -> Mapping[IncarnationPartition, int]:
    """Return the offsets of partitions at which the next backup may add segments: what is held, or the end."""
    head = archive.head
    if head is None:
        return {}
    return {place: partition.unbroken for place, partition in head.partitions().items()}


def _merge(archive: Archive, merges: Sequence[Merge], number: int, swept: int, phases: Phases) -> list[Merge]:
    """Write merged segments and swap them in, in batches. Return the merges that the archive has now."""
    expected = sum(segment.count for merge in merges for segment in merge.segments)
    done: list[Merge] = []
    records = 0
    nbytes = 0
    for batch in _batches(merges):
        with phases.step("merge"), ThreadPoolExecutor(_THREADS, "rewrite") as pool:
            swaps: list[Swap] = []
            for swap in pool.map(partial(_merged, archive.store, number), batch):
                swaps.append(swap)
                records += sum(old.count for old in swap.old)
                nbytes += sum(old.bytes for old in swap.old)
                phases.listener.progress(records, nbytes, expected)
            check_written(archive.store, [swap.new for swap in swaps if swap.new is not None])
        with phases.step("commit merge"):
            done += _commit(archive, number, swept, swaps)
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
    target = SegmentTarget(*last.incarnation_partition, _NEVER_CUT, layout.compression_of(last.key), rewrite=number)
    with PartitionWriter(store, target) as writer:
        for old in merge.segments:
            # A small one takes one request, without its index, and is checked before its first record is written.
            read = read_small if old.bytes <= _SMALL_BYTES else read_segment
            for block in read(store, old):
                writer.append(block)
        # Only now is it known that the old bytes are those that were archived.
        (new,) = writer.finish()
    count = sum(old.count for old in merge.segments)
    if (new.first, new.last, new.count) != (merge.segments[0].first, last.last, count):
        raise CorruptError(
            f"file {last.key}, or one before it, has other records than the catalog says; it was not merged",
            "run 'kbackup verify', which lists every finding",
        )
    return Swap(merge.segments, new, NOTHING_ERASED)


def _commit(archive: Archive, number: int, swept: int, swaps: Sequence[Swap]) -> list[Merge]:
    """Swap merged segments in. Return the merges that the archive permitted."""
    segments = sum(len(swap.old) for swap in swaps)

    def operation(state: State) -> State:
        return merge_segments(state, number, swept, swaps)

    author = Author("rewrite", "", f"{plural(segments, 'segment')} merged to {len(swaps)}")
    archive.move(commit(archive.store, archive.committed, operation, author))
    keys = archive.keys()
    return [Merge(swap.old) for swap in swaps if swap.new is not None and swap.new.key in keys]


def _by_topic(merges: Sequence[Merge]) -> list[MergedTopic]:
    """Sum merges up by the incarnation of a topic, in order."""
    own: dict[Incarnation, list[Merge]] = {}
    for merge in merges:
        topic, incarnation, _ = merge.segments[0].incarnation_partition
        own.setdefault((topic, incarnation), []).append(merge)
    topics: list[MergedTopic] = []
    for (topic, incarnation), of_topic in sorted(own.items()):
        segments: list[Segment] = []
        for merge in of_topic:
            segments += merge.segments
        partitions = {segment.partition for segment in segments}
        row = MergedTopic(
            topic=topic,
            incarnation=incarnation,
            partitions=len(partitions),
            segments=len(segments),
            merged=len(of_topic),
            records=sum(segment.count for segment in segments),
            bytes=sum(segment.bytes for segment in segments),
        )
        topics.append(row)
    return topics
