"""Plan a restore: names on the target, windows of time, and units of work. Pure."""

from __future__ import annotations

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
    view_of,
)
from kbackup.archive.query.java import java_content, java_topics, open_archive_or_folder
from kbackup.archive.query.overview import not_reached
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import PlannedTopic, RestorePlan, UnitRange
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment, sum_of, untimed
from kbackup.archive.segments.window import EVERY_OFFSET, Choice, Window, joined, without
from kbackup.archive.segments.writer import greatest, least
from kbackup.config.windows import Range
from kbackup.errors import RefusedError, UsageError, suggest_name
from kbackup.jobs.groups.plan import check_groups, map_groups
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.request import RestoreRequest, given_options
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store
from kbackup.types import Offsets, TopicPartition
from kbackup.util.text import join_names
from kbackup.util.times import now

UNIT_BYTES = 32 << 20
UNIT_PARTITIONS = 64
GROUP_UNITS = 64
PROGRESS_GROUPS = 50
"""At most so many: the partitions of __consumer_offsets, unless a cluster has another number."""
_LEGAL = re.compile(r"^[a-zA-Z0-9._-]{1,249}$")


def check_names(names: Mapping[str, str]) -> None:
    """Raise `RefusedError` unless every target name is legal and no two topics go to the same one."""
    taken: dict[str, str] = {}
    for source, target in names.items():
        if not _LEGAL.match(target) or target in (".", ".."):
            raise RefusedError(
                f"topic {source} can't be restored as {target!r}",
                "map it to a name of letters, digits, '.', '_' and '-', at most 249",
            )
        if target in taken:
            raise RefusedError(
                f"topics {taken[target]} and {source} would both become {target}", "map one of them elsewhere"
            )
        taken[target] = source


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
    """Return the configs of a topic with those that were `given` by option, without the ones given as empty."""
    kept = {name: value for name, value in configs.items() if name not in given}
    return kept | {name: value for name, value in given.items() if value}


def make_units(
    content: Content, names: Mapping[str, str], transactions: bool = True
) -> tuple[tuple[UnitRange, ...], ...]:
    """Return partitions with records, big ones alone, small ones sharing a producer; the biggest first. Without
    `transactions`, only partitions of one topic share: where a topic fails, nobody knows how far the others came."""
    parts: list[UnitRange] = []
    for topic in content.topics:
        for held in topic.partitions:
            if held.segments:
                part = UnitRange(
                    topic=topic.name,
                    partition=held.partition,
                    target=names[topic.name],
                    segments=held.segments,
                    window=held.window,
                )
                parts.append(part)
    sizes = {part.tp: sum_of(part.segments, "bytes") for part in parts}

    def size_of(part: UnitRange) -> int:
        return sizes[part.tp]

    def size_of_unit(unit: Sequence[UnitRange]) -> int:
        return sum(map(size_of, unit))

    # Neighbours share a unit: the offset map holds fewer of them back until their turn comes.
    parts.sort(key=lambda part: (size_of(part) >= UNIT_BYTES, part.tp))
    sharing = [parts]
    if not transactions:
        sharing = [list(of_topic) for _, of_topic in groupby(parts, lambda part: part.target)]
    units: list[tuple[UnitRange, ...]] = []
    for some in sharing:
        units += pack(some, size_of, UNIT_BYTES, UNIT_PARTITIONS)
    return tuple(sorted(units, key=size_of_unit, reverse=True))


def progress_groups(units: int) -> int | msgspec.UnsetType:
    """Return the number of consumer groups that hold the progress of so many units, unset for one. A group has one
    coordinator, and one partition of __consumer_offsets: more groups spread the commits over brokers."""
    groups = min(-(-units // GROUP_UNITS), PROGRESS_GROUPS)
    return groups if groups > 1 else msgspec.UNSET


# Read the timestamps of segments without any, as those of the Java tool, before a restore is checked.


_TASK_BYTES = 64 << 20


@dataclass(frozen=True)
class ReadTimes:
    store: Store

    def __call__(self, task: Sequence[Segment], progress: ProgressSender) -> Iterator[Segment]:
        for segment in task:
            low = high = None
            for block in read_segment(self.store, segment):
                low, high = least(low, block.min_timestamp), greatest(high, block.max_timestamp)
                progress.add(len(block), block.nbytes)
            yield replace(segment, min_timestamp=low, max_timestamp=high)


def timed_ranges(
    ranges: Iterable[UnitRange], store: Store, spark: Spark, listener: ProgressListener
) -> list[UnitRange]:
    """Return ranges with the timestamps of all their segments. Segments without are read, by tasks."""
    every = list(ranges)
    unknown = [segment for range_ in every for segment in untimed(range_.segments)]
    if not unknown:
        return every
    tasks = pack(unknown, attrgetter("bytes"), _TASK_BYTES, len(unknown))
    expected = sum(segment.count for segment in unknown)
    results = run_counted(spark, tasks, ReadTimes(store), listener, expected)
    timed = {segment.key: segment for segment in results}
    ranges_with_times: list[UnitRange] = []
    for range_ in every:
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
    ranges = [
        UnitRange(topic=t.name, partition=p.partition, target=t.name, segments=(s,), window=p.window)
        for t in content.topics
        for p in t.partitions
        if p.window is not None
        for s in p.segments
    ]
    sums: dict[TopicPartition, tuple[int, int]] = {}
    for source, records, size in count(ranges):
        before = sums.get(source, (0, 0))
        sums[source] = before[0] + records, before[1] + size

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
    window, ranges = request.window, request.ranges
    selection = request.topics
    if ranges:
        names = {each.topic for each in ranges}
        selection = Selection(tuple(sorted(names)))
    archive = archive or open_archive_or_folder(store)
    if archive is None:
        named = _named(selection, java_topics(store), [], f"the folder {store.url}")
        choice = Choice(
            from_time=window.from_time, to_time=window.to_time, ranges=tuple(map(str, ranges)), notes=(NO_POINTS,)
        )
        return _cut(request, java_content(store, named), choice, {})
    view = view_of(archive, request.restore_point, window)
    where = f"restore point {view.as_of}" if view.as_of is not None else "the archive at that time"
    offered = [topic.name for topic in view.topics]
    selected = set(_named(selection, offered, view.others, where))
    topics = [topic for topic in (*view.topics, *view.others.values()) if topic.name in selected]
    left_out: list[str] = []
    for name, words in view.excluded.items():
        if selection.matches(name) and not (name in selected and name in view.others):
            left_out.append(words)
    content = content_at(archive, view, topics)
    open_ended = {(each.topic, each.partition) for each in ranges if each.end is None}

    def wants_end(topic: str, partition: int) -> bool:
        """Return whether the records of a partition are wanted up to its end."""
        return not ranges or (topic, partition) in open_ended

    left_out += not_reached(archive, view, content, window.to_time, wants_end)
    if ranges:
        left_out += _beside(content, ranges)
    choice = choice_of(view, window, map(str, ranges), left_out)
    least = {topic.name: len(topic.partitions) for topic in topics}
    return _cut(request, content, choice, least)


def _named(selection: Selection, offered: Iterable[str], others: Container[str], where: str) -> list[str]:
    """Return the selected topics of `offered`, and the topics of `others` that are selected by name."""
    names = {*offered, *(n for n in selection.names if n in others)}
    check_selection(selection, "topic", names, f"in {where}", "see 'kbackup info'")
    return selection.topics(names)


def _beside(content: Content, ranges: Sequence[Range]) -> Iterator[str]:
    """Name the partitions of topics with a range that have none themselves."""
    selected = {(r.topic, r.partition) for r in ranges}
    for topic in content.topics:
        others = [
            str(p.partition) for p in topic.partitions if p.segments and (topic.name, p.partition) not in selected
        ]
        if others:
            yield f"{topic.name}: nothing of its partitions {join_names(others, 10)} is restored: --range names others"


def _cut(request: RestoreRequest, content: Content, choice: Choice, least: Mapping[str, int]) -> Content:
    """Return the content inside the window and without what is skipped; all of it without a window."""
    window, ranges, skips = request.window, request.ranges, request.skips
    if not (ranges or skips or window.timed or window.where):
        return content
    by_partition, skipped = check_ranges(content, ranges), check_ranges(content, skips, "--skip")

    def window_of(topic: str, partition: int) -> Window:
        tp = TopicPartition(topic, partition)
        selected = by_partition.get(tp, ()) if ranges else None
        if tp in skipped:
            selected = without(EVERY_OFFSET if selected is None else selected, skipped[tp])
        return msgspec.structs.replace(window, ranges=selected)

    choice = msgspec.structs.replace(choice, skipped=tuple(map(str, skips)), where=window.where)
    return narrowed(content, window_of, least, choice)


def check_ranges(content: Content, ranges: Sequence[Range], option: str = "--range") -> dict[TopicPartition, Offsets]:
    """Return disjoint and rising ranges of offsets by partition. `UsageError` for a partition that is not archived, and
    for a bound that lies outside of what is."""
    archived = {TopicPartition(t.name, p.partition): p for t in content.topics for p in t.partitions}
    bounds: dict[TopicPartition, list[tuple[int, int]]] = {}
    for selected in ranges:
        tp = TopicPartition(selected.topic, selected.partition)
        partition = archived.get(tp)
        if partition is None:
            count = sum(t.topic == tp.topic for t in archived)
            if not count:
                names = {t.name for t in content.topics}
                hint = suggest_name(tp.topic, names, "see 'kbackup info' for what there is")
                raise UsageError(f"{option} {selected}: topic {tp.topic} is not restored", hint)
            raise UsageError(
                f"{option} {selected}: topic {tp.topic} has no partition {tp.partition}",
                f"use one of its {count} archived partition(s), numbered from 0",
            )
        start = partition.start if selected.start is None else selected.start
        end = partition.end if selected.end is None else selected.end
        if start < partition.start or end > partition.end or start > end:
            raise UsageError(
                f"{option} {selected}: {tp} is archived from {partition.start} to {partition.end} (exclusive)",
                "keep to that, or leave out the side that goes beyond it",
            )
        bounds.setdefault(tp, []).append((start, end))
    return {tp: joined(each) for tp, each in bounds.items()}


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
    groups = request.groups
    check_groups(content, names, groups, request.group_names)
    topics: list[PlannedTopic] = []
    for topic in content.topics:
        topics.append(plan_topic(topic, names[topic.name], request.topic_config, request.replication_factor))
    units = make_units(content, names, request.transactions)
    not_carried: dict[str, str] = {}
    if groups is not None:
        not_carried = {group: why for group, why in content.not_carried.items() if groups.matches(group)}
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
        groups=map_groups(content, names, groups, request.group_names),
        settings=request.settings,
        options=given_options(request.given),
        damaged=tuple(f"loss: {loss.message}" for loss in content.damaged),
        not_carried=not_carried,
        progress_groups=progress_groups(len(units)) if request.transactions else msgspec.UNSET,
    )


def check_names_match(request: RestoreRequest, names: Mapping[str, str]) -> None:
    """Raise `UsageError` if no topic is restored, or if a new name or a rule is of none that is. `names` are those on
    the target by those in the archive."""
    given, see_info = request.given, "see 'kbackup info' for what there is"
    if not names:
        times = {"--from-time": given.from_time, "--to-time": given.to_time}
        windows = " and ".join(f"{option} {text}" for option, text in times.items() if text)
        raise UsageError(
            f"no selected topic has records with {windows}" if windows else "no topic of the archive matches",
            "run 'kbackup info' to see topics and the times of their records",
        )
    for unknown in sorted(set(request.names.exact) - set(names)):
        raise UsageError(f"--map names topic {unknown}, which is not restored", suggest_name(unknown, names, see_info))
    for rule in request.names.rules:
        if not any(map(rule.pattern.search, names)):
            hint = suggest_name(rule.pattern.pattern, names, see_info)
            raise UsageError(f"--map-regex {rule.text!r} matches no topic that is restored", hint)
