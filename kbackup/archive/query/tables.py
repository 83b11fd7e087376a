"""Records as tables show them: the columns of Spark's Kafka source, and the segment that a record is from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kbackup.formats.layout import Layout, gather, layout
from kbackup.types import Int64Array, RecordBlock

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.large_binary())])
_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.large_binary()),
    pa.field("value", pa.large_binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("headers", pa.list_(_HEADER)),
    pa.field("segment", pa.string()),
]
SCHEMA: pa.Schema = pa.schema(_FIELDS)
"""As Spark's Kafka source has them, so that code for one reads the other; `segment` is the key of the records object.

- `timestamp` is null where a record has none. One that microseconds of int64 can't hold (beyond the year 294,000) is
  the last, or first, millisecond that they can.
- `timestampType` is 0 (CreateTime), 1 (LogAppendTime) or -1 (none). The archive's -2, a CreateTime that is null, is 0
  with a null timestamp.
- `headers` is null where there are none. What is not UTF-8 in the key of a header is U+FFFD, as in Kafka's own
  consumer.
"""

_FURTHEST = np.iinfo(np.int64).max // 1000  # ms


def to_table_batch(
    block: RecordBlock,
    topic: str,
    partition: int,
    segment: str,
    *,
    headers: bool = True,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return the block's records in columns of `SCHEMA`: `columns`, in their order, by default all; without headers
    where `headers` is false. Columns that are not selected cost nothing. `CorruptError`, naming `segment`, for a
    damaged block."""
    names = SCHEMA.names if columns is None else columns
    selected = [name for name in names if headers or name != "headers"]
    fields = layout(block, segment, 0)
    count = len(block)
    make: dict[str, Callable[[], pa.Array[Any]]] = {
        "key": lambda: gather(block.data, fields.keys),
        "value": lambda: gather(block.data, fields.values),
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": lambda: pa.array(block.offsets, pa.int64()),
        "timestamp": lambda: _timestamps(fields),
        "timestampType": lambda: pa.array(np.where(fields.types == -2, 0, fields.types), pa.int32()),
        "headers": lambda: _headers(block, fields),
        "segment": lambda: pa.repeat(pa.scalar(segment, pa.string()), count),
    }
    schema = pa.schema([SCHEMA.field(name) for name in selected])
    return pa.RecordBatch.from_arrays([make[name]() for name in selected], schema=schema)


def micros(timestamps: Int64Array) -> Int64Array:
    """Return ms since the epoch as microseconds; see `SCHEMA` for values that don't fit."""
    return np.clip(timestamps, -_FURTHEST, _FURTHEST) * 1000


def _timestamps(fields: Layout) -> pa.Array[Any]:
    untimed = fields.types < 0
    values: Any = pa.array(micros(np.where(untimed, 0, fields.timestamps)), pa.int64(), mask=untimed)
    made: pa.Array[Any] = values.view(SCHEMA.field("timestamp").type)
    return made


def _headers(block: RecordBlock, fields: Layout) -> pa.Array[Any]:
    columns: list[pa.Array[Any]] = [
        _texts(gather(block.data, fields.header_keys)),
        gather(block.data, fields.header_values),
    ]
    headers: Any = pa.StructArray.from_arrays(columns, fields=list(_HEADER))
    starts: Any = pa.array(fields.header_starts, pa.int32())
    none: Any = pa.array(np.diff(fields.header_starts) == 0)
    return pa.ListArray.from_arrays(starts, headers, type=SCHEMA.field("headers").type, mask=none)


def _texts(raw: Any) -> pa.Array[Any]:
    """Return large_binary[n] as string[n]. Each different value that is not UTF-8 is decoded once."""
    try:
        text: pa.Array[Any] = raw.cast(pa.string())
    except pa.ArrowInvalid:
        codes = raw.dictionary_encode()
        words = [word.decode(errors="replace") for word in codes.dictionary.to_pylist()]
        text = pa.array(words, pa.string()).take(codes.indices)
    return text
