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
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from kbackup.formats.block import slice_block
from kbackup.formats.fields import check, corrupt
from kbackup.types import Bytes, Int64Array, RecordBlock, TopicPartition

if TYPE_CHECKING:
    from kbackup.native.schema_kernel import FrameSums, FrameTable, LeftRows

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
        key = (use.topic, use.part)
        by_part.setdefault(key, []).append(use)
    return [_sum(by_part[key]) for key in sorted(by_part)]


def _sum(uses: Sequence[SchemaUse]) -> SchemaUse:
    """Return the sum of what was counted of one topic and part."""
    fields = framed = sure = unlisted = odd = 0
    ids = Counter[int | str]()
    apicurio = Counter[str]()
    for use in uses:
        fields += use.fields
        framed += use.framed
        sure += use.sure
        unlisted += use.unlisted
        odd += use.odd
        ids.update(use.ids)
        apicurio.update(use.apicurio)
    # The most frequent ids come first, so that these are listed if there is no room for all.
    listed = list_ids({}, dict(ids.most_common()))
    forms = list_forms({}, dict(apicurio.most_common()))
    unlisted += ids.total() - sum(listed.values())
    return SchemaUse(
        topic=uses[0].topic,
        part=uses[0].part,
        fields=fields,
        framed=framed,
        sure=sure,
        ids=listed,
        unlisted=unlisted,
        odd=odd,
        apicurio=forms,
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
        has_room = text in listed or len(listed) < MOST_ODD
        key = text if has_room or not schema else form
        listed[key] = listed.get(key, 0) + count
    return listed


class SchemaCounter:
    """Counts the schemas of a task's records. One thread at a time."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._topics: dict[str, _Tables] = {}

    def add(self, tp: TopicPartition, block: RecordBlock, end: int | None = None) -> None:
        """Count the block's records before offset `end`, but none of a partition that was counted before: a task may
        read records again. `CorruptError` for a damaged block."""
        counted_to = self._next.get(tp, 0)
        first = int(np.searchsorted(block.offsets, counted_to))
        stop = len(block)
        if end is not None:
            stop = int(np.searchsorted(block.offsets, end))
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
        uses: list[SchemaUse] = []
        for topic, tables in self._topics.items():
            uses += tables.uses(topic)
        return merge(uses)


class _Tables:
    """What was counted of a topic: `sums` and `table` of `schema_kernel.visit`."""

    def __init__(self) -> None:
        from kbackup.native import schema_kernel as kernel  # numba loads in workers alone

        self._kernel = kernel
        self.sums = kernel.make_sums()
        self.table = kernel.make_table(_ROWS)

    def add(self, block: RecordBlock, name: str) -> None:
        """Count a block. A table that turns out to be too small for it grows, and the block is counted again."""
        while True:
            whole = len(self.table.kind) == 2 * _MOST_ROWS
            sums = self._kernel.copy_columns(self.sums)
            table = self.table if whole else self._kernel.copy_columns(self.table)
            _visit(block, name, PARTS, sums, table, np.empty(0, np.uint8), make_map({}))
            if whole or np.array_equal(sums.unlisted, self.sums.unlisted):
                self.sums, self.table = sums, table
                return
            self._grow()

    def _grow(self) -> None:
        """Move what was counted into a table of twice the size."""
        small, size = self.table, len(self.table.kind)
        large = self._kernel.make_table(size)
        for part in range(len(PARTS)):
            for kind, high, low, frames in _used_rows(small, part):
                row = self._kernel.first_row(high, low, size - 1)
                while large.kind[size * part + row]:
                    row = row + 1 & size - 1
                at = size * part + row
                large.kind[at] = kind
                large.high[at] = high
                large.low[at] = low
                large.frames[at] = frames
        self.table = large

    def uses(self, topic: str) -> Iterator[SchemaUse]:
        sums = self.sums
        for number, part in enumerate(PARTS):
            ids: dict[int | str, int] = {}
            apicurio: dict[str, int] = {}
            for kind, high, low, count in _used_rows(self.table, number):
                if kind in APICURIO_FORMS:
                    form = APICURIO_FORMS[kind]
                    apicurio[f"{form} {low}" if low else form] = count
                else:
                    ids[_schema(kind, high, low)] = count
            unlisted, *apicurio_unlisted = sums.unlisted.reshape(len(PARTS), -1)[number].tolist()
            for form, without_place in zip(APICURIO_FORMS.values(), apicurio_unlisted, strict=True):
                if without_place:
                    apicurio[form] = apicurio.get(form, 0) + without_place
            yield SchemaUse(
                topic=topic,
                part=part,
                fields=int(sums.fields[number]),
                framed=int(sums.framed[number]),
                sure=int(sums.sure[number]),
                ids=ids,
                unlisted=unlisted,
                odd=int(sums.odd[number]),
                apicurio=apicurio,
            )


def _used_rows(table: FrameTable, part: int) -> list[list[int]]:
    """Return the rows of a part's table that are in use: kind, high, low and number of frames."""
    rows = len(table.kind) // len(PARTS)
    own = slice(rows * part, rows * (part + 1))
    used = table.kind[own] > 0
    columns = [column[own][used].tolist() for column in table]
    return [list(row) for row in zip(*columns, strict=True)]


SchemaIds = Mapping[int | str, int | str]
"""New ids by old ones, and new GUIDs by old ones."""


def make_map(by_part: Mapping[Part, SchemaIds]) -> Int64Array:
    """Return the new ids and GUIDs of keys and of values as `rewrite` takes them: the columns of a
    `schema_kernel.FrameMap`."""
    rows: list[tuple[int, ...]] = []
    for part, schemas in by_part.items():
        for old, new in schemas.items():
            rows.append((PARTS.index(part), *_frame(old), *_frame(new)[1:]))
    rows.sort()
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 6).T)


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

    left = _visit(block, name, parts, kernel.make_sums(), kernel.make_table(0), block.data, schemas)
    return block, list(_by_schema(left))


def put_schema(block: RecordBlock, frames: LeftFrames, schema: int | str) -> None:
    """Write another id, or another GUID, into frames of a block that `rewrite` has returned."""
    kind, *_ = _frame(schema)
    octets = int(schema).to_bytes(4, "big") if kind == 1 else UUID(str(schema)).bytes
    # The id, or the GUID, stands behind the frame's first byte.
    places = frames.at[:, np.newaxis] + 1 + np.arange(len(octets))
    block.data[places] = np.frombuffer(octets, np.uint8)


def _by_schema(left: LeftRows) -> Iterator[LeftFrames]:
    if not len(left.record):
        return
    schema_of_row = np.stack([left.part, left.kind, left.high, left.low], axis=1)
    schemas, numbers = np.unique(schema_of_row, axis=0, return_inverse=True)
    for number, (part, kind, high, low) in enumerate(schemas.tolist()):
        rows = numbers.reshape(-1) == number
        yield LeftFrames(
            part=PARTS[part],
            schema=_schema(kind, high, low),
            records=left.record[rows],
            at=left.at[rows],
            sizes=left.size[rows],
            field_at=left.field_at[rows],
            field_sizes=left.field_size[rows],
        )


_LEAST_FRAMED_HEADER = 28
"""Bytes of the smallest header with a frame: a name of 15 bytes and a value of 5, each behind its length."""


def _visit(
    block: RecordBlock,
    name: str,
    parts: Collection[Part],
    sums: FrameSums,
    table: FrameTable,
    out: Bytes,
    schemas: Int64Array,
) -> LeftRows:
    """Count or map the block's frames, as `schema_kernel.visit` does. Return the rows of those without a mapping."""
    from kbackup.native import schema_kernel as kernel  # numba loads in workers alone

    index = (block.offsets, block.positions, block.lengths)
    if len({len(each) for each in index}) > 1:
        check(block, name, 0)
    # room for every frame that the block can hold; memory that nothing is written to costs nothing
    most = 2 * len(block) + len(block.data) // _LEAST_FRAMED_HEADER if len(out) else 0
    left, left_count = kernel.make_left(most), np.zeros(1, np.int64)
    data = np.ascontiguousarray(block.data)
    offsets, positions, lengths = map(np.ascontiguousarray, index)
    bits = sum(1 << PARTS.index(part) for part in set(parts))
    columns = np.require(schemas, np.int64, ["C", "W"])
    mapping = kernel.FrameMap(*columns)
    number = kernel.run(bits, data, offsets, positions, lengths, sums, table, out, mapping, left, left_count)
    if number < len(block):
        check(block, name, 0)
        raise corrupt(name, int(block.positions[number]), "the record is not what its index entry says")
    return kernel.LeftRows(*(column[: left_count[0]] for column in left))


def _frame(schema: int | str) -> tuple[int, int, int]:
    """Return an id or GUID as the kernel has it."""
    if isinstance(schema, int):
        return 1, 0, schema
    return 2, *np.frombuffer(UUID(schema).bytes, ">i8").tolist()


def _schema(kind: int, high: int, low: int) -> int | str:
    """Return the id or GUID of a frame that is as the kernel has it."""
    if kind == 1:
        return low
    octets = np.array([high, low], ">i8").tobytes()
    return str(UUID(bytes=octets))
