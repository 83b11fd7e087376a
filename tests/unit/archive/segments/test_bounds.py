"""Tables that are a few kilobytes in the store and gigabytes in memory are refused by their footer."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbackup.archive.catalog.tables import SEGMENTS, Chunk, encode
from kbackup.archive.restores import offset_map
from kbackup.archive.segments.table import SCHEMA, Segment, decode_table, read_bounded, to_batch
from kbackup.errors import CorruptError


def honest(count: int, seed: int = 1) -> list[Segment]:
    """As alike as segments of one partition can be: of as many records, at the same distance in time."""
    crc = np.random.default_rng(seed).integers(0, 1 << 62, (count, 2)).tolist()
    return [
        Segment(
            topic="t",
            incarnation=1,
            partition=0,
            first=n * 1000,
            last=n * 1000 + 999,
            count=1000,
            bytes=1 << 20,
            stored=1 << 20,
            min_timestamp=n,
            max_timestamp=n,
            largest=1024,
            crc=f"{crc[n][0]:016x}",
            index_crc=f"{crc[n][1]:016x}",
            key=f"topics/t/segment_partition_000_from_offset_{n * 1000:010d}_records",
        )
        for n in range(count)
    ]


def bomb(rows: int, schema: pa.Schema = SCHEMA) -> bytes:
    """`rows` equal rows in a few kilobytes."""
    one = {
        field.name: pa.array(["x" * 64] if pa.types.is_string(field.type) else [0], field.type)
        for field in schema
    }
    arrays = [pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), one[field.name]) for field in schema]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, names=schema.names).cast(schema), sink, compression="zstd")
    return sink.getvalue()


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("count", [0, 1, 30_000])
def test_tables_that_are_written_are_read(count: int) -> None:
    table = pa.Table.from_batches([to_batch(honest(count))])
    table = table.append_column(SEGMENTS.field("point"), pa.array([7] * count, pa.int64()))
    assert Chunk(SEGMENTS, count, lambda: encode(table)).read().equals(table)


def test_more_rows_than_its_document_says() -> None:
    data = encode(pa.Table.from_batches([to_batch(honest(3))]))
    with pytest.raises(CorruptError, match="has 3 rows, its document says 2"):
        Chunk(SCHEMA, 2, lambda: data).read()


@pytest.mark.exhaustive
def test_more_rows_than_its_bytes_hold() -> None:
    data = bomb(2_000_000)
    assert len(data) < 200_000
    with pytest.raises(CorruptError, match=r"a table has 2000000 rows and .* it was not read"):
        decode_table(data, "a table", rows=2_000_000)


def test_an_offset_map_of_more_rows_than_its_bytes_hold() -> None:
    table = pa.table([pa.array(np.zeros(3_000_000, np.int64))], names=["source"])
    data = offset_map.encode(table, "restores/r/offsets.parquet")
    with pytest.raises(CorruptError, match=r"rows and .* uncompressed"):
        offset_map.decode(data, "restores/r/offsets.parquet", table.schema)


@pytest.mark.parametrize("long", [20_000, 1_000_000])
def test_one_long_name_in_every_row_is_not_decoded(long: int) -> None:
    rows = 10_000
    name = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * long]))
    columns = [name if pa.types.is_string(f.type) else pa.array([0] * rows, f.type) for f in SCHEMA]
    data = encode(pa.Table.from_arrays(columns, names=SCHEMA.names))
    assert len(data) < 100_000
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptError, match="compressed like that"):
        decode_table(data, "x")
    assert pa.total_allocated_bytes() - before < 1 << 20, "the long names were decoded"
    with pytest.raises(CorruptError, match="compressed like that"):
        read_bounded(data, "x", SCHEMA.names)
