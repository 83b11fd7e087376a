"""Bound the memory that a Parquet table takes, by its own footer, before it is read.

A few kilobytes can say that they are billions of equal rows. Tables of an archive are none of these: a row of theirs
takes bytes of its own.
"""

from __future__ import annotations

import pyarrow.parquet as pq

from kbackup.errors import CorruptError

_ROWS_A_BYTE = 8
_BYTES_A_BYTE = 200
_SMALL_ROWS = 10_000
_SMALL = 1 << 20
"""Rows and bytes in memory that are allowed for a table of any size."""


def check_bounds(file: pq.ParquetFile, stored: int, name: str, rows: int | None = None) -> None:
    """Raise `CorruptError` where file `name`, of `stored` bytes, has more rows than `rows` (by its document; None where
    unknown) or than so many bytes can have, or more bytes uncompressed."""
    row_count = file.metadata.num_rows
    size = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
    if rows is not None and row_count > rows:
        raise CorruptError(
            f"file {name} has {row_count} rows, its document says {rows}",
            "check which tool wrote it; the table was not read",
        )
    if row_count > _SMALL_ROWS + stored * _ROWS_A_BYTE or size > _SMALL + stored * _BYTES_A_BYTE:
        raise CorruptError(
            f"file {name} has {row_count} rows and {size} bytes uncompressed in {stored} bytes",
            "check which tool wrote it: no table of an archive is compressed like that, and it was not read",
        )
