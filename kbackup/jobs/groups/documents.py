"""The documents of groups' offsets before they are changed: restores/<id>/groups-before-<n>.json.

The offsets of a group are captured and stored before each write, so that the write can be undone. Captures are numbered
from 1, created and never replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from kbackup.archive.models import Document, GroupOffset, Member
from kbackup.archive.restores.journal import NumberedCaptures
from kbackup.types import CommittedOffset, TopicPartition

By = Literal["restore", "apply", "undo"]

NONE = -1
"""The offset of a partition for which nothing is committed."""


class GroupBefore(Member, frozen=True, kw_only=True):
    """`offsets` are all offsets that the group had committed. `writes` are the offsets that were about to be set; an
    offset of -1 takes a commit away. Offsets that are not in `writes` were not touched."""

    group: str
    type: str = ""
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
    kind, name = GroupsBefore, "groups-before"


def as_stored(offsets: Iterable[CommittedOffset]) -> tuple[GroupOffset, ...]:
    """Return committed offsets as archives and captures store them."""
    stored: list[GroupOffset] = []
    for committed in offsets:
        offset = GroupOffset(
            topic=committed.tp.topic,
            partition=committed.tp.partition,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )
        stored.append(offset)
    return tuple(stored)


def as_committed(offsets: Iterable[GroupOffset]) -> list[CommittedOffset]:
    """Return stored offsets as they are committed."""
    committed: list[CommittedOffset] = []
    for offset in offsets:
        tp = TopicPartition(offset.topic, offset.partition)
        committed.append(CommittedOffset(tp, offset.offset, offset.leader_epoch, offset.metadata))
    return committed


def offsets_by_partition(offsets: Iterable[GroupOffset]) -> dict[TopicPartition, GroupOffset]:
    return {TopicPartition(offset.topic, offset.partition): offset for offset in offsets}
