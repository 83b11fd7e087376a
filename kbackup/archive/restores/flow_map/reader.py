"""The offset map of a flow, slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from kbackup.archive.restores.flow_map.slot import SlotMap
from kbackup.archive.restores.flow_map.slots import read_flow, slot_of
from kbackup.archive.restores.flow_map.tables import MapPartName, MappedPartition, folder, runs_table
from kbackup.archive.restores.remap import OffsetMap
from kbackup.store.base import Store
from kbackup.types import TopicPartition


@dataclass
class FlowMap:
    """The offset map of the flow `source->target` with `slots` slots, 0 for a flow that never began. It reads a slot's
    files when a partition of that slot is asked for.

    `heads` names the last committed part of each slot, as the notes of the applied positions do. Without them a slot
    ends at the last part that another one follows: whether the very last one was committed is known in the target.
    """

    store: Store
    source: str
    target: str
    slots: int
    heads: Mapping[int, MapPartName] | None = None
    _loaded: dict[int, SlotMap] = field(default_factory=dict)

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap:
        """Return the map of one remote partition, for source offsets of `incarnation`. `next` is the target offset
        after the last record of that incarnation, 0 where there is none."""
        if not self.slots:
            return OffsetMap(*SlotMap(self.store, "").runs(MappedPartition(remote, incarnation)), 0)
        source, target, count = self.slot(slot_of(remote, self.slots)).runs(
            MappedPartition(remote, incarnation)
        )
        return OffsetMap(source, target, count, int(target[-1] + count[-1]) if len(target) else 0)

    def newest_runs(self) -> pa.Table:
        """Return the last run of every remote partition (`SCHEMA`). It reads every slot."""
        runs = {key: run for slot in range(self.slots) for key, run in self.slot(slot).last_runs()}
        return runs_table(runs)

    def slot(self, number: int) -> SlotMap:
        """Return the map of a slot, read from the store at the first call."""
        if number not in self._loaded:
            slot = SlotMap(self.store, folder(self.source, self.target, number))
            if self.heads is None or number in self.heads:
                slot.load(None if self.heads is None else self.heads[number])
            self._loaded[number] = slot
        return self._loaded[number]


def open_map(
    store: Store, source: str, target: str, heads: Mapping[int, MapPartName] | None = None
) -> FlowMap:
    """Return the offset map of a flow as its files in `store` say it: the state's store, as a rule the archive's.
    `jobs.mirror.apply.read_heads` gives `heads`, with which the map has the newest part of each slot as well."""
    flow = read_flow(store, source, target)
    return FlowMap(store, source, target, flow.slots if flow is not None else 0, heads)
