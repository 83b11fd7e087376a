"""The files that follow from what is committed: partition indexes, and the group offsets of each partition.

They make a topic's folder readable by the Java tool. A reader of ours needs none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from kbackup.archive import layout
from kbackup.archive.expired import log_starts
from kbackup.archive.models import Expired, Groups, TopicState
from kbackup.archive.segments import Segment, Starts
from kbackup.formats.index import PartitionIndexEntry, encode_partition_index
from kbackup.formats.offsets import encode_group_offsets

_NONE = np.empty(0, np.int64)


def partition_indexes(
    topics: Iterable[TopicState],
    starts: Starts,
    wanted: Collection[tuple[str, int, int]] | None = None,
) -> dict[str, bytes]:
    """Key -> bytes of the index of each partition of `topics`, from where its segments start.

    `wanted` names (topic, incarnation, partition); None is all.
    """
    if wanted is None:
        wanted = [(t.name, t.incarnation, p.partition) for t in topics for p in t.partitions]
    return {
        layout.partition_index_key(layout.topic_dir(topic, incarnation), partition): encode_partition_index(
            [
                PartitionIndexEntry(layout.segment_stem(partition, first), first)
                for first in starts.get((topic, incarnation, partition), _NONE).tolist()
            ]
        )
        for topic, incarnation, partition in wanted
    }


def group_files(
    topics: Collection[TopicState], groups: Groups, expired: Expired | None = None
) -> dict[str, bytes]:
    """Key -> bytes of the group offsets of each partition of `topics`, which the run of `groups` captured.

    Where the archive ends before the log did, a group that is further on stands at the archive's end, and where its
    first records are `expired`, one that is before them at the first that are left: the Java tool finds it there.
    """
    ends = {(t.name, p.partition): p.end for t in topics for p in t.partitions if p.end < p.log_end}
    gone = log_starts(expired)
    incarnations = {t.name: t.incarnation for t in topics}
    offsets: dict[tuple[str, int], dict[str, int]] = {}
    for group in groups.groups:
        for committed in group.offsets:
            place = (committed.topic, committed.partition)
            offset = min(committed.offset, ends.get(place, committed.offset))
            went = gone.get((committed.topic, incarnations.get(committed.topic, 0), committed.partition))
            offset = max(offset, went.start) if went is not None else offset
            offsets.setdefault(place, {})[group.group] = offset
    return {
        layout.group_offsets_key(layout.topic_dir(t.name, t.incarnation), p.partition): encode_group_offsets(
            offsets.get((t.name, p.partition), {})
        )
        for t in topics
        for p in t.partitions
    }


def with_segments(starts: Starts, added: Iterable[Segment]) -> Starts:
    """`starts` with the segments that a run added."""
    new: dict[tuple[str, int, int], list[int]] = {}
    for s in added:
        new.setdefault((s.topic, s.incarnation, s.partition), []).append(s.first)
    return {
        **starts,
        **{place: np.sort(np.append(starts.get(place, _NONE), firsts)) for place, firsts in new.items()},
    }
