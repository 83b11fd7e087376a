"""The erase job: records leave an archive, in every restore point that has them.

It looks for the records in all segments of the topics, writes the segments that have some of them anew without these,
and swaps them in by one commit. From then on no reader finds them. The old segments wait for a sweep, like everything
that has expired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from kbackup.archive.catalog.documents import IsolationLevel
from kbackup.archive.catalog.rewriting import Swap, erase_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.find import Matches, search
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive, open_archive, refuse_if_swept
from kbackup.archive.run import WritingRun, begin_writing, check_written
from kbackup.archive.segments.anew import write_anew
from kbackup.archive.segments.table import Segment, Segments
from kbackup.archive.segments.window import EVERYTHING
from kbackup.errors import CorruptError, RefusedError
from kbackup.jobs.compact import cleanup_policies
from kbackup.jobs.remains import Remains, ask_remains
from kbackup.jobs.retention import GRACE
from kbackup.jobs.spread import TaskProgress, Workers
from kbackup.metrics.registry import Phases, ProgressListener, counted
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, Int64Array
from kbackup.util.system import cut
from kbackup.util.text import plural
from kbackup.util.times import rfc3339

_TASK_BYTES = 1 << 30
_TASK_SEGMENTS = 10_000


@dataclass(frozen=True)
class Erasure:
    """What is to be erased: the records of the selected `topics`, of all their incarnations, that `matches` selects.
    `check` raises an error after a search that can't be trusted, as where an expression failed for a record. `reason`
    stands in the log of the archive."""

    topics: Selection
    matches: Matches
    reason: str = ""
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ErasedTopic:
    """The records of an incarnation of a topic that are erased, or would be: how many, in how many segments with
    `segment_bytes` of stored bytes, and in how many restore points (`first_point` to `last_point`)."""

    topic: str
    incarnation: int
    partitions: int
    records: int
    segments: int
    segment_bytes: int
    first_point: int
    last_point: int
    restore_points: int


@dataclass(frozen=True, slots=True)
class TopicInSource:
    """A topic with such records that the source had at the last backup: it has the records still, unless they expired
    there. `compacted` says whether keys are deleted by tombstones; None if the archive does not know."""

    topic: str
    compacted: bool | None


@dataclass(frozen=True)
class EraseReport:
    """What an erasure did, or would do if it is not `confirmed`. `erasure` is the catalog that committed it, None if
    nothing was erased. `searched` counts the records that were looked at. The objects that still hold the records can
    be deleted from `deleted_from` on; what keeps them longer is in `remains`, as far as the store tells. It is None if
    nothing was found. `source` are the topics that the source still has."""

    archive: str
    confirmed: bool
    erasure: int | None
    topics: tuple[ErasedTopic, ...]
    records: int
    segments: int
    searched: int
    deleted_from: str | None
    remains: Remains | None
    source: tuple[TopicInSource, ...]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """The offsets of the records to erase in one segment, which restore point `point` added. int64, rising."""

    segment: Segment
    point: int
    offsets: Int64Array


def erase(
    store: Store,
    erasure: Erasure,
    lease_seconds: float,
    listener: ProgressListener,
    *,
    confirm: bool,
    spark: Spark | None = None,
) -> EraseReport:
    """Erase records from an archive. Without `confirm`, look for them and report what would be erased.

    With `confirm` it takes the lease, so no backup runs meanwhile. `RefusedError` for a copy. `UsageError` for a topic
    that the archive does not have. `CorruptError` if a segment of the topics is damaged: then nothing is erased.
    `spark` gives a session for topics of many bytes: what the erasure matches by is pickled then. Without it all is
    done in this process.
    """
    phases = Phases(listener)
    workers = Workers(listener, spark)
    if not confirm:
        archive = open_archive(store)
        with refuse_if_swept(archive):
            found, searched = _look(archive, erasure, workers, phases)
        remains = _remains(archive.store, found)
        return _report(archive, found, searched, remains, phases, erased_in=None, confirm=False)
    with HeldLease(store, "kbackup erase", lease_seconds) as lease:
        archive = open_archive(store)
        # Also where segments that were found go before they are read again: the run that writes opens a later catalog.
        with refuse_if_swept(archive):
            return _erase(archive, lease, erasure, workers, phases)


def _erase(archive: Archive, lease: HeldLease, erasure: Erasure, workers: Workers, phases: Phases) -> EraseReport:
    _check_no_copy(archive.state)
    found, searched = _look(archive, erasure, workers, phases)
    if not found:
        return _report(archive, found, searched, None, phases, erased_in=None, confirm=True)
    # While the objects are there, and before anything is erased: the report of an erasure must not fail.
    remains = _remains(archive.store, found)
    # It reads no cluster: the level is one that the archive has already, so that salvaging stays as it was.
    level: IsolationLevel = min(archive.state.isolation_levels, default="read_committed")
    writing = begin_writing(archive.store, lease, "erase", level)
    number = _rewrite(writing, found, erasure, workers, phases)
    report = _report(archive, found, searched, remains, phases, erased_in=number, confirm=True)
    writing.end()
    return report


def count_erasure(report: EraseReport) -> None:
    """Count what an erasure did, for Prometheus."""
    counted.add("kbackup_records_total", report.searched)
    if report.confirmed:
        counted.add("kbackup_erased_records_total", report.records)


def _check_no_copy(state: State) -> None:
    if state.origin is not None:
        raise RefusedError(
            f"this archive is a copy of {state.origin.archive}", "erase there, then run 'kbackup copy' again"
        )


def _look(archive: Archive, erasure: Erasure, workers: Workers, phases: Phases) -> tuple[list[Found], int]:
    """Return the records to erase by segment, and how many records were looked at."""
    with phases.step("search"):
        places = _segments_of(archive, erasure.topics)
        tasks: list[Sequence[Segment]] = []
        expected = 0
        size = 0
        for segments, _ in places.values():
            expected += int(segments.integers("count").sum())
            sizes = segments.integers("bytes")
            size += int(sizes.sum())
            tasks += [segments[part] for part in cut(sizes.tolist(), _TASK_BYTES, _TASK_SEGMENTS)]
        work = _SearchWork(archive.store, erasure.matches)
        # One after the other in this process: many threads search each.
        offsets: dict[IncarnationPartition, list[Int64Array]] = defaultdict(list)
        for place, matching in workers.run(work, tasks, size, workers.phase(expected), threads=1):
            offsets[place].append(matching)
        found: list[Found] = []
        for place, (segments, points) in sorted(places.items()):
            if place in offsets:
                # A partition of several tasks: they need not end in order.
                found += _by_segment(segments, points, np.sort(np.concatenate(offsets[place])))
        erasure.check()
    return found, expected


def _segments_of(archive: Archive, topics: Selection) -> Mapping[IncarnationPartition, tuple[Segments, Int64Array]]:
    """Return the segments of the selected topics by partition, in order, with the restore point that added each:
    those of every incarnation that any restore point has."""
    newest = archive.state.next_point
    names = {topic for topic, _ in archive.state.last_points()}
    check_selection(topics, "topic", names, "in this archive", "see 'kbackup info'", internal=True)
    # Kafka's own topics are in an archive as well, and hold names of groups: a regular expression selects them, too.
    selected = {name for name in names if topics.matches(name)}
    segments, points, places = archive.ordered(0, newest, selected)
    checked = segments.checked()
    return {place: (checked[part], points[part]) for place, part in places.items()}


@dataclass(frozen=True)
class _SearchWork:
    """Looks through segments of a partition, and yields the offsets of the records that match, rising."""

    store: Store
    matches: Matches

    def __call__(
        self, segments: Sequence[Segment], progress: TaskProgress
    ) -> Iterator[tuple[IncarnationPartition, Int64Array]]:
        place = segments[0].incarnation_partition
        topic, _, number = place
        partition = ArchivedPartition(number, segments[0].first, segments[-1].last + 1, segments)
        with closing(search(self.store, [(topic, partition)], self.matches, EVERYTHING, progress.add)) as units:
            for unit in units:
                for records in unit.matches:
                    yield place, records.block.offsets


def _by_segment(segments: Segments, points: Int64Array, offsets: Int64Array) -> Iterator[Found]:
    """Yield the segments that have some of the `offsets`, with their own."""
    if not len(offsets):
        return
    firsts = segments.integers("first")
    lasts = segments.integers("last")
    starts = np.searchsorted(offsets, firsts).tolist()
    stops = np.searchsorted(offsets, lasts, side="right").tolist()
    for at, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        if start < stop:
            yield Found(segments[at], int(points[at]), offsets[start:stop])


def _rewrite(writing: WritingRun, found: Sequence[Found], erasure: Erasure, workers: Workers, phases: Phases) -> int:
    """Write the segments anew without the records, and swap them in. Return the number of the catalog that did."""
    rewrite = writing.archive.state.rewrites_before + writing.began
    with phases.step("rewrite"):
        size = sum(each.segment.bytes for each in found)
        expected = sum(each.segment.count for each in found)
        # In this process, each write checks the lease.
        store = writing.plain if workers.use_spark(size) else writing.store
        swaps = workers.run(_RewriteWork(store, rewrite), found, size, workers.phase(expected))
        check_written(writing.store, [swap.new for swap in swaps if swap.new is not None])
    with phases.step("commit"):
        summary = f"{plural(_records(found), 'record')} erased"
        if erasure.reason:
            summary += f": {erasure.reason}"

        def operation(state: State) -> State:
            return erase_segments(state, writing.run, rewrite, swaps)

        writing.commit(operation, "erase", summary)
        number = writing.archive.state.number
        writing.refresh_derived()
    return number


@dataclass(frozen=True)
class _RewriteWork:
    """Writes segments anew without some records, with the number of a `rewrite` in their names."""

    store: Store
    rewrite: int

    def __call__(self, found: Found, progress: TaskProgress) -> Iterator[Swap]:
        old = found.segment
        new = write_anew(self.store, [old], found.offsets, self.rewrite)
        progress.add(old.count, old.bytes)
        yield Swap((old,), new, found.offsets)


def _remains(store: Store, found: Sequence[Found]) -> Remains | None:
    """Return what keeps the objects with the records that were found; None if there are none."""
    if not found:
        return None
    return ask_remains(store, [each.segment.key for each in found])


def _report(
    archive: Archive,
    found: Sequence[Found],
    searched: int,
    remains: Remains | None,
    phases: Phases,
    *,
    erased_in: int | None,
    confirm: bool,
) -> EraseReport:
    """Return the report of an erasure. `archive` is as it was before."""
    by_topic: dict[Incarnation, list[Found]] = defaultdict(list)
    for each in found:
        by_topic[each.segment.topic, each.segment.incarnation].append(each)
    topics = [_erased_topic(archive.state, key, own) for key, own in sorted(by_topic.items())]
    deleted_from = None
    if erased_in is not None:
        deleted_from = rfc3339(datetime.now(UTC) + GRACE)
    return EraseReport(
        archive=archive.store.url,
        confirmed=confirm,
        erasure=erased_in,
        topics=tuple(topics),
        records=_records(found),
        segments=len(found),
        searched=searched,
        deleted_from=deleted_from,
        remains=remains,
        source=_in_source(archive, by_topic),
        seconds=phases.seconds,
    )


def _in_source(archive: Archive, found: Collection[Incarnation]) -> tuple[TopicInSource, ...]:
    """Return those of the topics that the source had at the last backup. An incarnation that came to an end is gone
    there."""
    head = archive.head
    if head is None:
        return ()
    topics: list[TopicInSource] = []
    policies: dict[int, Mapping[str, str]] = {}
    for topic in head.topics:
        if (topic.name, topic.incarnation) not in found or topic.state == "deleted":
            continue
        if topic.captured not in policies:
            policies[topic.captured] = _policies(archive, topic.captured)
        policy = policies[topic.captured].get(topic.name)
        topics.append(TopicInSource(topic.name, None if policy is None else "compact" in policy))
    return tuple(topics)


def _policies(archive: Archive, number: int) -> Mapping[str, str]:
    """Return the clean-up policies of topics; none if their document is damaged, which is no reason not to erase."""
    try:
        return cleanup_policies(archive.metadata(number))
    except CorruptError:
        return {}


def _records(found: Sequence[Found]) -> int:
    return sum(len(each.offsets) for each in found)


def _erased_topic(state: State, key: Incarnation, found: Sequence[Found]) -> ErasedTopic:
    """Return what was found of an incarnation, and in which restore points."""
    first = min(each.point for each in found)
    last = state.last_points()[key]
    within = state.numbers[(state.numbers >= first) & (state.numbers <= last)]
    partitions = {each.segment.partition for each in found}
    topic, incarnation = key
    return ErasedTopic(
        topic=topic,
        incarnation=incarnation,
        partitions=len(partitions),
        records=_records(found),
        segments=len(found),
        segment_bytes=sum(each.segment.stored for each in found),
        # The restore point that added a segment may have expired: the next one has it.
        first_point=int(within[0]),
        last_point=last,
        restore_points=len(within),
    )
