"""The files that follow from what is committed: partition indexes, and the group offsets of each partition.

They make a topic's folder readable by the Java tool. A reader of ours needs none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kbackup.archive import layout
from kbackup.archive.models import Groups, TopicState
from kbackup.archive.segments import Segment
from kbackup.formats.index import PartitionIndexEntry, encode_partition_index
from kbackup.formats.offsets import encode_group_offsets


def partition_indexes(
    topics: Iterable[TopicState],
    segments: Iterable[Segment],
    wanted: Collection[tuple[str, int, int]] | None = None,
) -> dict[str, bytes]:
    """Key -> bytes of the index of each partition of `topics`, from all its `segments` in order of offset.

    `wanted` names (topic, incarnation, partition); None is all.
    """
    indexes: dict[tuple[str, int, int], list[Segment]] = {
        (t.name, t.incarnation, p.partition): [] for t in topics for p in t.partitions
    }
    for segment in segments:
        indexes[segment.topic, segment.incarnation, segment.partition].append(segment)
    return {
        layout.partition_index_key(layout.topic_dir(topic, incarnation), partition): encode_partition_index(
            [
                PartitionIndexEntry(layout.segment_stem(partition, s.first), s.first)
                for s in indexes[topic, incarnation, partition]
            ]
        )
        for topic, incarnation, partition in (indexes.keys() if wanted is None else wanted)
    }


def group_files(topics: Iterable[TopicState], groups: Groups) -> dict[str, bytes]:
    """Key -> bytes of the group offsets of each partition of `topics`, which the run of `groups` captured."""
    offsets: dict[tuple[str, int], dict[str, int]] = {}
    for group in groups.groups:
        for committed in group.offsets:
            offsets.setdefault((committed.topic, committed.partition), {})[group.group] = committed.offset
    return {
        layout.group_offsets_key(layout.topic_dir(t.name, t.incarnation), p.partition): encode_group_offsets(
            offsets.get((t.name, p.partition), {})
        )
        for t in topics
        for p in t.partitions
    }
