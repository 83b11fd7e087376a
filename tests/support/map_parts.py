"""Offset maps as restores leave them in a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.restores.map_parts import (
    NOTHING,
    Cut,
    MapPart,
    MapPartName,
    WrittenMap,
    collect_map,
    write_map_part,
)
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition


def a_map_part(
    store: Store,
    name: MapPartName,
    runs: pa.Table,
    *,
    restore_id: str = "r",
    unit: int = 0,
    previous: MapPartName | None = None,
    cut: Cut = NOTHING,
) -> None:
    """Write a part of a unit's map; by default it is the unit's first attempt that wrote it."""
    write_map_part(store, restore_id, unit, name=name, runs=runs, previous=previous, cut=cut)


def write_map(
    store: Store,
    restore_id: str,
    parts: Iterable[MapPart],
    wanted: Mapping[TopicPartition, Int64Array] = MappingProxyType({}),
) -> WrittenMap:
    """Write offsets.parquet from parts in their order."""
    collected = collect_map(restore_id, parts, wanted)
    store.put(layout.restore_key(restore_id, layout.OFFSETS), collected.data)
    return collected.known
