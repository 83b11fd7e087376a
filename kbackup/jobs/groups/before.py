"""The offsets of groups before they are changed: captured, and stored as restores/<id>/groups-before-<n>.json.

Captured and stored before each write, so that it can be undone; numbered from 1, created and never replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from kbackup.archive.models import Document, GroupOffset, Member
from kbackup.jobs.common import NumberedCaptures
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.calls import CommittedOffset
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now

By = Literal["restore", "apply", "undo"]

NONE = -1
"""The offset of a partition for which nothing is committed."""


class GroupBefore(Member, frozen=True, kw_only=True):
    """`offsets` is all that the group had committed; `writes` what was about to be set, where an offset of -1
    takes a commit away. What is in `offsets` and not in `writes` was not touched."""

    group: str
    offsets: tuple[GroupOffset, ...]
    writes: tuple[GroupOffset, ...]


class GroupsBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/groups-before-<number>.json"""

    format: Literal["kbackup-groups-before"] = "kbackup-groups-before"
    restore_id: str
    number: int
    by: By
    captured_at: str
    target_cluster_id: str
    groups: tuple[GroupBefore, ...]


class Captures(NumberedCaptures[GroupsBefore]):
    """The captures of groups of one restore on `state`."""

    def __init__(self, state: Store, restore_id: str) -> None:
        super().__init__(GroupsBefore, "groups-before", state, restore_id)

    def write(self, by: By, cluster_id: str, groups: Iterable[GroupBefore]) -> int:
        """Store the committed offsets of groups; return the number of the capture. The groups may be written to
        afterwards."""
        captured = tuple(groups)
        return self.create(
            lambda number: GroupsBefore(
                restore_id=self.restore_id,
                number=number,
                by=by,
                captured_at=now(),
                target_cluster_id=cluster_id,
                groups=captured,
            )
        )


def capture_groups(
    cluster: Cluster, writes: Mapping[str, Sequence[GroupOffset]]
) -> tuple[list[GroupBefore], dict[str, str]]:
    """Return the committed offsets of the groups of `writes`; and the reason for each group that can't be read, which
    must not be written."""
    has_by_group, failed = cluster.groups.committed(writes)
    return [
        GroupBefore(group=group, offsets=as_stored(has_by_group[group]), writes=tuple(offsets))
        for group, offsets in writes.items()
        if group in has_by_group
    ], failed


def as_stored(offsets: Iterable[CommittedOffset]) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(
            topic=c.tp.topic,
            partition=c.tp.partition,
            offset=c.offset,
            leader_epoch=c.leader_epoch,
            metadata=c.metadata,
        )
        for c in offsets
    )


def as_committed(offsets: Iterable[GroupOffset]) -> list[CommittedOffset]:
    return [
        CommittedOffset(TopicPartition(o.topic, o.partition), o.offset, o.leader_epoch, o.metadata) for o in offsets
    ]


def by_topic_partition(offsets: Iterable[GroupOffset]) -> dict[TopicPartition, GroupOffset]:
    return {TopicPartition(o.topic, o.partition): o for o in offsets}


def resumed(fresh: Sequence[GroupBefore], earlier: Sequence[GroupBefore]) -> list[GroupBefore]:
    """Return the captures of a repeated write. Writes before it (`earlier`, in order) were interrupted or refused in
    part. In partitions that one of them had already set, the offset before that write counts; in others, the one of
    `fresh`. A large group is written in portions, so that a write may have set some partitions only."""
    has_by_group = {group.group: by_topic_partition(group.offsets) for group in fresh}
    for before in reversed(earlier):
        if has := has_by_group.get(before.group):
            written, had = by_topic_partition(before.writes), by_topic_partition(before.offsets)
            ours = {partition for partition, offset in has.items() if written.get(partition) == offset}
            has_by_group[before.group] = {partition: o for partition, o in has.items() if partition not in ours} | {
                partition: o for partition, o in had.items() if partition in ours
            }
    return [
        GroupBefore(group=g.group, offsets=tuple(o for _, o in sorted(has_by_group[g.group].items())), writes=g.writes)
        for g in fresh
    ]
