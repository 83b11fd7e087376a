"""What can be restored: topics with their segments and groups' offsets, of any kind of archive, as of a time or
restore point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from kbackup.archive.catalog.state import LogStart, PointRow
from kbackup.archive.deletions import deleted_offsets, deleted_records, unseen_warnings
from kbackup.archive.models import Group, GroupOffset, Loss, Manifest, PartitionState, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment, bounds, chosen, sum_of
from kbackup.archive.segments.window import EVERY_OFFSET, EVERYTHING, Choice, Window, without
from kbackup.errors import UsageError
from kbackup.metadata.entities import TopicMetadata
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import plural
from kbackup.util.times import ms_of, time_text


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """The offsets [`start`, `end`) of a partition, as far as `segments` hold them, in order. If there is a `window`,
    only records in the window are selected. `expired` counts records before `start` that were in the archive once.
    `counted` are the records and bytes in the window, if somebody has read the segments to count them."""

    partition: int
    start: int
    end: int
    segments: Sequence[Segment]
    window: Window | None = None
    expired: int = 0
    counted: tuple[int, int] | None = None

    @property
    def exact(self) -> bool:
        """False if `records` is an upper bound, as it is in most windows."""
        if self.window is None or self.counted is not None:
            return True
        return all(map(self.window.counts, self.segments))

    @property
    def records(self) -> int:
        """Return the number of records; unless it is `exact`, an upper bound."""
        if self.counted is not None:
            return self.counted[0]
        if self.window is None:
            return sum_of(self.segments, "count")
        return sum(map(self.window.at_most, self.segments))

    @property
    def bytes(self) -> int:
        """Return the bytes of the records; all bytes of their segments if the records in a window were not counted."""
        if self.counted is not None:
            return self.counted[1]
        return sum_of(self.segments, "bytes")

    @property
    def timestamps(self) -> tuple[int | None, int | None]:
        """Return the least and the greatest timestamp, as far as they are known; bounds on them if there is a
        window."""
        low, high = bounds(self.segments, "min_timestamp", "max_timestamp")
        if self.window is None:
            return low, high
        return self.window.clip(low, high)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedTopic:
    """A topic with its partitions. `as_of` is the restore point that captured the topic. `configs` and
    `replication_factor` are None if they are unknown."""

    name: str
    incarnation: int
    as_of: int
    state: str
    partitions: tuple[ArchivedPartition, ...]
    configs: dict[str, str] | None
    replication_factor: int | None

    @property
    def key(self) -> Incarnation:
        return self.name, self.incarnation

    @property
    def segments(self) -> list[Segment]:
        segments: list[Segment] = []
        for partition in self.partitions:
            segments += partition.segments
        return segments

    @property
    def timestamps(self) -> tuple[int | None, int | None]:
        return span(partition.timestamps for partition in self.partitions)


def span(bounds: Iterable[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Return the least lower bound and the greatest upper bound that are known."""
    lows: list[int] = []
    highs: list[int] = []
    for low, high in bounds:
        if low is not None:
            lows.append(low)
        if high is not None:
            highs.append(high)
    return min(lows, default=None), max(highs, default=None)


@dataclass(frozen=True, slots=True)
class Content:
    """The selected part of an archive.

    `groups` have only their offsets of these topics. `not_carried` gives, by group, why a capture is without the group.
    `restore_point` is 0 for a folder of the Java tool, and `warnings` then name torn files. `choice` is set if a window
    was requested. `damaged` are the losses by damage of selected records.
    """

    archive_id: str
    restore_point: int
    topics: tuple[ArchivedTopic, ...]
    groups: dict[str, Group]
    losses: tuple[str, ...] = ()
    choice: Choice | None = None
    not_carried: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    damaged: tuple[Loss, ...] = ()


def content_of(
    archive: Archive, manifest: Manifest, topics: Sequence[TopicState], groups: Sequence[TopicState] | None = None
) -> Content:
    """Return `topics` with all segments up to a restore point. A topic that the restore point's run did not capture is
    as of the run that did. The groups' offsets are from the captures of the topics in `groups`, by default of
    `topics`."""
    segments = archive.partitions(manifest, topics)
    # The document of each capture is read once, for all topics that are as of it.
    metadata: dict[int, dict[str, TopicMetadata]] = {}
    captures = {topic.captured for topic in topics}
    for number in captures:
        metadata[number] = {topic.name: topic for topic in archive.metadata(number).topics}
    archived: list[ArchivedTopic] = []
    for topic in topics:
        known = metadata[topic.captured].get(topic.name)
        own_segments = segments.get(_key(topic), {})
        archived.append(topic_of(topic, known, own_segments, archive.state.starts))
    selected = {_key(topic) for topic in topics}
    if groups is None:
        groups = topics
    with_groups = [topic for topic in groups if _key(topic) in selected]
    captured, not_carried = captured_groups(archive, with_groups)
    damaged: list[Loss] = []
    for row in archive.state.damage:
        if row.point <= manifest.number and row.incarnation_key in selected:
            damaged.append(row.loss)
    damaged.sort(key=lambda loss: (loss.topic, loss.partition, loss.start))
    losses = [loss.message for loss in archive.losses(manifest)]
    return Content(
        archive.info.id,
        manifest.number,
        tuple(archived),
        captured,
        losses=tuple(losses),
        not_carried=not_carried,
        damaged=tuple(damaged),
    )


def narrowed(
    content: Content, window_of: Callable[[str, int], Window], fewest: Mapping[str, int], choice: Choice
) -> Content:
    """Return the content cut to the window of each topic and partition. Of the partitions beyond the first
    `fewest[topic]`, those at the end without records in their window are left out: the topic may not have had them at
    that time."""
    topics: list[ArchivedTopic] = []
    for topic in content.topics:
        partitions: list[ArchivedPartition] = []
        for partition in topic.partitions:
            window = window_of(topic.name, partition.partition)
            partitions.append(_in_window(partition, window))
        # Only from the end: Kafka numbers partitions without gaps, so none can be left out between others.
        while len(partitions) > fewest.get(topic.name, len(partitions)) and not partitions[-1].segments:
            partitions.pop()
        topics.append(replace(topic, partitions=tuple(partitions)))
    damaged: list[Loss] = []
    for loss in content.damaged:
        window = window_of(loss.topic, loss.partition or 0)
        if _may_lie_in(window, loss):
            damaged.append(loss)
    return replace(content, topics=tuple(topics), choice=choice, damaged=tuple(damaged))


def _in_window(partition: ArchivedPartition, window: Window) -> ArchivedPartition:
    """Return the partition with the segments that may have records in the window."""
    if partition.window is not None:  # without the records that are left out in any case
        window = window.inside(partition.window)
    if window == EVERYTHING:
        return partition
    return replace(partition, segments=chosen(partition.segments, window.may_hold), window=window)


def _may_lie_in(window: Window, loss: Loss) -> bool:
    """Return whether lost records may lie in the window. Nobody knows their times: the offsets alone decide."""
    if window.ranges is None:
        return True
    # A loss of a whole topic has no offsets: any record may be in it.
    start = loss.start or 0
    end = 1 << 63 if loss.end is None else loss.end
    return any(low < end and start < high for low, high in window.ranges)


def without_deleted(content: Content, archive: Archive, manifest: Manifest) -> Content:
    """Return the content without the archived records whose keys were deleted at the source, as far as the restore
    point of `manifest` knows. Warnings name these records, and deletions that the restore point may have missed."""
    # As a window, not by other segments: the records are in the archive, and earlier restore points have them.
    deletions = archive.deletions(manifest)
    offsets = deleted_offsets(deletions)
    records = deleted_records(deletions)
    topics: list[ArchivedTopic] = []
    warnings: list[str] = []
    for topic in content.topics:
        partitions: list[ArchivedPartition] = []
        for partition in topic.partitions:
            skipped = offsets.get((topic.name, topic.incarnation, partition.partition), ())
            if skipped:
                window = Window(ranges=without(EVERY_OFFSET, skipped))
                partition = replace(partition, window=window)
            partitions.append(partition)
        topics.append(replace(topic, partitions=tuple(partitions)))
        if topic.key in records:
            warnings.append(
                f"topic {topic.name}: {plural(records[topic.key], 'archived record')} left out: their keys were "
                "deleted at the source, by deletions that no backup saw"
            )
    selected = {topic.name for topic in content.topics}
    states = [topic for topic in manifest.topics if topic.name in selected]
    warnings += unseen_warnings(states)
    return replace(content, topics=tuple(topics), warnings=content.warnings + tuple(warnings))


def topic_of(
    state: TopicState,
    known: TopicMetadata | None,
    segments: Mapping[int, Sequence[Segment]],
    starts: Mapping[IncarnationPartition, LogStart] = MappingProxyType({}),
) -> ArchivedTopic:
    """Return a topic with `segments` by partition, which may be of later runs as well, and without records before the
    log `starts`."""
    states = {partition.partition: partition for partition in state.partitions}
    # Later runs may have seen more partitions. Kafka numbers partitions from 0 without gaps.
    with_segments = range(max(segments, default=-1) + 1)
    partitions: list[ArchivedPartition] = []
    for number in sorted(states.keys() | with_segments):
        own_segments = segments.get(number, ())
        log_start = starts.get((state.name, state.incarnation, number))
        partitions.append(_partition_of(number, states.get(number), own_segments, log_start))
    configs: dict[str, str] | None = None
    replication_factor: int | None = None
    if known is not None:
        configs, replication_factor = known.configs, known.replication_factor
    return ArchivedTopic(
        name=state.name,
        incarnation=state.incarnation,
        as_of=state.captured,
        state=state.state,
        partitions=tuple(partitions),
        configs=configs,
        replication_factor=replication_factor,
    )


def _partition_of(
    number: int, state: PartitionState | None, segments: Sequence[Segment], log_start: LogStart | None
) -> ArchivedPartition:
    """Return a partition. `state` is None if only later runs saw it, and `log_start` None if nothing has expired."""
    start = end = 0
    if state is not None:
        start, end = state.start, state.end
    elif segments:
        start = segments[0].first
    expired = 0
    if log_start is not None:
        if log_start.start <= end:
            expired = log_start.records
        elif state is not None:
            # more expired than the partition had then: all of its records did
            expired = state.records
        start = min(max(start, log_start.start), max(start, end))
    last = end
    if segments:
        last = max(end, segments[-1].last + 1)
    return ArchivedPartition(number, start, last, segments, expired=expired)


def captured_groups(archive: Archive, topics: Sequence[TopicState]) -> tuple[dict[str, Group], dict[str, str]]:
    """Return the groups with their offsets of `topics`, and the reasons why a capture lacks a group, by group. Offsets
    of a topic come from the run that captured the topic. Type and state of a group are the newest."""
    newest: dict[str, Group] = {}
    offsets: dict[str, list[GroupOffset]] = defaultdict(list)
    not_carried: dict[str, str] = {}
    names_by_capture: dict[int, set[str]] = defaultdict(set)
    for topic in topics:
        names_by_capture[topic.captured].add(topic.name)
    for number, captured in sorted(names_by_capture.items()):  # rising, so that the newest comes last
        document = archive.groups(number)
        for name, why in document.not_carried.items():
            not_carried[name] = f"restore point {number} does not have it: {why}"
        for group in document.groups:
            ours = [offset for offset in group.offsets if offset.topic in captured]
            if ours:
                newest[group.group] = group
                offsets[group.group] += ours
    groups: dict[str, Group] = {}
    for name, group in sorted(newest.items()):
        groups[name] = with_offsets(group, offsets[name])
    return groups, not_carried


def with_offsets(group: Group, offsets: Iterable[GroupOffset]) -> Group:
    """Return the group with other offsets, in order of topic and partition."""
    in_order = sorted(offsets, key=lambda offset: (offset.topic, offset.partition))
    return msgspec.structs.replace(group, offsets=tuple(in_order))


# Select the topics and groups of a moment: by which restore point, and why.
#
# `--to-time` of `restore` and of `info` both select here.
#
# Records are selected by their own timestamps, from every run: a record that came late is in a much later segment.
# Topics and groups have no timestamps. They are as of the newest restore point that was captured by then.

NO_POINTS = "a folder of the Java tool has no restore points: topics and groups are as they stand there"


@dataclass(frozen=True, slots=True)
class View:
    """The topics and groups of a moment.

    `topics` are the topics that existed then. `others` are restored only if they are asked for by name: they were
    deleted by then, or first captured later. Records come from the runs up to `upto`. `groups` are topics as of the
    captures that have their groups' offsets. `as_of` and `groups_as_of` are restore points, or None if there is none.
    `excluded` describes, by topic, what is left out though it has records in the window.
    """

    upto: Manifest
    topics: tuple[TopicState, ...]
    others: Mapping[str, TopicState]
    groups: tuple[TopicState, ...]
    as_of: int | None
    groups_as_of: int | None
    captured_at: str | None
    notes: tuple[str, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)


def view_of(archive: Archive, point_name: str | int, window: Window) -> View:
    """Return the view of restore point `point_name`, if `window` has no end in time. With an end, 'latest' stands for
    the restore points that the moment needs; a number or a label stands for the topics and segments of that restore
    point."""
    upto = archive.restore_point(point_name)
    point: Manifest | None = upto
    at: str | None
    if window.to_time is None:
        at = archive.groups(upto).captured_at
        notes = [f"topics and groups are those of restore point {upto.number}, captured at {at}"]
    else:
        points = [row for row in archive.restore_points if row.number <= upto.number]
        point, at, note = captured_by(archive, points, window.to_time)
        if point is None:
            _check_not_before(archive, points, window.to_time)
        # Whoever names a restore point means its topics, whatever there was at the moment.
        if str(point_name) == "latest":
            return _at(archive, upto, points, point, at, note, window)
        notes = [f"topics are those of restore point {upto.number}, which was asked for", note]
    existing: list[TopicState] = []
    deleted: dict[str, TopicState] = {}
    for topic in upto.topics:
        if topic.state == "deleted":
            deleted[topic.name] = topic
        else:
            existing.append(topic)
    groups: tuple[TopicState, ...] = ()
    groups_as_of: int | None = None
    if point is not None:
        groups, groups_as_of = point.topics, point.number
    return View(
        upto=upto,
        topics=tuple(existing),
        others=deleted,
        groups=groups,
        as_of=upto.number,
        groups_as_of=groups_as_of,
        captured_at=at,
        notes=tuple(notes),
    )


def content_at(archive: Archive, view: View, topics: Sequence[TopicState]) -> Content:
    """Return `topics` of the view, not cut to a window yet, without the records whose keys were deleted at the source
    by then."""
    by_name = sorted(topics, key=lambda topic: topic.name)
    content = content_of(archive, view.upto, by_name, view.groups)
    if view.as_of is None:
        # the moment lies before all restore points: the oldest is the next one
        return replace(content, restore_point=archive.restore_points[0].number)
    content = without_deleted(content, archive, archive.restore_point(view.as_of))
    return replace(content, restore_point=view.as_of)


def choice_of(view: View, window: Window, ranges: Iterable[str], excluded: Iterable[str]) -> Choice:
    return Choice(
        from_time=window.from_time,
        to_time=window.to_time,
        ranges=tuple(ranges),
        as_of=view.as_of,
        groups_as_of=view.groups_as_of,
        groups_captured_at=view.captured_at,
        notes=view.notes,
        left_out=tuple(excluded),
    )


def _check_not_before(archive: Archive, points: Sequence[PointRow], moment: int) -> None:
    """Raise `UsageError` for a moment, earlier than all `points`, at which no archived record was there either."""
    # A point in time between the earliest record and the first restore point is one that can be restored.
    stamps: list[int] = []
    for (stamp,) in archive.state.segments.rows("min_timestamp"):
        if stamp is not None:
            stamps.append(stamp)
    earliest = min(stamps, default=None)
    if earliest is not None and earliest <= moment:
        return
    begins = f"its oldest restore point is of {points[0].started_at}"
    if earliest is not None:
        begins += f", its earliest record of {time_text(earliest)}"
    raise UsageError(
        f"{time_text(moment)} is before the archive begins: {begins}",
        "give a later time; 'kbackup info' shows the times of the records",
    )


def captured_by(archive: Archive, points: Sequence[PointRow], moment: int) -> tuple[Manifest | None, str | None, str]:
    """Return the newest of `points` whose groups were captured by `moment`, the time of that capture, and both in
    words. A backup captures groups before it looks up the ends of partitions, so no group is ahead of the records."""
    for point in reversed(points):
        if ms_of(point.started_at) > moment:  # its groups were captured later still: the document is not read
            continue
        at = archive.groups(point.number).captured_at
        if ms_of(at) <= moment:
            note = (
                f"groups are as of restore point {point.number}, captured at {at}: "
                f"the newest at or before {time_text(moment)}"
            )
            return archive.restore_point(point.number), at, note
    note = f"no restore point was captured at or before {time_text(moment)}: there are no groups of that time"
    return None, None, note


def _at(
    archive: Archive,
    upto: Manifest,
    points: Sequence[PointRow],
    point: Manifest | None,
    at: str | None,
    note: str,
    window: Window,
) -> View:
    """Return the view of a moment by `point`, the newest of `points` that was captured by then (None: there is none),
    and by the restore point after that one, which shows what began in between."""
    then = point.topics if point is not None else ()
    existing = {topic.name: topic for topic in then if topic.state != "deleted"}
    # A topic that began after `point` is first seen by the restore point after that one. Only such a topic can have
    # existed at the moment; what later restore points found began later still.
    next_number = _number_after(points, point)
    first: dict[Incarnation, TopicState] = {}
    if next_number is not None:
        for topic in archive.restore_point(next_number).topics:
            if topic.captured == next_number:
                first[_key(topic)] = topic
    # What the next restore point has takes the place of what `upto` has: it is nearer to the moment.
    later = {_key(topic): topic for topic in upto.topics} | first
    for topic in then:
        later.pop(_key(topic), None)
    within = _with_records_in(archive, upto, list(later.values()), window)
    new: dict[str, TopicState] = {}
    for key, topic in later.items():
        if key in first and key in within and topic.name not in existing:
            new[topic.name] = topic
    notes = [note]
    if point is not None:
        notes.insert(0, f"topics are as of restore point {point.number}")
    if new:
        notes.append(
            f"topics that restore point {next_number}, the next one, captured first, with records in the window: "
            f"{', '.join(sorted(new))}"
        )
    selected = existing | new
    # of a name that has several incarnations, the one of that time comes last, and counts
    others: dict[str, TopicState] = {}
    for topic in [*later.values(), *then]:
        if topic.name not in selected:
            others[topic.name] = topic
    number = None if point is None else point.number
    within_window = [later[key] for key in sorted(within)]
    return View(
        upto=upto,
        topics=tuple(selected.values()),
        others=others,
        groups=then,
        as_of=number,
        groups_as_of=number,
        captured_at=at,
        notes=tuple(notes),
        excluded=_excluded(within_window, selected, others),
    )


def _number_after(points: Sequence[PointRow], point: Manifest | None) -> int | None:
    """Return the number of the restore point after `point`, or of the oldest if there is no `point`; None if no restore
    point is left."""
    for each in points:
        if point is None or each.number > point.number:
            return each.number
    return None


def _with_records_in(
    archive: Archive, upto: Manifest, topics: Sequence[TopicState], window: Window
) -> set[Incarnation]:
    """Return the topics that have a segment which may have records in the window."""
    within: set[Incarnation] = set()
    for segment in archive.segments(upto, topics):
        # a segment without timestamps doesn't show when the topic existed
        if segment.min_timestamp is not None and window.may_hold(segment):
            within.add((segment.topic, segment.incarnation))
    return within


def _excluded(
    within: Sequence[TopicState], selected: Mapping[str, TopicState], others: Mapping[str, TopicState]
) -> dict[str, str]:
    """Describe, by topic, what is left out of the later topics `within` the window."""
    excluded: dict[str, str] = {}
    for topic in within:
        name = topic.name
        if others.get(name) == topic:
            excluded[name] = (
                f"topic {name} was first captured later and has records in the window: "
                "it is restored where it is asked for by name"
            )
        elif selected.get(name) != topic:
            of_that_time = selected.get(name) or others[name]
            excluded[name] = (
                f"topic {name} was created again later (incarnation {topic.incarnation}), with records in the window: "
                f"incarnation {of_that_time.incarnation} is of that time; to restore the later one, name its restore "
                "point with --restore-point"
            )
    return excluded


def _key(topic: TopicState) -> Incarnation:
    return topic.name, topic.incarnation
