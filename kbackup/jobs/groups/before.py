"""Store the committed offsets of groups before they are changed: restores/<id>/groups-before-<n>.json.

Captured and stored before each write, so that it can be undone; numbered from 1, created and never replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from kbackup.archive.models import Document, GroupOffset, Member
from kbackup.jobs.common.numbered_captures import NumberedCaptures
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.admin import Committed
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
        """Store what groups have; returns its number. They may be written to from then on."""
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


def capture(
    cluster: Cluster, writes: Mapping[str, Sequence[GroupOffset]]
) -> tuple[list[GroupBefore], dict[str, str]]:
    """Return the committed offsets of the groups of `writes`; and the reason for each group that can't be read, which
    must not be written."""
    found, failed = cluster.groups.committed(writes)
    return [
        GroupBefore(group=group, offsets=as_stored(found[group]), writes=tuple(offsets))
        for group, offsets in writes.items()
        if group in found
    ], failed


def as_stored(offsets: Iterable[Committed]) -> tuple[GroupOffset, ...]:
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


def as_committed(offsets: Iterable[GroupOffset]) -> list[Committed]:
    return [
        Committed(TopicPartition(o.topic, o.partition), o.offset, o.leader_epoch, o.metadata) for o in offsets
    ]


def by_topic_partition(offsets: Iterable[GroupOffset]) -> dict[TopicPartition, GroupOffset]:
    return {TopicPartition(o.topic, o.partition): o for o in offsets}


def resumed(fresh: Sequence[GroupBefore], earlier: Sequence[GroupBefore]) -> list[GroupBefore]:
    """`fresh` captures of a write that is done once more, because those before it (`earlier`, in their order) were cut
    off or not wholly accepted: in the partitions that one of them had already set, what the group had before that
    counts. It may have set but a part of them: a group with many is written to in portions."""
    found = {group.group: by_topic_partition(group.offsets) for group in fresh}
    for before in reversed(earlier):
        if has := found.get(before.group):
            written, had = by_topic_partition(before.writes), by_topic_partition(before.offsets)
            ours = {partition for partition, offset in has.items() if written.get(partition) == offset}
            found[before.group] = {partition: o for partition, o in has.items() if partition not in ours} | {
                partition: o for partition, o in had.items() if partition in ours
            }
    return [
        GroupBefore(
            group=g.group, offsets=tuple(o for _, o in sorted(found[g.group].items())), writes=g.writes
        )
        for g in fresh
    ]
