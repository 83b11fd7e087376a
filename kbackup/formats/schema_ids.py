"""The schemas that keys and values name by a frame, as schema registries' serializers put it: count them, map them.

A frame is a byte 0 and an id of four bytes (big-endian, from 1 on) that a field begins with. Or it is the value of a
header: the same, or a byte 1 and a GUID of sixteen bytes (`schemas.decoder.frame_of`). Of several such headers a field
has one frame each, since clients differ in the one they take. The headers of a null field count for nothing.

Apicurio's serializers have forms of their own, which are counted and never mapped: an id of eight bytes (big-endian)
behind a byte 0, and the headers `apicurio.key.*` and `apicurio.value.*` with contentId, globalId (eight bytes each),
contentHash or artifactId. (Its classes Legacy8ByteIdHandler and DefaultHeadersHandler.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from kbackup.formats.block import slice_block
from kbackup.formats.fields import check, corrupt
from kbackup.types import Bytes, Int64Array, RecordBlock, TopicPartition

Part = Literal["key", "value"]
PARTS: tuple[Part, Part] = ("key", "value")

MOST_IDS = 10_000
"""Ids that are listed of a topic's keys or values."""
MOST_ODD = 1000
"""Odd ids that are listed beside them, and ids of Apicurio's own forms. Random bytes have any number of them: one in
512 fields begins like a frame."""
_ODD_ID = 1 << 24  # as in schema_kernel, which only workers import
_ROWS, _MOST_ROWS = 256, 1 << 15
"""Of the table that a part's ids are counted in: at first, and at most (1 MiB). Half of them are used."""

APICURIO_FORMS = {3: "contentId", 4: "globalId", 5: "eightBytes", 6: "contentHash", 7: "artifactId"}
"""The names of Apicurio's own forms, by the kinds of `schema_kernel`."""


def is_odd(schema: int | str) -> bool:
    """Return whether an id is one that registries hardly give: they count from 1, or from 100,001. What begins like a
    frame by chance has an id of 2^24 or more in 127 of 128 cases, and a text behind its length in two bytes always."""
    return isinstance(schema, int) and schema >= _ODD_ID


class SchemaUse(NamedTuple):
    """The schemas of a topic's keys or values. Of its `fields` that are not null, `framed` name a schema. Of these
    `sure` are not eight bytes long, as a number is, and not as long as gRPC's frames are, or name it by a header. `ids`
    counts frames by id or GUID, `unlisted` those whose ids are not among them, and `odd` those with an odd id.
    `apicurio` counts what names schemas in Apicurio's own forms, by form and id ('contentId 7'), or by the form alone
    where there is no id or none is listed."""

    topic: str
    part: Part
    fields: int
    framed: int
    sure: int
    ids: dict[int | str, int]
    unlisted: int = 0
    odd: int = 0
    apicurio: dict[str, int] = {}  # noqa: RUF012 (never changed)


def merge(uses: Iterable[SchemaUse]) -> list[SchemaUse]:
    """Return one `SchemaUse` per topic and part, in order, with the most frequent ids."""
    by_part: dict[tuple[str, Part], list[SchemaUse]] = {}
    for use in uses:
        by_part.setdefault((use.topic, use.part), []).append(use)
    return [_sum(by_part[key]) for key in sorted(by_part)]


def _sum(uses: Sequence[SchemaUse]) -> SchemaUse:
    """Return the sum of what was counted of one topic and part."""
    ids, apicurio = Counter[int | str](), Counter[str]()
    for use in uses:
        ids.update(use.ids)
        apicurio.update(use.apicurio)
    listed = list_ids({}, dict(ids.most_common()))
    return SchemaUse(
        topic=uses[0].topic,
        part=uses[0].part,
        fields=sum(use.fields for use in uses),
        framed=sum(use.framed for use in uses),
        sure=sum(use.sure for use in uses),
        ids=listed,
        unlisted=sum(use.unlisted for use in uses) + ids.total() - sum(listed.values()),
        odd=sum(use.odd for use in uses),
        apicurio=list_forms({}, dict(apicurio.most_common())),
    )


def list_ids(before: Mapping[int | str, int], added: Mapping[int | str, int]) -> dict[int | str, int]:
    """Return the counts of ids that are listed. Those that were listed `before` stay, others come as long as there is
    room: whoever calls counts what is left out."""
    listed = dict(before)
    odd = sum(map(is_odd, listed))
    others = len(listed) - odd
    for schema, count in added.items():
        if schema in listed:
            listed[schema] += count
        elif is_odd(schema):
            if odd < MOST_ODD:
                listed[schema] = count
                odd += 1
        elif others < MOST_IDS:
            listed[schema] = count
            others += 1
    return listed


def list_forms(before: Mapping[str, int], added: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of Apicurio's forms and ids. Ids that have no room count for their forms."""
    listed = dict(before)
    for text, count in added.items():
        form, _, schema = text.partition(" ")
        kept = form if schema and text not in listed and len(listed) >= MOST_ODD else text
        listed[kept] = listed.get(kept, 0) + count
    return listed


class SchemaCounter:
    """Counts the schemas of a task's records. One thread at a time."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._topics: dict[str, _Tables] = {}

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
            self._topics[tp.topic] = _Tables()
        self._topics[tp.topic].add(block, f"records of {tp}")
        self._next[tp] = int(block.offsets[-1]) + 1

    def result(self) -> list[SchemaUse]:
        """Return what was counted so far."""
        return merge(use for topic, tables in self._topics.items() for use in tables.uses(topic))


class _Tables:
    """What was counted of a topic: `sums` and `table` of `schema_kernel.visit`."""

    def __init__(self) -> None:
        from kbackup.native import schema_kernel as kernel  # numba loads in workers alone

        self._kernel = kernel
        self.sums: Int64Array = np.zeros((2, kernel.SUMS), np.int64)
        self.table: Int64Array = np.zeros((2, _ROWS, 4), np.int64)

    def add(self, block: RecordBlock, name: str) -> None:
        """Count a block. A table that turns out to be too small for it grows, and the block is counted again."""
        while True:
            whole = self.table.shape[1] == _MOST_ROWS
            sums, table = self.sums.copy(), self.table if whole else self.table.copy()
            _visit(block, name, PARTS, sums, table, np.empty(0, np.uint8), make_map({}))
            unlisted = self._kernel.UNLISTED
            if whole or np.array_equal(sums[:, unlisted:], self.sums[:, unlisted:]):
                self.sums, self.table = sums, table
                return
            self._grow()

    def _grow(self) -> None:
        """Move what was counted into a table of twice the size."""
        small, size = self.table, 2 * self.table.shape[1]
        self.table = np.zeros((2, size, 4), np.int64)
        for rows, large in zip(small, self.table, strict=True):
            for row in rows[rows[:, 0] > 0].tolist():
                at = self._kernel.first_row(row[1], row[2], size - 1)
                while large[at, 0]:
                    at = at + 1 & size - 1
                large[at] = row

    def uses(self, topic: str) -> Iterator[SchemaUse]:
        kernel = self._kernel
        for part, sums, rows in zip(PARTS, self.sums.tolist(), self.table, strict=True):
            ids: dict[int | str, int] = {}
            apicurio: dict[str, int] = {}
            for kind, high, low, count in rows[rows[:, 0] > 0].tolist():
                if kind in APICURIO_FORMS:
                    form = APICURIO_FORMS[kind]
                    apicurio[f"{form} {low}" if low else form] = count
                else:
                    ids[_schema(kind, high, low)] = count
            for kind, form in APICURIO_FORMS.items():
                if without_place := sums[kernel.UNLISTED + kind - kernel.GUID]:
                    apicurio[form] = apicurio.get(form, 0) + without_place
            counts = sums[kernel.FIELDS], sums[kernel.FRAMED], sums[kernel.SURE]
            yield SchemaUse(topic, part, *counts, ids, sums[kernel.UNLISTED], sums[kernel.ODD], apicurio)


SchemaIds = Mapping[int | str, int | str]
"""New ids by old ones, and new GUIDs by old ones."""


def make_map(by_part: Mapping[Part, SchemaIds]) -> Int64Array:
    """Return the new ids and GUIDs of keys and of values as `rewrite` takes them: rows of `schema_kernel.visit`."""
    rows: list[tuple[int, ...]] = []
    for part, schemas in by_part.items():
        for old, new in schemas.items():
            rows.append((PARTS.index(part), *_frame(old), *_frame(new)[1:]))
    rows.sort()
    return np.array(rows, np.int64).reshape(-1, 6)


class LeftFrames(NamedTuple):
    """The frames of one schema in the keys, or in the values, of a block, which the map lacks.

    int64[n] each: `records` are the numbers of their records in the block, `at` and `sizes` say where the bytes are
    that a frame stands in, and `field_at` and `field_sizes` where its key or value is. Both are the same unless the
    frame stands in a header."""

    part: Part
    schema: int | str
    records: Int64Array
    at: Int64Array
    sizes: Int64Array
    field_at: Int64Array
    field_sizes: Int64Array

    def select(self, chosen: npt.NDArray[np.bool_]) -> LeftFrames:
        """Return the frames where `chosen` is true."""
        return LeftFrames(self.part, self.schema, *(column[chosen] for column in self[2:]))


def rewrite(
    block: RecordBlock, schemas: Int64Array, parts: Collection[Part], name: str = "record block"
) -> tuple[RecordBlock, list[LeftFrames]]:
    """Return the records with the frames of their `parts` mapped, and the frames that the map lacks, which stay as
    they are: by part and schema.

    The block is the same one, changed, where its memory can be written (nobody else may refer to it), else a copy.
    Every byte stays where it is. `CorruptError`, naming `name`, for a damaged block."""
    if not (block.data.flags.writeable and block.data.flags.c_contiguous):
        block = replace(block, data=np.array(block.data))
    from kbackup.native import schema_kernel as kernel

    sums, table = np.zeros((2, kernel.SUMS), np.int64), np.zeros((2, 0, 4), np.int64)
    left = _visit(block, name, parts, sums, table, block.data, schemas)
    return block, list(_by_schema(left))


def put_schema(block: RecordBlock, frames: LeftFrames, schema: int | str) -> None:
    """Write another id, or another GUID, into frames of a block that `rewrite` has returned."""
    kind, *_ = _frame(schema)
    octets = int(schema).to_bytes(4, "big") if kind == 1 else UUID(str(schema)).bytes
    places = frames.at[:, np.newaxis] + 1 + np.arange(len(octets))
    block.data[places] = np.frombuffer(octets, np.uint8)


def _by_schema(left: Int64Array) -> Iterator[LeftFrames]:
    if not len(left):
        return
    from kbackup.native import schema_kernel as kernel

    kinds, numbers = np.unique(left[:, kernel.PART : kernel.LOW + 1], axis=0, return_inverse=True)
    for number, (part, *frame) in enumerate(kinds.tolist()):
        rows = left[numbers.reshape(-1) == number]
        columns = (rows[:, column] for column in (kernel.RECORD, *range(kernel.AT, kernel.FIELD_SIZE + 1)))
        yield LeftFrames(PARTS[part], _schema(*frame), *columns)


_LEAST_FRAMED_HEADER = 28
"""Bytes of the smallest header with a frame: a name of 15 bytes and a value of 5, each behind its length."""


def _visit(
    block: RecordBlock,
    name: str,
    parts: Collection[Part],
    sums: Int64Array,
    table: Int64Array,
    out: Bytes,
    schemas: Int64Array,
) -> Int64Array:
    """Count or map the block's frames, as `schema_kernel.visit` does. Return the rows of those without a mapping."""
    from kbackup.native import schema_kernel as kernel  # numba loads in workers alone

    index = (block.offsets, block.positions, block.lengths)
    if len({len(each) for each in index}) > 1:
        check(block, name, 0)
    # room for every frame that the block can hold; memory that nothing is written to costs nothing
    most = 2 * len(block) + len(block.data) // _LEAST_FRAMED_HEADER if len(out) else 0
    left, count = np.empty((most, 9), np.int64), np.zeros(1, np.int64)
    arrays = (*map(np.ascontiguousarray, (block.data, *index)), sums, table, out, schemas, left, count)
    bits = sum(1 << PARTS.index(part) for part in set(parts))
    number = kernel.visit(bits, *(arrays if kernel.COMPILED else (each.data for each in arrays)))
    if number < len(block):
        check(block, name, 0)
        raise corrupt(name, int(block.positions[number]), "the record is not what its index entry says")
    return left[: int(count[0])]


def _frame(schema: int | str) -> tuple[int, int, int]:
    """Return an id or GUID as the kernel has it."""
    if isinstance(schema, int):
        return 1, 0, schema
    return 2, *np.frombuffer(UUID(schema).bytes, ">i8").tolist()


def _schema(kind: int, high: int, low: int) -> int | str:
    return low if kind == 1 else str(UUID(bytes=np.array([high, low], ">i8").tobytes()))
