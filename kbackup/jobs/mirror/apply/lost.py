"""Find records that a flow can't apply any more: they expired or were lost before the flow read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.jobs.mirror.apply.applied import Lost
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.types import TopicPartition

_KINDS = ("retention", "damaged")
"""Kinds of losses whose records are not in the archive. The archive still has the records of truncated and recreated
topics."""


def find_lost(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    before: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[TopicPartition, AppliedPosition],
) -> tuple[Lost, ...]:
    """Return each range of records that the positions passed over since `before` because the archive lacks it. A range
    is passed once, so it is reported once. A partition's first position is taken for the start of its topic where the
    flow has applied that topic before; for a new topic nothing is lost."""
    moved = {tp: position for tp, position in after.items() if before.get(tp) != position}
    if not moved:
        return ()
    known: dict[str, int] = {}
    for tp, position in before.items():
        known[tp.topic] = min(position.incarnation, known.get(tp.topic, position.incarnation))
    sources = {topic.remote: topic.source for topic in topics}
    lost: list[Lost] = []
    gaps = _gaps(archive, point)
    for tp, position in sorted(moved.items()):
        first = before.get(tp)
        if first is None and tp.topic in known:
            first = AppliedPosition(known[tp.topic], 0)
        if first is None or tp.topic not in sources:
            continue
        source = sources[tp.topic]
        for incarnation, start, end, why in gaps.get((source, tp.partition), ()):
            begin = max(start, first.next) if incarnation == first.incarnation else start
            passed = (incarnation, end) <= position and (incarnation, end) > first and begin < end
            if passed:
                message = f"offsets {begin} to {end - 1} of {source}-{tp.partition}, or some of them, {why}"
                lost.append(Lost(source, incarnation, tp.partition, tp.topic, begin, end, message))
    return tuple(lost)


Gap = tuple[int, int, int, str]
"""Incarnation, start, end (exclusive), and why."""


def _gaps(archive: Archive, point: Manifest) -> dict[tuple[str, int], list[Gap]]:
    """Return the missing offsets of the archive, by topic and partition of the source, in order."""
    gaps_by_partition: dict[tuple[str, int], list[Gap]] = {}
    for key, gap in [*_expired(archive), *_losses(archive, point)]:
        gaps_by_partition.setdefault(key, []).append(gap)
    return {key: sorted(gaps) for key, gaps in gaps_by_partition.items()}


def _expired(archive: Archive) -> Iterator[tuple[tuple[str, int], Gap]]:
    for (topic, incarnation, partition), start in archive.state.starts.items():
        why = "expired in the archive before they were applied"
        yield (topic, partition), (incarnation, 0, start.start, why)


def _losses(archive: Archive, point: Manifest) -> Iterator[tuple[tuple[str, int], Gap]]:
    for row in archive.state.losses.dicts():
        if row["kind"] not in _KINDS or row["point"] > point.number:
            continue
        if row["partition"] is None or row["start"] is None or row["end"] is None:
            continue
        yield (
            (row["topic"], row["partition"]),
            (
                row["incarnation"],
                row["start"],
                row["end"],
                "were lost before they were archived"
                if row["kind"] == "retention"
                else "are damaged in the archive",
            ),
        )
