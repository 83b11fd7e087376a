"""Tell gaps that transactions leave in a log from gaps of compaction.

A marker of a transaction takes an offset and is no record, and records of an aborted transaction are not read. The
broker has their batches. Where compaction took a record, no batch has the offset, or one with other records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kbackup.archive.segments.read import read_index
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import joined, without
from kbackup.jobs.backup.plan import PartitionPlan
from kbackup.jobs.capture import SourceCluster
from kbackup.kafka.control.logs import log_batches
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.store.base import Store
from kbackup.types import Int64Array, Offsets, TopicPartition

MOST_MISSING = 200
"""Missing offsets of a partition that are looked at one by one: each may cost a request."""
MOST_RECORDS = 4_000_000
"""Records of a partition whose indexes are read for it, 24 bytes each."""


def read_ranges(partition: PartitionPlan, vanished: Iterable[tuple[int, int]]) -> Offsets:
    """Return the offsets that a run was to read of a partition, apart from offsets that vanished meanwhile."""
    planned = without(((partition.first, partition.end),), partition.skips)
    return without(planned, joined(vanished))


def missing_ranges(store: Store, segments: Sequence[Segment], ranges: Offsets) -> Offsets:
    """Return the offsets of `ranges` that have no record in `segments`, by their indexes."""
    parts = [read_index(store, segment).offsets for segment in segments]
    archived = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
    missing: list[tuple[int, int]] = []
    for start, end in ranges:
        first, stop = np.searchsorted(archived, (start, end)).tolist()
        missing += _between(archived[first:stop], start, end)
    return tuple(missing)


def _between(offsets: Int64Array, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges from `start` to `end` (exclusive) that have none of the rising `offsets`."""
    lows = np.concatenate(([start], offsets + 1))
    highs = np.concatenate((offsets, [end]))
    is_gap = lows < highs
    return list(zip(lows[is_gap].tolist(), highs[is_gap].tolist(), strict=True))


def left_by_transactions(source: SourceCluster, missing: Mapping[TopicPartition, Offsets]) -> set[TopicPartition]:
    """Return the partitions all of whose `missing` offsets are of markers or of aborted records, by the answers of
    brokers. A partition without an answer is left out."""
    committed = source.isolation_level == "read_committed"
    explained: set[TopicPartition] = set()
    waiting = dict(missing)
    while waiting:
        firsts = {tp: ranges[0][0] for tp, ranges in waiting.items()}
        batches = log_batches(source.cluster.router, firsts)
        if isinstance(batches, Unavailable):
            break
        following: dict[TopicPartition, Offsets] = {}
        for tp, ranges in waiting.items():
            batch = batches.get(tp)
            # The broker answers with the first batch at or behind an offset. One that begins behind it shows that no
            # batch has the offset any more: compaction took it.
            if batch is None or batch.first > firsts[tp]:
                continue
            if not (batch.control or (committed and batch.aborted)):
                continue
            # A batch of an aborted transaction explains all its offsets at once: fewer requests than offsets.
            rest = without(ranges, ((0, batch.last + 1),))
            if rest:
                following[tp] = rest
            else:
                explained.add(tp)
        waiting = following
    return explained
