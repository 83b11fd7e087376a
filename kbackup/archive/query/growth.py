"""Growth of topics, by the catalog's table of segments alone: no object of a restore point is read."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

import pyarrow as pa

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import of_topics
from kbackup.types import Incarnation

Growth = list[tuple[int, int]]
"""Pairs of a restore point's number and the stored bytes that it and earlier restore points added."""


def growth_of(
    archive: Archive, manifest: Manifest, topics: Collection[Incarnation]
) -> dict[Incarnation, Growth]:
    """Return the growth of topics up to a restore point, of the segments that the archive still has.

    A number may be that of a restore point that expired."""
    names = {name for name, _ in topics}
    table = of_topics(archive.table(manifest.number, ["topic", "incarnation", "point", "stored"]), names)
    summed = _sum(table, ["topic", "incarnation", "point"]).sort_by(
        [("topic", "ascending"), ("incarnation", "ascending"), ("point", "ascending")]
    )
    columns = (summed.column(n).to_pylist() for n in ("topic", "incarnation", "point", "stored_sum"))
    growth: dict[Incarnation, Growth] = {}
    for key, rows in groupby(zip(*columns, strict=True), lambda row: (row[0], row[1])):
        if key in topics:
            total = 0
            growth[key] = [(point, total := total + stored) for _, _, point, stored in rows]
    return growth


def added_after(archive: Archive, manifest: Manifest, number: int) -> dict[Incarnation, int]:
    """Return the stored bytes that restore points after `number` added, by topic; topics without any are left out."""
    table = archive.table(manifest.number, ["topic", "incarnation", "stored"], number)
    summed = _sum(table, ["topic", "incarnation"])
    columns = (summed.column(n).to_pylist() for n in ("topic", "incarnation", "stored_sum"))
    return {(topic, incarnation): stored for topic, incarnation, stored in zip(*columns, strict=True)}


def _sum(table: pa.Table, keys: list[str]) -> pa.Table:
    return table.group_by(keys).aggregate([("stored", "sum")])
