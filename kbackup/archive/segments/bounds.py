"""Read a Parquet table within bounds of memory, which its own footer and its dictionaries tell before it is decoded.

A few kilobytes can say that they are billions of equal rows, or one long name in each of ten thousand. Tables of an
archive are none of these: a row of theirs takes bytes of its own, and names are short.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.errors import CorruptError
from kbackup.formats.arrow import pc

_ROWS_A_BYTE = 8
_BYTES_A_BYTE = 200
_SMALL_ROWS = 10_000
_SMALL = 1 << 20
_SMALL_DECODED = 16 << 20
"""Rows, and bytes encoded and decoded, that are allowed for a table of any size."""
_BATCH = 1024
_LARGE = 1 << 20


def read_bounded(
    data: bytes,
    name: str,
    names: Sequence[str],
    columns: Sequence[str] | None = None,
    rows: int | None = None,
) -> pa.Table:
    """Return the table of file `name`, which has the columns `names`, or some columns of it.

    `CorruptError` where it has other columns, more rows than `rows` (by its document; None where unknown) or than so
    many bytes can have, or more bytes uncompressed or decoded. Raises what pyarrow does for data that is no table.
    """
    file = pq.ParquetFile(io.BytesIO(data))
    if file.schema_arrow.names != [*names]:
        raise CorruptError(
            f"file {name} has other columns than its kind of table",
            "take it from a bucket version or another copy: it may have been replaced",
        )
    _check_footer(file.metadata, len(data), name, rows)
    most = _SMALL_DECODED + len(data) * _BYTES_A_BYTE
    _check_dictionaries(data, file, name, most)
    batches: list[pa.RecordBatch] = []
    size = 0
    wanted = None if columns is None else [*columns]
    for batch in file.iter_batches(_BATCH, columns=wanted, use_threads=len(data) > _LARGE):
        batches.append(batch)
        size += batch.nbytes
        if size > most:
            raise _too_large(name, f"more than {most} bytes decoded", len(data))
    kept: Any = file.schema_arrow
    schema = kept if columns is None else pa.schema([kept.field(n) for n in columns], kept.metadata)
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    table.validate(full=True)  # text that is none
    return table


def _check_footer(metadata: pq.FileMetaData, stored: int, name: str, rows: int | None) -> None:
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    if rows is not None and metadata.num_rows > rows:
        raise CorruptError(
            f"file {name} has {metadata.num_rows} rows, its document says {rows}",
            "check which tool wrote it; the table was not read",
        )
    if metadata.num_rows > _SMALL_ROWS + stored * _ROWS_A_BYTE or size > _SMALL + stored * _BYTES_A_BYTE:
        raise _too_large(name, f"{metadata.num_rows} rows and {size} bytes uncompressed", stored)


def _check_dictionaries(data: bytes, file: pq.ParquetFile, name: str, most: int) -> None:
    """Raise `CorruptError` where the longest texts of the dictionaries, one in each row, are more than `most` bytes: a
    footer counts a dictionary once, not once a row."""
    columns = (file.metadata.schema.column(n) for n in range(file.metadata.num_columns))
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    if not texts:
        return
    encoded = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts)
    decoded = 0
    for number in range(file.metadata.num_row_groups):
        first: Any = next(
            encoded.iter_batches(1, row_groups=[number], columns=texts, use_threads=False), None
        )
        for column in first.columns if first is not None else ():
            if isinstance(column, pa.DictionaryArray):
                longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
                decoded += longest * file.metadata.row_group(number).num_rows
        if decoded > most:
            raise _too_large(name, f"up to {decoded} bytes of text", len(data))


def _too_large(name: str, extent: str, stored: int) -> CorruptError:
    return CorruptError(
        f"file {name} has {extent} in {stored} bytes",
        "check which tool wrote it: no table of an archive is compressed like that, and it was not read",
    )
