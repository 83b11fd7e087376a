"""Wait until consumers see the restored records.

A broker says that a transaction is committed before it has written the markers. Until they are there, a log
ends for consumers before the transaction: whoever compares, or asks for a log's end, would find too little.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kbackup.kafka.admin.cluster import Cluster
from kbackup.types import TopicPartition
from kbackup.util.attempts import attempts

_MARKERS = 60.0  # s, for a broker to write them
_PAUSE = 0.1  # s


def wait_visible(cluster: Cluster, runs: pa.Table) -> list[TopicPartition]:
    """Until the records of the offset map `runs` can be read; returns the partitions where they still can't."""
    waiting = _after_last(runs)
    for _ in attempts(_MARKERS, _PAUSE):
        ends = cluster.log_ends(waiting, "read_committed")
        waiting = {tp: after for tp, after in waiting.items() if ends[tp] < after}
        if not waiting:
            break
    return sorted(waiting)


def _after_last(runs: pa.Table) -> Mapping[TopicPartition, int]:
    """The offset after each partition's last restored record."""
    after = runs.append_column("after", pc.add(runs.column("target"), runs.column("count")))
    rows = after.group_by(["topic", "partition"]).aggregate([("after", "max")]).to_pylist()
    return {TopicPartition(row["topic"], row["partition"]): row["after_max"] for row in rows}
