"""Plan a restore: names on the target, windows of time, and units of work. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from kbackup.archive.query.content import (
    NO_POINTS,
    ArchivedPartition,
    ArchivedTopic,
    Content,
    choice_of,
    content_at,
    narrowed,
    span,
    view_of,
)
from kbackup.archive.query.java import java_content, java_topics, open_archive_or_folder
from kbackup.archive.query.overview import not_reached
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import LogBounds, PlannedTopic, RestorePlan, UnitRange
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment, sum_of, untimed
from kbackup.archive.segments.window import EVERY_OFFSET, Choice, Window, joined, without
from kbackup.archive.segments.writer import greatest, least
from kbackup.archive.transforms import TransformRef
from kbackup.config.windows import Range
from kbackup.errors import RefusedError, UsageError, suggest_name
from kbackup.jobs.finding_kinds import loss_finding
from kbackup.jobs.groups.plan import check_groups, map_groups
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.request import RestoreRequest, given_options
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store
from kbackup.types import Offsets, TopicPartition
from kbackup.util.text import join_names
from kbackup.util.times import now, time_text

UNIT_BYTES = 32 << 20
"""Partitions of at least so many bytes are units of their own."""
UNIT_PARTITIONS = 64
"""At most so many small partitions share a unit."""
GROUP_UNITS = 64
"""At most so many units share a progress group, until there are `PROGRESS_GROUPS`."""
PROGRESS_GROUPS = 50
"""At most so many: the partitions of __consumer_offsets, unless a cluster has another number."""
_LEGAL = re.compile(r"^[a-zA-Z0-9._-]{1,249}$")  # names of topics, as brokers check them


def free_name(topic: str, taken: Container[str]) -> str:
    """Return a name for a topic that is restored beside another one, which `taken` does not have."""
    name = f"{topic}-restored"
    number = 2
    while name in taken:
        name = f"{topic}-restored-{number}"
        number += 1
    return name


def check_names(names: Mapping[str, str]) -> None:
    """Raise `UsageError` unless every target name is legal, and `RefusedError` if two topics go to the same one."""
    sources: dict[str, str] = {}
    for source, target in names.items():
        if not _LEGAL.match(target) or target in (".", ".."):
            raise UsageError(
                f"topic {source} can't be restored as {target!r}",
                "map it to a name of 1 to 249 letters, digits, '.', '_' and '-'",
            )
        if target in sources:
            raise RefusedError(
                f"topics {sources[target]} and {source} would both become {target}", "map one of them elsewhere"
            )
        sources[target] = source


def plan_topic(topic: ArchivedTopic, target: str, configs: Mapping[str, str], replication: int | None) -> PlannedTopic:
    """Plan a topic. `configs` and `replication` replace the archived ones; -1 stands for the broker's default, and an
    empty value takes a config away."""
    records = sum(partition.records for partition in topic.partitions)
    size = sum(partition.bytes for partition in topic.partitions)
    is_exact = all(partition.exact for partition in topic.partitions)
    if replication is None:
        replication = topic.replication_factor
    return PlannedTopic(
        source=topic.name,
        incarnation=topic.incarnation,
        as_of=topic.as_of,
        target=target,
        partitions=len(topic.partitions),
        records=records,
        bytes=size,
        exact=is_exact,
        configs=with_given(topic.configs or {}, configs),
        replication_factor=-1 if replication is None else replication,
    )


def with_given(configs: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the configs of a topic with the configs that were `given` by option, without the ones given as empty."""
    kept = {name: value for name, value in configs.items() if name not in given}
    set_by_option = {name: value for name, value in given.items() if value}
    return kept | set_by_option


def make_units(
    content: Content, names: Mapping[str, str], transactions: bool = True, same_offsets: bool = False
) -> tuple[tuple[UnitRange, ...], ...]:
    """Return partitions with records, big ones alone, small ones sharing a producer; the biggest first. Without
    `transactions`, only partitions of one topic share: where a topic fails, nobody knows how far the others came.

    With `same_offsets` each has the bounds of its log, and so do partitions without records whose log does not begin
    at 0."""
    parts: list[UnitRange] = []
    for topic in content.topics:
        for held in topic.partitions:
            if held.segments or (same_offsets and held.end > 0):
                # Left out of the plan where nobody asks for it: older versions don't know the member.
                log: LogBounds | msgspec.UnsetType = msgspec.UNSET
                if same_offsets:
                    log = _log_of(held)
                part = UnitRange(
                    topic=topic.name,
                    partition=held.partition,
                    target=names[topic.name],
                    segments=held.segments,
                    window=held.window,
                    log=log,
                )
                parts.append(part)
    sizes = {part.tp: sum_of(part.segments, "bytes") for part in parts}

    def size_of(part: UnitRange) -> int:
        return sizes[part.tp]

    def size_of_unit(unit: Sequence[UnitRange]) -> int:
        return sum(size_of(part) for part in unit)

    # Neighbours share a unit: the offset map holds fewer of them back until their turn comes. Big partitions come after
    # all small ones: one between two small neighbours would part them.
    parts.sort(key=lambda part: (size_of(part) >= UNIT_BYTES, part.tp))
    may_share = [parts]
    if not transactions:
        may_share = []
        for _, of_topic in groupby(parts, key=attrgetter("target")):
            may_share.append(list(of_topic))
    units: list[tuple[UnitRange, ...]] = []
    for sharing in may_share:
        units += pack(sharing, size_of, UNIT_BYTES, UNIT_PARTITIONS)
    # A big unit that began last would run alone at the end.
    return tuple(sorted(units, key=size_of_unit, reverse=True))


def _log_of(held: ArchivedPartition) -> LogBounds:
    """Return where the log of a partition begins and ends. The archive may have records that the source had deleted
    by then: the log begins with them."""
    start = held.start
    if held.segments:
        start = min(start, held.segments[0].first)
    return LogBounds(start=start, end=held.end)


def progress_groups(units: int) -> int | msgspec.UnsetType:
    """Return the number of consumer groups that hold the progress of so many units, unset for one. A group has one
    coordinator, and one partition of __consumer_offsets: more groups spread the commits over brokers."""
    groups = min(math.ceil(units / GROUP_UNITS), PROGRESS_GROUPS)
    return groups if groups > 1 else msgspec.UNSET


# Read the timestamps of segments that have none in the table (segments of the Java tool), before a restore is checked.


_TASK_BYTES = 64 << 20


@dataclass(frozen=True)
class ReadTimes:
    store: Store

    def __call__(self, task: Sequence[Segment], progress: ProgressSender) -> Iterator[Segment]:
        for segment in task:
            low = high = None
            for block in read_segment(self.store, segment):
                low = least(low, block.min_timestamp)
                high = greatest(high, block.max_timestamp)
                progress.add(len(block), block.nbytes)
            yield replace(segment, min_timestamp=low, max_timestamp=high)


def timed_ranges(
    ranges: Iterable[UnitRange], store: Store, spark: Spark, listener: ProgressListener
) -> list[UnitRange]:
    """Return ranges with the timestamps of all their segments. Segments without timestamps are read, by tasks."""
    all_ranges = list(ranges)
    unknown: list[Segment] = []
    for range_ in all_ranges:
        unknown += untimed(range_.segments)
    if not unknown:
        return all_ranges
    tasks = pack(unknown, attrgetter("bytes"), _TASK_BYTES, len(unknown))
    expected = sum(segment.count for segment in unknown)
    results = run_counted(spark, tasks, ReadTimes(store), listener, expected)
    timed = {segment.key: segment for segment in results}
    ranges_with_times: list[UnitRange] = []
    for range_ in all_ranges:
        segments = [timed.get(segment.key, segment) for segment in range_.segments]
        ranges_with_times.append(msgspec.structs.replace(range_, segments=tuple(segments)))
    return ranges_with_times


def _with_partitions(content: Content, change: Callable[[str, ArchivedPartition], ArchivedPartition]) -> Content:
    """Return the content with each partition as `change` makes it of its topic's name and itself."""
    topics: list[ArchivedTopic] = []
    for topic in content.topics:
        partitions = [change(topic.name, partition) for partition in topic.partitions]
        topics.append(replace(topic, partitions=tuple(partitions)))
    return replace(content, topics=tuple(topics))


# Count the records in windows by reading them.


class CountedRecords(NamedTuple):
    """The records of a partition in its window, in one of its segments."""

    source: TopicPartition
    records: int
    bytes: int


def count_range(store: Store, range_: UnitRange) -> CountedRecords:
    """Count the records of a range by reading them."""
    records = size = 0
    for step in read_range(store, range_):
        if step.block is not None:
            records += len(step.block)
            size += step.block.nbytes
    return CountedRecords(range_.source, records, size)


@dataclass(frozen=True)
class CountRecords:
    store: Store

    def __call__(self, task: Sequence[UnitRange], progress: ProgressSender) -> Iterator[CountedRecords]:
        for range_ in task:
            counted = count_range(self.store, range_)
            yield counted
            progress.add(counted.records, counted.bytes)


def with_counts(content: Content, count: Callable[[list[UnitRange]], Iterable[CountedRecords]]) -> Content:
    """`content` with exact counts of the records in its windows. `count` gets one range for each segment."""
    ranges: list[UnitRange] = []
    for topic in content.topics:
        for held in topic.partitions:
            if held.window is None:
                continue
            for segment in held.segments:
                range_ = UnitRange(
                    topic=topic.name,
                    partition=held.partition,
                    target=topic.name,
                    segments=(segment,),
                    window=held.window,
                )
                ranges.append(range_)
    sums: dict[TopicPartition, tuple[int, int]] = {}
    for source, records, size in count(ranges):
        records_before, size_before = sums.get(source, (0, 0))
        sums[source] = records_before + records, size_before + size

    def counted(topic: str, partition: ArchivedPartition) -> ArchivedPartition:
        if partition.window is None:
            return partition
        tp = TopicPartition(topic, partition.partition)
        return replace(partition, counted=sums.get(tp, (0, 0)))

    return _with_partitions(content, counted)


def count_by_tasks(
    ranges: list[UnitRange], store: Store, spark: Spark, listener: ProgressListener
) -> list[CountedRecords]:
    """Count the records of ranges of one segment each, by tasks on Spark."""

    def size_of(range_: UnitRange) -> int:
        return range_.segments[0].bytes

    tasks = pack(ranges, size_of, _TASK_BYTES, max(1, len(ranges)))
    expected = sum(range_.segments[0].count for range_ in ranges)
    return run_counted(spark, tasks, CountRecords(store), listener, expected)


# Select the content of an archive for a restore, and plan the restore.


def select_content(request: RestoreRequest, store: Store, archive: Archive | None = None) -> Content:
    """Return the selected topics, times and offsets of the archive, or of the Java tool's folder. `archive` is the
    archive in `store`, if the caller has it open."""
    request.check_selection()
    selection = request.topics
    if request.ranges:
        names = {range_.topic for range_ in request.ranges}
        selection = Selection(tuple(sorted(names)))
    archive = archive or open_archive_or_folder(store)
    if archive is None:
        return _select_of_folder(request, store, selection)
    return _select_of_archive(request, archive, selection)


def _select_of_folder(request: RestoreRequest, store: Store, selection: Selection) -> Content:
    """Select from a folder of the Java tool, which has neither restore points nor topics beside its records."""
    names = _named(selection, java_topics(store), [], f"the folder {store.url}")
    choice = Choice(
        from_time=request.window.from_time,
        to_time=request.window.to_time,
        ranges=tuple(str(range_) for range_ in request.ranges),
        notes=(NO_POINTS,),
    )
    return _cut(request, java_content(store, names), choice, {})


def _select_of_archive(request: RestoreRequest, archive: Archive, selection: Selection) -> Content:
    window, ranges = request.window, request.ranges
    view = view_of(archive, request.restore_point, window)
    where = "the archive at that time"
    if view.as_of is not None:
        where = f"restore point {view.as_of}"
    offered = [topic.name for topic in view.topics]
    selected = set(_named(selection, offered, view.others, where))
    known = [*view.topics, *view.others.values()]
    topics = [topic for topic in known if topic.name in selected]
    left_out: list[str] = []
    for name, words in view.excluded.items():
        is_selected_otherwise = name in selected and name in view.others
        if selection.matches(name) and not is_selected_otherwise:
            left_out.append(words)
    content = content_at(archive, view, topics)
    open_ended = {(range_.topic, range_.partition) for range_ in ranges if range_.end is None}

    def wants_end(topic: str, partition: int) -> bool:
        """Return whether the records of a partition are wanted up to its end."""
        return not ranges or (topic, partition) in open_ended

    left_out += not_reached(archive, view, content, window.to_time, wants_end)
    if ranges:
        left_out += _beside(content, ranges)
    range_texts = [str(range_) for range_ in ranges]
    choice = choice_of(view, window, range_texts, left_out)
    # A topic keeps the partitions that it had then, even those without a record in the window: their number decides to
    # which one a key goes.
    least_partitions = {topic.name: len(topic.partitions) for topic in topics}
    cut = _cut(request, content, choice, least_partitions)
    if window.timed:
        cut = _with_empty_window(cut, content)
    return cut


def _with_empty_window(cut: Content, content: Content) -> Content:
    """Return the `cut` content with a note if no record of `content` is in its window."""
    low, high = span(topic.timestamps for topic in content.topics)
    has_segments = any(topic.segments for topic in cut.topics)
    if has_segments or cut.choice is None or low is None or high is None:
        return cut
    note = f"no record is in this window: the records of these topics are from {time_text(low)} to {time_text(high)}"
    choice = msgspec.structs.replace(cut.choice, left_out=(*cut.choice.left_out, note))
    return replace(cut, choice=choice)


def _named(selection: Selection, offered: Iterable[str], others: Container[str], where: str) -> list[str]:
    """Return the selected topics of `offered`, and the topics of `others` that are selected by name."""
    names = set(offered)
    names.update(name for name in selection.names if name in others)
    check_selection(selection, "topic", names, f"in {where}", "see 'kbackup info'")
    return selection.topics(names)


def _beside(content: Content, ranges: Sequence[Range]) -> Iterator[str]:
    """Name the partitions of topics with a range that have none themselves."""
    selected = {(range_.topic, range_.partition) for range_ in ranges}
    for topic in content.topics:
        others: list[str] = []
        for held in topic.partitions:
            if held.segments and (topic.name, held.partition) not in selected:
                others.append(str(held.partition))
        if others:
            yield f"{topic.name}: its partitions {join_names(others, 10)} are not restored: --range names others"


def _cut(request: RestoreRequest, content: Content, choice: Choice, least: Mapping[str, int]) -> Content:
    """Return the content inside the window and without the skipped records; all of it without a window."""
    window, ranges, skips = request.window, request.ranges, request.skips
    if not (ranges or skips or window.timed or window.where):
        return content
    selected = check_ranges(content, ranges)
    skipped = check_ranges(content, skips, "--skip")

    def window_of(topic: str, partition: int) -> Window:
        tp = TopicPartition(topic, partition)
        offsets: Offsets | None = None
        if ranges:
            # With --range, a partition that none of them names is not restored at all.
            offsets = selected.get(tp, ())
        if tp in skipped:
            before = EVERY_OFFSET if offsets is None else offsets
            offsets = without(before, skipped[tp])
        return msgspec.structs.replace(window, ranges=offsets)

    skipped_texts = tuple(str(skip) for skip in skips)
    choice = msgspec.structs.replace(choice, skipped=skipped_texts, where=window.where)
    return narrowed(content, window_of, least, choice)


def check_ranges(content: Content, ranges: Sequence[Range], option: str = "--range") -> dict[TopicPartition, Offsets]:
    """Return disjoint and rising ranges of offsets by partition. `UsageError` for a partition that is not archived, and
    for a bound outside of the archived offsets."""
    archived: dict[TopicPartition, ArchivedPartition] = {}
    for topic in content.topics:
        for held in topic.partitions:
            archived[TopicPartition(topic.name, held.partition)] = held
    bounds: dict[TopicPartition, list[tuple[int, int]]] = {}
    for selected in ranges:
        tp = TopicPartition(selected.topic, selected.partition)
        partition = archived.get(tp)
        if partition is None:
            raise _unknown_range(content, selected, option)
        start = partition.start if selected.start is None else selected.start
        end = partition.end if selected.end is None else selected.end
        is_beyond = start < partition.start or end > partition.end or start > end
        # A range from the archived end on has no record. Of an empty partition, a range can have none anyway.
        has_none = start == end and partition.end > partition.start
        if is_beyond or has_none:
            raise UsageError(
                f"{option} {selected}: {tp} is archived from {partition.start} to {partition.end} (exclusive)",
                "keep to that, or leave out the side that goes beyond it",
            )
        bounds.setdefault(tp, []).append((start, end))
    return {tp: joined(of_partition) for tp, of_partition in bounds.items()}


def _unknown_range(content: Content, selected: Range, option: str) -> UsageError:
    """Return the error of a range whose topic or partition is not archived."""
    partitions = {topic.name: len(topic.partitions) for topic in content.topics}
    count = partitions.get(selected.topic, 0)
    if not count:
        hint = suggest_name(selected.topic, partitions, "see 'kbackup info' for what there is")
        return UsageError(f"{option} {selected}: topic {selected.topic} is not restored", hint)
    return UsageError(
        f"{option} {selected}: topic {selected.topic} has no partition {selected.partition}",
        f"use one of its {count} archived partition(s), numbered from 0",
    )


def plan_restore(request: RestoreRequest, content: Content, cluster_id: str) -> RestorePlan:
    """Plan a restore. Raise `UsageError` or `RefusedError` for names that match nothing, are not legal, or collide."""
    names = {topic.name: request.names.target_of(topic.name) for topic in content.topics}
    check_names_match(request, names)
    check_names(names)
    if request.strict and content.damaged:
        raise RefusedError(
            f"the archive lacks {content.damaged[0].message}",
            "restore without --strict, or another restore point; see 'kbackup info'",
        )
    selection = request.groups
    check_groups(content, names, selection, request.group_names)
    groups = map_groups(content, names, selection, request.group_names)
    not_carried: dict[str, str] = {}
    if selection is not None:
        not_carried = {group: why for group, why in content.not_carried.items() if selection.matches(group)}
    topics: list[PlannedTopic] = []
    for topic in content.topics:
        topics.append(plan_topic(topic, names[topic.name], request.topic_config, request.replication_factor))
    units = make_units(content, names, request.transactions, request.same_offsets)
    # Without transactions no progress is committed, so there are no groups to hold it.
    groups_of_progress: int | msgspec.UnsetType = msgspec.UNSET
    if request.transactions:
        groups_of_progress = progress_groups(len(units))
    damaged = [loss_finding(loss.message) for loss in content.damaged]
    transform: TransformRef | msgspec.UnsetType = msgspec.UNSET
    if request.transform is not None:
        transform = request.transform.ref
    return RestorePlan(
        restore_id=request.restore_id,
        archive_id=content.archive_id,
        restore_point=content.restore_point,
        choice=content.choice,
        target_cluster_id=cluster_id,
        created_at=now(),
        transactions=request.transactions,
        transaction_bytes=request.transaction_bytes,
        into_existing=request.into_existing,
        topics=tuple(topics),
        units=units,
        groups=groups,
        settings=request.settings,
        options=given_options(request.given),
        damaged=tuple(damaged),
        not_carried=not_carried,
        progress_groups=groups_of_progress,
        transform=transform,
    )


def check_names_match(request: RestoreRequest, names: Mapping[str, str]) -> None:
    """Raise `UsageError` if no topic is restored, or if a new name or a rule is of no restored topic. `names` are the
    names on the target by those in the archive."""
    if not names:
        times = {"--from-time": request.given.from_time, "--to-time": request.given.to_time}
        window = " and ".join(f"{option} {text}" for option, text in times.items() if text)
        problem = "no topic of the archive matches"
        if window:
            problem = f"no selected topic has records with {window}"
        raise UsageError(problem, "run 'kbackup info' to see topics and the times of their records")
    see_info = "see 'kbackup info' for what there is"
    for unknown in sorted(request.names.exact.keys() - names.keys()):
        hint = suggest_name(unknown, names, see_info)
        raise UsageError(f"--map names topic {unknown}, which is not restored", hint)
    for rule in request.names.rules:
        if not any(rule.pattern.search(name) for name in names):
            hint = suggest_name(rule.pattern.pattern, names, see_info)
            raise UsageError(f"--map-regex {rule.text!r} matches no topic that is restored", hint)
