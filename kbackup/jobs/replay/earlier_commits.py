"""Check whether a restore whose progress is lost has committed records before.

A unit writes a map part before it commits each transaction: without a map part, no record was committed. With one,
the target shows whether the records are committed, or belong to an aborted transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from kbackup.archive.restores.offset_map import by_partition
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.kafka.consume.read import RangeReader
from kbackup.types import Int64Array, OffsetRange, TopicPartition

_SILENCE = 60.0  # s


def first_committed(
    target: Properties, group: str, parts: Iterable[pa.Table]
) -> tuple[TopicPartition, int] | None:
    """One place on the target where a record of `parts` (`archive.offset_map.SCHEMA`) is committed, None where there
    is none (any more). Others' records beside them don't count."""
    for map_part in parts:  # as a rule there is none, and the target isn't read
        if first := next(_committed(target, group, map_part), None):
            return first
    return None


def committed_partitions(target: Properties, group: str, map_part: pa.Table) -> set[TopicPartition]:
    """Return the partitions of `map_part` (`archive.offset_map.SCHEMA`) of which a record is committed on the
    target."""
    return {tp for tp, _ in _committed(target, group, map_part)} if len(map_part) else set()


def _committed(target: Properties, group: str, map_part: pa.Table) -> Iterator[tuple[TopicPartition, int]]:
    """Yield offsets of committed records of a map part: the first one of each block that is read."""
    cluster = Cluster(target, "target")
    runs = {tp: (at, at + count) for tp, (_, at, count) in by_partition(map_part)}
    starts, ends = cluster.log_starts(runs), cluster.log_ends(runs, "read_committed")
    ranges = [
        OffsetRange(*tp, max(int(low[0]), starts[tp]), min(int(high[-1]), ends[tp]))
        for tp, (low, high) in runs.items()
    ]
    reader = RangeReader(target, "read_committed", group, _SILENCE, len(ranges), role="target")
    try:
        for tp, block in reader.read(ranges):
            committed = within(block.offsets, *runs[tp])
            if len(committed):
                yield tp, int(committed[0])
    finally:
        reader.close()


def within(offsets: Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Return the `offsets` that lie in one of the ranges [low, high), which rise."""
    at = np.searchsorted(low, offsets, side="right") - 1
    return offsets[(at >= 0) & (offsets < high[at])]
