"""Consumer groups of a restore point: members' topics, offsets, and their lag over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kbackup.archive.catalog.points import PointOverview
from kbackup.archive.models import Group, GroupOffset, Manifest, TopicState
from kbackup.archive.query.content import captured_groups
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.reader import Archive
from kbackup.errors import CorruptError
from kbackup.store.base import Store
from kbackup.util.times import ms_of


@dataclass(frozen=True, slots=True)
class ArchivedGroups:
    """The groups of a restore point. `restore_point` is 0 and `captured_at` None for a folder of the Java tool.
    `not_carried` gives, by group, why the restore point lacks the group."""

    restore_point: int
    captured_at: str | None
    groups: tuple[Group, ...]
    not_carried: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stand:
    """A committed offset. `offset` is the next to read. `lag` counts the archived offsets from there on: between the
    partition's first archived offset and its end."""

    topic: str
    partition: int
    offset: int
    lag: int
    leader_epoch: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group with its offsets. `type` and `state` are '' if they are not known."""

    group: str
    type: str
    state: str
    partitions: int
    lag: int
    offsets: tuple[Stand, ...]


@dataclass(frozen=True, slots=True)
class GroupsOverview:
    archive: str
    restore_point: int
    captured_at: str | None
    groups: tuple[GroupOverview, ...]
    not_carried: dict[str, str]


def groups_at(archive: Archive, manifest: Manifest, topics: Sequence[TopicState]) -> ArchivedGroups:
    """Return the groups with their offsets of `topics` at a restore point."""
    own = archive.groups(manifest)
    groups, _ = captured_groups(archive, topics)
    return ArchivedGroups(
        restore_point=manifest.number,
        captured_at=own.captured_at,
        groups=tuple(groups.values()),
        not_carried=own.not_carried,
    )


def java_groups(store: Store, topics: Sequence[str]) -> ArchivedGroups:
    """Return the groups with their offsets of `topics` in a folder of the Java tool."""
    content = java_content(store, topics)
    groups = tuple(content.groups.values())
    return ArchivedGroups(restore_point=0, captured_at=None, groups=groups, not_carried={})


def groups_overview(archive: Archive, manifest: Manifest) -> GroupsOverview:
    """Sum up the groups of a restore point, without topics that were deleted at the source by then."""
    existing = [topic for topic in manifest.topics if topic.state != "deleted"]
    archived: dict[tuple[str, int], tuple[int, int]] = {}
    for topic in existing:
        for partition in topic.partitions:
            start = partition.start
            log_start = archive.state.starts.get((topic.name, topic.incarnation, partition.partition))
            if log_start is not None:
                start = max(start, log_start.start)
            archived[topic.name, partition.partition] = (start, partition.end)
    groups = groups_at(archive, manifest, existing)
    return _overview(archive.store, groups, archived)


def java_groups_overview(store: Store) -> GroupsOverview:
    """Sum up the groups of a folder of the Java tool."""
    content = java_content(store, java_topics(store))
    offsets: dict[tuple[str, int], tuple[int, int]] = {}
    for topic in content.topics:
        for partition in topic.partitions:
            offsets[topic.name, partition.partition] = (partition.start, partition.end)
    groups = java_groups(store, [topic.name for topic in content.topics])
    return _overview(store, groups, offsets)


def _overview(
    store: Store, archived: ArchivedGroups, offsets: Mapping[tuple[str, int], tuple[int, int]]
) -> GroupsOverview:
    """Sum up groups. `offsets` are, by topic and partition, the first archived offset and the end."""

    def stand(committed: GroupOffset) -> Stand:
        offset = committed.offset
        start, end = offsets.get((committed.topic, committed.partition), (offset, offset))
        # What retention deleted before it was archived, or what has expired from the archive, can't be read any more.
        lag = max(0, end - max(offset, start))
        return Stand(
            topic=committed.topic,
            partition=committed.partition,
            offset=offset,
            lag=lag,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )

    groups: list[GroupOverview] = []
    for group in archived.groups:
        stands = tuple(map(stand, group.offsets))
        shown = GroupOverview(
            group=group.group,
            type=group.type,
            state=group.state,
            partitions=len(stands),
            lag=sum(each.lag for each in stands),
            offsets=stands,
        )
        groups.append(shown)
    return GroupsOverview(store.url, archived.restore_point, archived.captured_at, tuple(groups), archived.not_carried)


# Lag of consumer groups at a sample of restore points.


class PointLags(NamedTuple):
    """Lag by group at restore point `number`, committed at `time` (ms). None if its documents are damaged."""

    number: int
    time: int
    lags: dict[str, int] | None


def sample_points(points: Sequence[PointOverview], most: int) -> list[PointOverview]:
    """Return at most `most` restore points, spread over time, among them the newest. The sample changes little as the
    archive grows: it has the first restore point of each span of 2^n seconds."""
    if len(points) <= most:
        return list(points)
    seconds = np.array([ms_of(point.committed_at) // 1000 for point in points])
    width = 1
    _, first = np.unique(seconds, return_index=True)
    # Spans of a power of two: when the width doubles, each span becomes half of a larger one, and half of the sample
    # stays as it was. What is known of these restore points need not be read again.
    while len(first) > most - 1:
        width *= 2
        _, first = np.unique(seconds // width, return_index=True)
    numbers = set(first.tolist())
    numbers.add(len(points) - 1)
    return [points[number] for number in sorted(numbers)]


def point_lags(archive: Archive, point: PointOverview) -> PointLags:
    """Read the lag of every group at a restore point. This reads its manifest and its groups, and keeps neither."""
    # An archive keeps what it reads. This one is dropped at the end.
    reader = Archive(archive.store, archive.info, archive.committed)
    time = ms_of(point.committed_at)
    try:
        overview = groups_overview(reader, reader.manifest(point.number))
    except CorruptError:
        return PointLags(point.number, time, None)
    lags = {group.group: group.lag for group in overview.groups}
    return PointLags(point.number, time, lags)
