"""Read the offset map of a flow."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kbackup.archive.remap import OffsetMap
from kbackup.store.base import Store
from kbackup.types import TopicPartition


@dataclass
class FlowMap:
    """The offset map of the flow `source->target`. It reads a slot's files when a partition of that slot is asked for.

    The apply half keeps one in memory and adds the runs of each round; `open_map` opens another one from the store.
    """

    store: Store
    source: str
    target: str

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap | None:
        """Return the map of one remote partition, for source offsets of `incarnation`. None where no record of that
        incarnation was applied. `next` is the target offset after the last record of that incarnation."""
        raise NotImplementedError

    def newest_runs(self) -> pa.Table:
        """Return the last run of every remote partition (`SCHEMA`)."""
        raise NotImplementedError


def open_map(store: Store, source: str, target: str) -> FlowMap:
    """Return the offset map of a flow as its files in `store` say it: the state's store, as a rule the archive's."""
    return FlowMap(store, source, target)
