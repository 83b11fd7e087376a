"""The schemas that keys and values name by a frame, as schema registries' serializers put it: count them, map them.

A frame is a byte 0 and an id of four bytes (big-endian, from 1 on) that a field begins with. Or it is the value of a
header: the same, or a byte 1 and a GUID of sixteen bytes (`schemas.decoder.frame_of`). Of several such headers a field
has one frame each, since clients differ in the one they take. The headers of a null field count for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple
from uuid import UUID

import numpy as np

from kbackup.formats.block import slice_block
from kbackup.formats.layout import check, corrupt
from kbackup.types import Bytes, Int64Array, RecordBlock, TopicPartition

Part = Literal["key", "value"]
PARTS: tuple[Part, Part] = ("key", "value")

MOST_IDS = 1000
"""Ids that are counted one by one of a topic's keys or values."""
_ROWS = 2048  # of the table that a part's ids are counted in


class SchemaUse(NamedTuple):
    """The schemas of a topic's keys or values. Of its `fields` that are not null, `framed` name a schema. Of these
    `sure` are not eight bytes long, as a number is, or name it by a header. `ids` counts frames by id or GUID."""

    topic: str
    part: Part
    fields: int
    framed: int
    sure: int
    ids: dict[int | str, int]


def merge(uses: Iterable[SchemaUse]) -> list[SchemaUse]:
    """Return one `SchemaUse` per topic and part, in order, with the most frequent ids."""
    merged: dict[tuple[str, Part], SchemaUse] = {}
    for use in uses:
        old = merged.get(use[:2], SchemaUse(*use[:2], 0, 0, 0, {}))
        fields, framed, sure = (a + b for a, b in zip(old[2:5], use[2:5], strict=True))
        merged[use[:2]] = SchemaUse(*use[:2], fields, framed, sure, dict(Counter(old.ids) + Counter(use.ids)))
    return [use._replace(ids=dict(Counter(use.ids).most_common(MOST_IDS))) for _, use in sorted(merged.items())]


class SchemaCounter:
    """Counts the schemas of a task's records. One thread at a time."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._topics: dict[str, tuple[Int64Array, Int64Array]] = {}

    def add(self, tp: TopicPartition, block: RecordBlock, end: int | None = None) -> None:
        """Count the block's records before offset `end`, but none of a partition that was counted before: a task may
        read records again. `CorruptError` for a damaged block."""
        first = int(np.searchsorted(block.offsets, self._next.get(tp, 0)))
        stop = len(block) if end is None else int(np.searchsorted(block.offsets, end))
        if first >= stop:
            return
        if stop - first < len(block):
            block = slice_block(block, first, stop)
        if tp.topic not in self._topics:
            self._topics[tp.topic] = np.zeros((2, 4), np.int64), np.zeros((2, _ROWS, 4), np.int64)
        _visit(block, f"records of {tp}", PARTS, *self._topics[tp.topic], np.empty(0, np.uint8), make_map({}, {}))
        self._next[tp] = int(block.offsets[-1]) + 1

    def result(self) -> list[SchemaUse]:
        """Return what was counted so far."""
        uses = []
        for topic, (sums, table) in self._topics.items():
            for part, (fields, framed, sure, _), rows in zip(PARTS, sums.tolist(), table, strict=True):
                ids = {_schema(*row[:3]): row[3] for row in rows[rows[:, 0] > 0].tolist()}
                uses.append(SchemaUse(topic, part, fields, framed, sure, ids))
        return merge(uses)


class UnmappedSchemaError(Exception):
    """The record at `offset` names a `schema` in its `part` that the map lacks."""

    def __init__(self, offset: int, part: Part, schema: int | str) -> None:
        super().__init__(f"offset {offset}: schema {schema} of the {part} has no mapping")
        self.offset, self.part, self.schema = offset, part, schema


def make_map(ids: Mapping[int, int], guids: Mapping[str, str]) -> Int64Array:
    """Return the map of old ids and GUIDs to new ones, as `rewrite` takes it: rows of `schema_kernel.visit`."""
    pairs: list[tuple[int | str, int | str]] = [*ids.items(), *guids.items()]
    rows = sorted((*_frame(old), *_frame(new)[1:]) for old, new in pairs)
    return np.array(rows, np.int64).reshape(-1, 5)


def rewrite(
    block: RecordBlock, schemas: Int64Array, parts: Collection[Part], name: str = "record block"
) -> RecordBlock:
    """Return the records with the frames of their `parts` mapped: the same block, changed, where its memory can be
    written (nobody else may refer to it), else a copy. Every byte stays where it is. `UnmappedSchemaError` for the
    first frame without a mapping; `CorruptError`, naming `name`, for a damaged block."""
    if not (block.data.flags.writeable and block.data.flags.c_contiguous):
        block = replace(block, data=np.array(block.data))
    _visit(block, name, parts, np.zeros((2, 4), np.int64), np.zeros((2, 0, 4), np.int64), block.data, schemas)
    return block


def _visit(block: RecordBlock, name: str, parts: Collection[Part], *others: Int64Array | Bytes) -> None:
    """Count or map the block's frames, as `schema_kernel.visit` does."""
    from kbackup.formats import schema_kernel as kernel  # numba loads in workers alone

    index, unmapped = (block.offsets, block.positions, block.lengths), np.zeros(4, np.int64)
    if len({len(each) for each in index}) > 1:
        check(block, name, 0)
    arrays = (*map(np.ascontiguousarray, (block.data, *index)), *others, unmapped)
    bits = sum(1 << PARTS.index(part) for part in set(parts))
    number = kernel.visit(bits, *(arrays if kernel.COMPILED else (each.data for each in arrays)))
    part, *frame = unmapped.tolist()
    if frame[0] > 0:
        raise UnmappedSchemaError(int(block.offsets[number]), PARTS[part], _schema(*frame))
    if number < len(block):
        check(block, name, 0)
        raise corrupt(name, int(block.positions[number]), "the record is not what its index entry says")


def _frame(schema: int | str) -> tuple[int, int, int]:
    """Return an id or GUID as the kernel has it."""
    if isinstance(schema, int):
        return 1, 0, schema
    return 2, *np.frombuffer(UUID(schema).bytes, ">i8").tolist()


def _schema(kind: int, high: int, low: int) -> int | str:
    return low if kind == 1 else str(UUID(bytes=np.array([high, low], ">i8").tobytes()))
