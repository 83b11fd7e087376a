"""What a restore point knows of keys that were deleted at the source by deletions that no backup read."""

from __future__ import annotations

from collections.abc import Iterable

from kbackup.archive.models import Deletions, TopicState, UnseenDeletions
from kbackup.types import Incarnation, IncarnationPartition, Offsets, TopicPartition
from kbackup.util.text import join_names, plural

UNSEEN = "deletions may have been compacted away unseen"
_NAMED = 5


def deleted_offsets(deletions: Deletions | None) -> dict[IncarnationPartition, Offsets]:
    """Return, by partition, the offsets of archived records whose keys were deleted at the source."""
    if deletions is None:
        return {}
    offsets: dict[IncarnationPartition, Offsets] = {}
    for each in deletions.partitions:
        offsets[each.topic, each.incarnation, each.partition] = each.offsets
    return offsets


def deleted_records(deletions: Deletions | None) -> dict[Incarnation, int]:
    """Return, by topic, the number of archived records whose keys were deleted at the source."""
    records: dict[Incarnation, int] = {}
    for (topic, incarnation, _), ranges in deleted_offsets(deletions).items():
        # Each offset of the ranges has a record.
        count = sum(end - start for start, end in ranges)
        records[topic, incarnation] = records.get((topic, incarnation), 0) + count
    return records


def unseen_partitions(topics: Iterable[TopicState]) -> dict[TopicPartition, UnseenDeletions]:
    """Return the partitions of which deletions may be missing, without those of deleted topics."""
    partitions: dict[TopicPartition, UnseenDeletions] = {}
    for topic in topics:
        if topic.state == "deleted":
            continue
        for state in topic.partitions:
            if state.unseen is not None:
                partitions[TopicPartition(topic.name, state.partition)] = state.unseen
    return partitions


def unseen_warnings(topics: Iterable[TopicState]) -> list[str]:
    """Return a warning for each topic of which deletions may be missing."""
    by_topic: dict[str, dict[TopicPartition, UnseenDeletions]] = {}
    for tp, unseen in unseen_partitions(topics).items():
        by_topic.setdefault(tp.topic, {})[tp] = unseen
    warnings: list[str] = []
    for topic, partitions in by_topic.items():
        offsets = sum(unseen.offsets for unseen in partitions.values())
        since = min(unseen.since for unseen in partitions.values())
        names = join_names([str(tp) for tp in partitions], _NAMED)
        warnings.append(
            f"topic {topic}: {UNSEEN}: {plural(offsets, 'offset')} of {names}, since {since} (or records that others "
            "superseded, or markers of transactions); a restore may bring deleted keys back; run 'kbackup backup "
            "--recheck-compacted', and raise delete.retention.ms above the time between backups"
        )
    return warnings
