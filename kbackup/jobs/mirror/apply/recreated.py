"""New incarnations of topics, and the positions that the flow reported last. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.jobs.mirror.apply.applied import Recreated
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.jobs.mirror.status.document import FlowStatus
from kbackup.types import TopicPartition


def reported_positions(
    status: FlowStatus | None, archive_id: str, positions: Mapping[TopicPartition, AppliedPosition]
) -> dict[TopicPartition, AppliedPosition]:
    """Return the positions that `status` was written with, as far as `positions` are beyond them: a round that
    failed may have committed some and reported none. Partitions that came since have none. Topics that the status does
    not know keep their positions."""
    if status is None or status.archive_id != archive_id:
        return dict(positions)
    topics = {topic.remote: topic for topic in status.topics if topic.incarnation >= 0}
    reported: dict[TopicPartition, AppliedPosition] = {}
    for tp, position in positions.items():
        topic = topics.get(tp.topic)
        if topic is None:
            reported[tp] = position
        elif tp.partition < len(topic.applied):
            reported[tp] = min(position, AppliedPosition(topic.incarnation, topic.applied[tp.partition]))
    return reported


def find_recreated(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    before: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[TopicPartition, AppliedPosition],
) -> tuple[Recreated, ...]:
    """Return the topics of which a new incarnation has begun between two sets of positions."""
    begun, reached = _newest(before), _newest(after)
    return tuple(
        Recreated(
            t.source, t.remote, incarnation, False, incarnation_kind(archive, point, t.source, incarnation)
        )
        for t in sorted(topics, key=lambda t: t.source)
        if (incarnation := reached.get(t.remote, 0)) > begun.get(t.remote, incarnation)
    )


def incarnation_kind(
    archive: Archive, point: Manifest, topic: str, incarnation: int
) -> Literal["recreated", "truncated"]:
    """Return why a topic has this incarnation: the archive notes a loss for each log that was cut."""
    cut = any(
        (row["kind"], row["topic"], row["incarnation"]) == ("truncated", topic, incarnation)
        and row["point"] <= point.number
        for row in archive.state.losses.dicts()
    )
    return "truncated" if cut else "recreated"


def _newest(positions: Mapping[TopicPartition, AppliedPosition]) -> dict[str, int]:
    """The newest incarnation of each remote topic."""
    reported: dict[str, int] = {}
    for tp, position in positions.items():
        reported[tp.topic] = max(position.incarnation, reported.get(tp.topic, position.incarnation))
    return reported
