"""Whether a restore whose progress nobody knows any more has committed records before.

A unit writes a part of its map before each transaction is committed: where there is none, nothing was. Where there
is one, the target itself tells whether its records are committed, or of a transaction that was given up.
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
    for part in parts:  # as a rule there is none, and nobody is asked
        if found := next(_committed(target, group, part), None):
            return found
    return None


def committed_partitions(target: Properties, group: str, part: pa.Table) -> set[TopicPartition]:
    """Return the partitions of `part` (`archive.offset_map.SCHEMA`) of which a record is committed on the target."""
    return {tp for tp, _ in _committed(target, group, part)} if len(part) else set()


def _committed(target: Properties, group: str, part: pa.Table) -> Iterator[tuple[TopicPartition, int]]:
    """Places of committed records of a part: the first one of each block that is read."""
    cluster = Cluster(target, "target")
    runs = {tp: (at, at + count) for tp, (_, at, count) in by_partition(part)}
    starts, ends = cluster.log_starts(runs), cluster.log_ends(runs, "read_committed")
    ranges = [
        OffsetRange(*tp, max(int(low[0]), starts[tp]), min(int(high[-1]), ends[tp]))
        for tp, (low, high) in runs.items()
    ]
    reader = RangeReader(target, "read_committed", group, _SILENCE, len(ranges), role="target")
    try:
        for tp, block in reader.read(ranges):
            found = within(block.offsets, *runs[tp])
            if len(found):
                yield tp, int(found[0])
    finally:
        reader.close()


def within(offsets: Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Those of `offsets` that lie in one of the ranges [low, high), which rise."""
    at = np.searchsorted(low, offsets, side="right") - 1
    return offsets[(at >= 0) & (offsets < high[at])]
