"""Checkpoints: positions of the source's groups, translated to the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbackup.archive.content import Content
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.internal.topics import InternalTopics
from kbackup.jobs.mirror.positions.translation import Maps
from kbackup.kafka.mirror_records import Checkpoint
from kbackup.types import TopicPartition


def emit_checkpoints(
    flow: Flow,
    content: Content,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    maps: Maps,
    target: InternalTopics,
) -> list[Checkpoint]:
    """Write the checkpoints of a round that are due, and return the newest of every group and partition, for
    `positions.sync_group_offsets`.

    `content` is the restore point whose groups count; `positions` and `maps` are by remote partition.
    """
    raise NotImplementedError
