"""Records of a block: one by one for those who print them, and as columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.errors import UsageError
from kbackup.formats import arrow
from kbackup.formats.block import HEAD, make_block, rising, rotation_cut, slice_block
from kbackup.formats.fields import MAGIC, FieldSpans, check, gather, header_keys, locate_fields
from kbackup.formats.stream import blocks, scan
from kbackup.types import RECORDS, Int64Array, RecordBlock

if TYPE_CHECKING:
    from kbackup.formats.arrow import Column


class Row(NamedTuple):
    """A record as it is archived. `timestamp` is in ms, None for the types -1 and -2. Header keys are bytes: Kafka
    takes any."""

    offset: int
    timestamp_type: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def rows(block: RecordBlock, name: str = "record block", base: int = 0) -> Iterator[Row]:
    """Yield the records in order; `CorruptError`, naming `name`, before the first one where the block is not whole."""
    fields = locate_fields(block, name, base)
    data = block.data.data
    starts = fields.header_starts.tolist()

    def cuts(part: FieldSpans) -> Iterator[bytes | None]:
        for start, length in zip(part.start.tolist(), part.length.tolist(), strict=True):
            yield None if length < 0 else data[start : start + length].tobytes()

    # The headers of all records, one after the other: each record takes its own from the front.
    headers = zip(cuts(fields.header_keys), cuts(fields.header_values), strict=True)
    records = zip(
        block.offsets.tolist(),
        fields.types.tolist(),
        fields.timestamps.tolist(),
        cuts(fields.keys),
        cuts(fields.values),
        pairwise(starts),
        strict=True,
    )
    for offset, kind, timestamp, key, value, (first, stop) in records:
        own = tuple((name or b"", content) for name, content in islice(headers, stop - first))
        yield Row(offset, kind, timestamp if kind >= 0 else None, key, value, own)


# Records: Arrow batches to the documented encoding and back, without a Python object a record.
#
# The encoding is described in `formats/README.md`. The module is the front of the package's record side:
# `scan` rebuilds an index, `blocks` reads a records file as a stream, `block` makes and cuts blocks.

__all__ = ["MAGIC", "blocks", "check", "decode", "encode", "make_block", "rotation_cut", "scan", "slice_block"]

_HEADERS: Any = RECORDS.field("headers").type
_NO_HEADERS = bytes(4)
_INT32_MAX = 2**31 - 1


def encode(batch: pa.RecordBatch) -> RecordBlock:
    """Return the block of a batch of schema `RECORDS`; `UsageError` for rows that the encoding can't hold. Offsets must
    increase; a timestamp is there exactly where the type is 0 or 1."""
    if not batch.schema.equals(RECORDS):
        raise UsageError("a record batch of another schema than RECORDS", "cast it first")
    key = batch.column("key")
    value = batch.column("value")
    if batch.column("offset").null_count:
        raise UsageError("a null offset in a record batch", "give every record an offset")
    offsets: Int64Array = batch.column("offset").to_numpy()
    _require(rising(offsets), "offset", "use offsets of 0 or more that increase")
    prefixes = _prefixes(offsets, batch, _lengths(key))
    value_lengths = _big_endian(_lengths(value))
    headers = _headers(batch.column("headers"))
    edges, joined = arrow.join(prefixes, key, value_lengths, value, *headers)
    data = arrow.view(joined)[: edges[-1]]
    return make_block(data, offsets, edges[:-1], np.diff(edges))


def decode(block: RecordBlock, name: str = "record block", base: int = 0) -> pa.RecordBatch:
    """Return the records as a batch of schema `RECORDS`; `CorruptError`, naming `name`, as `check` raises it;
    `UsageError` for a header key that is not UTF-8: it is no damage, but has no place in that schema."""
    fields = locate_fields(block, name, base)
    header: list[pa.Array[Any]] = [
        header_keys(block.data, fields.header_keys, name, base),
        gather(block.data, fields.header_values),
    ]
    headers: Any = pa.StructArray.from_arrays(header, fields=list(_HEADERS.value_type))
    starts: Any = pa.array(fields.header_starts, pa.int32())
    columns: list[pa.Array[Any]] = [
        pa.array(block.offsets),
        pa.array(fields.types.astype(np.int8)),
        pa.array(fields.timestamps, mask=fields.types < 0),
        gather(block.data, fields.keys),
        gather(block.data, fields.values),
        pa.ListArray.from_arrays(starts, headers, type=_HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def _require(good: npt.NDArray[np.bool_], field: str, hint: str) -> None:
    if not good.all():
        raise UsageError(f"row {int(np.argmin(good))} of a record batch: impossible {field}", hint)


def _lengths(column: pa.Array[Any]) -> Int64Array:
    lengths = arrow.lengths(column)
    _require(lengths <= _INT32_MAX, "field length", "use keys, values and headers smaller than 2 GiB")
    return lengths


def _big_endian(numbers: Int64Array) -> pa.Array[Any]:
    return arrow.fixed(numbers.astype(">i4"))


def _prefixes(offsets: Int64Array, batch: pa.RecordBatch, key_lengths: Int64Array) -> pa.Array[Any]:
    """Return everything before the key, 24 bytes a record or 16 without a timestamp."""
    # A null type becomes one that the check refuses.
    types = arrow.filled(batch.column("timestamp_type"), -128)
    _require((types >= -2) & (types <= 1), "timestamp type", "types are -1, 0, 1 and -2")
    timed = types >= 0
    timestamps = batch.column("timestamp")
    has_timestamp = timestamps.is_valid().to_numpy(zero_copy_only=False)
    _require(has_timestamp == timed, "timestamp", "it is null exactly where the type is -1 or -2")
    head = np.empty(len(offsets), HEAD)
    head["offset"] = offsets
    head["type"] = types
    head["timestamp"] = arrow.filled(timestamps, 0)
    head["key_length"] = key_lengths
    if timed.all():
        return arrow.fixed(head)
    octets = head.view(np.uint8).reshape(len(head), HEAD.itemsize)
    # Bytes 12 to 19 are the timestamp.
    keep = np.ones(octets.shape, np.bool_)
    keep[~timed, 12:20] = False
    sizes = np.where(timed, 24, 16)
    edges = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    return arrow.binary(edges, arrow.octets(octets[keep]))


def _headers(column: pa.Array[Any]) -> list[Column]:
    """Return the columns that end a record: the header count and, where there are any, the joined headers."""
    counts = arrow.filled(arrow.compute().list_value_length(column), 0).astype(np.int64)
    if not counts.any():
        # Not made when this module is imported: with its first value, pyarrow imports pandas.
        return [pa.scalar(_NO_HEADERS, pa.large_binary())]
    names, values = arrow.compute().list_flatten(column).flatten()
    if names.null_count:
        raise UsageError("a null header key in a record batch", "use an empty header key in place of null")
    names = names.cast(pa.large_binary())
    name_lengths = _big_endian(_lengths(names))
    value_lengths = _big_endian(_lengths(values))
    edges, data = arrow.join(name_lengths, names, value_lengths, values)
    starts = np.concatenate(([0], np.cumsum(counts)))
    # A record's headers lie together in the joined child array: fewer edges over the same bytes.
    return [_big_endian(counts), arrow.binary(edges[starts], data)]
