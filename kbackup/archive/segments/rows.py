"""Records as tables show them: the columns of Spark's Kafka source, and the segment that a record is from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kbackup.formats.arrow import compute
from kbackup.formats.block import heads
from kbackup.formats.fields import BlockFields, gather, locate_fields
from kbackup.types import Int64Array, RecordBlock

_HEADER = pa.struct([("key", pa.string()), ("value", pa.large_binary())])
_TYPES: dict[str, pa.DataType] = {
    "key": pa.large_binary(),
    "value": pa.large_binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
    "segment": pa.string(),
}
SCHEMA: pa.Schema = pa.schema(_TYPES)
"""The columns of Spark's Kafka source, so that code for one reads the other. `segment` is the key of the records
object.

- `timestamp` is null if a record has none. One that microseconds of int64 can't hold (beyond the year 294,000) is
  the last, or first, millisecond that they can.
- `timestampType` is 0 (CreateTime), 1 (LogAppendTime) or -1 (none). The archive's -2, a CreateTime that is null, is 0
  with a null timestamp.
- `headers` is null if there are none. What is not UTF-8 in the key of a header is U+FFFD, as in Kafka's own
  consumer.
"""

_FURTHEST = np.iinfo(np.int64).max // 1000  # ms
_NULL_CREATE_TIME = -2


def to_table_batch(
    block: RecordBlock, topic: str, partition: int, segment: str, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return the block's records in the columns of `SCHEMA`, or only in the named `columns`, in that order. A column
    that is left out costs nothing. `CorruptError`, naming `segment`, for a damaged block."""
    names = SCHEMA.names if columns is None else columns
    fields = locate_fields(block, segment, 0)
    constants: dict[str, str | int] = {"topic": topic, "partition": partition, "segment": segment}
    made: list[pa.Array[Any]] = []
    for name in names:
        if name in constants:
            kind = SCHEMA.field(name).type
            column = _repeated(constants[name], kind, len(block))
        else:
            column = _column(name, block, fields)
        made.append(column)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _column(name: str, block: RecordBlock, fields: BlockFields) -> pa.Array[Any]:
    """Return a column of `SCHEMA` whose values come from the records."""
    match name:
        case "key":
            return gather(block.data, fields.keys)
        case "value":
            return gather(block.data, fields.values)
        case "offset":
            return pa.array(block.offsets, pa.int64())
        case "timestamp":
            return _timestamps(fields)
        case "timestampType":
            types = np.where(fields.types == _NULL_CREATE_TIME, 0, fields.types)
            return pa.array(types, pa.int32())
        case "headers":
            return _headers(block, fields)
    raise KeyError(name)


def _repeated(value: str | int, kind: pa.DataType, count: int) -> pa.Array[Any]:
    """Return a column that has one value in every row."""
    scalar: Any = pa.scalar(value, kind)
    column: pa.Array[Any] = pa.repeat(scalar, count)
    return column


def micros(timestamps: Int64Array) -> Int64Array:
    """Return ms since the epoch as microseconds; see `SCHEMA` for values that don't fit."""
    return np.clip(timestamps, -_FURTHEST, _FURTHEST) * 1000


def _timestamps(fields: BlockFields) -> pa.Array[Any]:
    untimed = fields.types < 0
    stamps = np.where(untimed, 0, fields.timestamps)
    values: Any = pa.array(micros(stamps), pa.int64(), mask=untimed)
    made: pa.Array[Any] = values.view(SCHEMA.field("timestamp").type)
    return made


def _headers(block: RecordBlock, fields: BlockFields) -> pa.Array[Any]:
    keys: Any = gather(block.data, fields.header_keys)
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Some key is not UTF-8. Topics have few different header keys: Python decodes each of them once.
        codes = keys.dictionary_encode()
        words = [word.decode(errors="replace") for word in codes.dictionary.to_pylist()]
        keys = pa.array(words, pa.string()).take(codes.indices)
    values = gather(block.data, fields.header_values)
    headers: Any = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    starts: Any = pa.array(fields.header_starts, pa.int32())
    none: Any = pa.array(np.diff(fields.header_starts) == 0)
    return pa.ListArray.from_arrays(starts, headers, type=SCHEMA.field("headers").type, mask=none)


# Records as exported tables hold them (`formats/delta.md`): the columns above, what these columns can't hold of a
# record, and where the record is from. Nothing of a record is lost.

SPARK_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""Columns of `SCHEMA` that have other types in Spark and in files: there, offsets within a column have 32 bits."""
EXPORT_SCHEMA: pa.Schema = pa.schema(
    {
        **(_TYPES | SPARK_TYPES),
        "incarnation": pa.int32(),
        "partitions": pa.int32(),
        "restorePoint": pa.int64(),
        "rawTimestamp": pa.int64(),
        "rawHeaderKeys": pa.list_(pa.binary()),
        "date": pa.date32(),
    }
)

_DAY = 86_400_000  # ms
_LAST = 253_402_300_799_999  # ms: the end of the year 9999, which dates of Spark go up to


def to_export_batch(
    block: RecordBlock, topic: str, partition: int, segment: str, incarnation: int, partitions: int, point: int
) -> pa.RecordBatch:
    """Return the block's records in columns of `EXPORT_SCHEMA`. `partitions` is how many the topic had at restore point
    `point`."""
    base = to_table_batch(block, topic, partition, segment)
    count = len(block)
    head = heads(block.data, block.positions)
    timed = head["type"] >= 0
    stamps = np.where(timed, head["timestamp"], 0).astype(np.int64)
    # What dates and timestamps of Spark can't hold is null in both columns: `rawTimestamp` has it.
    shown = timed & (stamps >= 0) & (stamps <= _LAST)
    shown_micros = np.where(shown, stamps, 0) * 1000
    timestamps: Any = pa.array(shown_micros, pa.int64(), mask=~shown)
    shown_days = np.where(shown, stamps // _DAY, 0).astype(np.int32)
    days: Any = pa.array(shown_days, pa.int32(), mask=~shown)
    columns: dict[str, Any] = {name: base.column(name) for name in base.schema.names}
    columns["rawHeaderKeys"] = _raw_header_keys(block, segment, columns["headers"])
    columns["timestamp"] = timestamps.view(pa.timestamp("us", "UTC"))
    columns["date"] = days.view(pa.date32())
    columns["rawTimestamp"] = pa.array(stamps, pa.int64(), mask=~timed | shown)
    columns["incarnation"] = _repeated(incarnation, pa.int32(), count)
    columns["partitions"] = _repeated(partitions, pa.int32(), count)
    columns["restorePoint"] = _repeated(point, pa.int64(), count)
    ordered = [columns[field.name].cast(field.type) for field in EXPORT_SCHEMA]
    return pa.RecordBatch.from_arrays(ordered, schema=EXPORT_SCHEMA)


def _raw_header_keys(block: RecordBlock, segment: str, headers: Any) -> Any:
    """Return the header keys of the records that have one which is not UTF-8; null for all others."""
    fields = locate_fields(block, segment, 0)
    raw: Any = gather(block.data, fields.header_keys)
    shown = headers.flatten().field(0).cast(pa.large_binary())
    changed = compute().not_equal(raw, shown).to_numpy(zero_copy_only=False).astype(np.int64)
    # how many were changed before each header: a record has one if the count rises over its headers
    before = np.concatenate(([0], np.cumsum(changed)))
    odd = np.diff(before[fields.header_starts]) > 0
    starts: Any = pa.array(fields.header_starts, pa.int32())
    keys = raw.cast(pa.binary())
    not_shown: Any = pa.array(~odd)
    return pa.ListArray.from_arrays(starts, keys, mask=not_shown)
