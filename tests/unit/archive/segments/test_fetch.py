"""Ranges that are read ahead, and the blocks that are made of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive.segments import read
from kbackup.archive.segments.read import read_index, read_records
from kbackup.archive.segments.writer import PartitionWriter
from kbackup.archive.verify.findings import ToRead, check_segment
from kbackup.errors import CorruptError, UnreachableError
from kbackup.formats.record import decode, encode
from tests.support.faulty_store import FaultyStore, down
from tests.support.made_segments import target
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, encode_record, from_batch, to_batch
from tests.unit.formats.strategies import records as any_records

DATA = bytes(range(256)) * 40


def threads() -> int:
    return sum(thread.name.startswith("fetch") for thread in threading.enumerate())


@pytest.mark.parametrize("size", [1, 99, 5000, len(DATA), len(DATA) + 1])
def test_spans_come_in_order_with_their_checksums(size: int, store: FaultyStore) -> None:
    store.put("key", DATA)
    spans = [(start, min(start + size, len(DATA))) for start in range(0, len(DATA), size)][:200]
    found = list(read.fetched(store, "key", spans))
    assert [data.tobytes() for data, _ in found] == [DATA[start:end] for start, end in spans]
    assert [crc for _, crc in found] == [crc64nvme(DATA[start:end]) for start, end in spans]
    assert threads() == 0


def test_no_more_than_two_are_read_ahead_and_what_is_left_is_given_up(store: FaultyStore) -> None:
    store.put("key", DATA)
    store.calls.clear()
    reading = read.fetched(store, "key", [(n, n + 1) for n in range(100)])
    for taken in range(1, 4):
        next(reading)
        assert len(store.calls) <= taken + 2
    assert isinstance(reading, Iterator)
    reading.close()  # type: ignore[attr-defined]
    assert threads() == 0
    assert len(store.calls) <= 5


def test_errors_come_out_and_end_the_threads(store: FaultyStore) -> None:
    store.put("key", DATA)
    with pytest.raises(CorruptError, match="wanted up to byte"):
        list(read.fetched(store, "key", [(0, 5), (5, 10), (10, len(DATA) + 1), (0, 1)]))
    store.faults.append(down("open_range", "key"))
    with pytest.raises(UnreachableError):
        list(read.fetched(store, "key", [(0, 5), (5, 10)]))
    assert threads() == 0


def test_buffers_are_used_again_but_never_while_they_are_held(store: FaultyStore) -> None:
    size = 2 << 20
    store.put("key", b"".join(bytes([n]) * size for n in range(12)))
    before = read._POOL.allocated
    for n, (data, _) in enumerate(
        read.fetched(store, "key", [(n * size, n * size + size) for n in range(12)])
    ):
        assert set(data[::997].tolist()) == {n}
    assert read._POOL.allocated - before <= 4, "one in use, two ahead, one that is being let go"


@settings(max_examples=40)
@given(
    rows=any_records(min_size=1),
    span=st.integers(1, 500),
    compression=st.sampled_from(["none", "zstd"]),
    indexed=st.booleans(),
)
def test_any_spans_give_the_records(rows: list[Record], span: int, compression: str, indexed: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FETCH_SPAN", "SPAN"):
            patch.setattr(read, name, span)
        store = MemoryStore()
        with PartitionWriter(store, target(3, 1 << 20, compression)) as writer:
            writer.append(encode(to_batch(rows)))
            (segment,) = writer.finish()
        index = read_index(store, segment) if indexed else None
        fetched_bytes = list(read_records(store, segment, index))
        assert [row for block in fetched_bytes for row in from_batch(decode(block))] == rows
        assert check_segment(store, ToRead(segment)).findings == ()
        if indexed and compression == "none":
            longest = max(len(encode_record(row)) for row in rows)
            assert all(block.nbytes <= max(span, longest) for block in fetched_bytes)
