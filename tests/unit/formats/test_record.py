"""Segments compressed into frames."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UsageError
from kbackup.formats import record
from kbackup.types import RECORDS
from tests.support.record_blocks import encoded, plain
from tests.unit.formats.reference import Record, decode_records, encode_record, from_batch, to_batch
from tests.unit.formats.strategies import records


@given(records())
def test_encode_is_the_reference(made: list[Record]) -> None:
    block = record.encode(to_batch(made))
    parts = [encode_record(r) for r in made]
    assert block.data.tobytes() == b"".join(parts)
    assert block.offsets.tolist() == [r.offset for r in made]
    assert block.lengths.tolist() == [len(part) for part in parts]
    assert block.positions.tolist() == [sum(map(len, parts[:i])) for i in range(len(parts))]
    times = [r.timestamp for r in made if r.timestamp is not None]
    assert (block.min_timestamp, block.max_timestamp) == (min(times, default=None), max(times, default=None))
    assert block.largest == max(map(len, parts), default=0)
    record.check(block, "file", 1)


@given(records())
def test_decode_is_the_inverse(made: list[Record]) -> None:
    batch = record.decode(record.encode(to_batch(made)))
    batch.validate(full=True)
    assert batch.schema == RECORDS
    assert from_batch(batch) == made
    assert decode_records(record.encode(batch).data.tobytes()) == made


@given(records(min_size=1), st.data())
def test_sliced_batches_encode_as_their_rows(made: list[Record], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(made)))
    part = to_batch(made).slice(start, data.draw(st.integers(0, len(made) - start)))
    assert record.encode(part).data.tobytes() == b"".join(encode_record(r) for r in from_batch(part))


@given(records(), st.data())
def test_a_slice_of_a_block_is_the_block_of_those_records(made: list[Record], data: st.DataObject) -> None:
    block = record.encode(to_batch(made))
    start = data.draw(st.integers(0, len(made)))
    stop = data.draw(st.integers(start, len(made)))
    part, own = record.slice_block(block, start, stop), record.encode(to_batch(made[start:stop]))
    for field in ("data", "offsets", "positions", "lengths"):
        assert np.array_equal(getattr(part, field), getattr(own, field))
    assert (part.min_timestamp, part.max_timestamp) == (own.min_timestamp, own.max_timestamp)
    assert part.largest == own.largest
    assert not part.nbytes or np.shares_memory(part.data, block.data)


@given(records())
def test_scan_finds_what_encode_wrote(made: list[Record]) -> None:
    block = record.encode(to_batch(made))
    found = record.scan(block.data.tobytes(), name="file", base=1)
    for field in ("data", "offsets", "positions", "lengths"):
        assert np.array_equal(getattr(found, field), getattr(block, field))


@pytest.mark.exhaustive
def test_a_record_of_20_mb_and_one_of_many_headers() -> None:
    value = np.random.default_rng(1).bytes(20_000_000)
    headers = [("h", b"x" * (i % 3)) for i in range(20_000)]
    made = [plain(1), plain(2, value=value), plain(3, headers=headers), plain(4)]
    block = encoded(*made)
    assert block.data.tobytes() == b"".join(encode_record(r) for r in made)
    assert from_batch(record.decode(block)) == made


def test_a_block_survives_pickling() -> None:
    block = pickle.loads(pickle.dumps(encoded(plain(1), plain(2))))
    assert from_batch(record.decode(block)) == [plain(1), plain(2)]


def test_slices_stay_within_the_block() -> None:
    with pytest.raises(IndexError, match="records 1 to 3 of a block of 2"):
        record.slice_block(encoded(plain(1), plain(2)), 1, 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([plain(5), plain(5)], "row 1 .* offset"),
        ([plain(-1)], "row 0 .* offset"),
        ([plain(1), plain(2, kind=2)], "row 1 .* timestamp type"),
        ([plain(1), plain(2, kind=-1)], "row 1 .* timestamp"),
        ([plain(1, timestamp=None)], "row 0 .* timestamp"),
        ([plain(1, kind=None)], "row 0 .* timestamp type"),
        ([plain(None)], "null offset"),  # type: ignore[arg-type]
        ([plain(1, headers=[(None, b"x")])], "null header key"),
    ],
)
def test_rows_that_cannot_be_encoded_are_refused(rows: list[Record], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        record.encode(to_batch(rows))


def test_another_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="another schema"):
        record.encode(pa.RecordBatch.from_pydict({"offset": [1]}))
