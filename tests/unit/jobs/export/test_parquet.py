"""Which file holds a record: by the record alone, however blocks fall."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.archive.segments.rows import to_export_batch
from kbackup.formats.block import slice_block
from kbackup.formats.stream import scan
from kbackup.jobs.export import tables as parquet_export
from kbackup.jobs.export.destination import Destination, point_key
from kbackup.jobs.export.tables import by_date, chunks
from kbackup.store import S3Options
from kbackup.types import RecordBlock
from tests.unit.formats.reference import Record, encode_record

DAY = 86_400_000


def block_of(*stamps: int | None) -> RecordBlock:
    records = [Record(n, -1 if at is None else 0, at, None, b"value", []) for n, at in enumerate(stamps)]
    return scan(b"".join(map(encode_record, records)), name="test")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, 29)))
def test_chunks_end_at_the_same_records_wherever_blocks_end(
    cuts: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_export, "CHUNK_BYTES", 200)
    block = block_of(*range(30))
    pieces = (slice_block(block, a, b) for a, b in pairwise([0, *sorted(cuts), 30]))
    found = [[int(offset) for part in held for offset in part.offsets] for held in chunks(pieces)]
    size = int(block.lengths[0])
    each = 200 // size + 1
    assert found == [list(range(at, min(at + each, 30))) for at in range(0, 30, each)]


def test_a_file_for_each_date() -> None:
    block = block_of(DAY, 0, None, DAY + 1, 2 * DAY - 1, 1, 2 * DAY)
    table = pa.Table.from_batches([to_export_batch(block, "t", 0, "s", 1, 1, 1)])
    found = {day: rows.column("offset").to_pylist() for day, rows in by_date(table)}
    assert found == {
        "1970-01-01": [1, 5],
        "1970-01-02": [0, 3, 4],
        "1970-01-03": [6],
        "__HIVE_DEFAULT_PARTITION__": [2],
    }
    (only,) = by_date(table.slice(3, 2))
    assert only[0] == "1970-01-02"


def test_other_files_beside_the_points_are_let_alone(tmp_path: Path) -> None:
    destination = Destination.at(str(tmp_path), S3Options())
    assert parquet_export._reached(destination) == 0
    for seq in (9, 41, 12_345_678_901):
        destination.own.put(point_key(seq), b"{}")
        for other in ("README.txt", ".DS_Store", "old/0000000099.json", "0000000099.json.bak", "99.json"):
            destination.own.put(f"points/{other}", b"mine")
        assert parquet_export._reached(destination) == seq
