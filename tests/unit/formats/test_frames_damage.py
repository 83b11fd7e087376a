"""Damaged frames and seek tables are refused."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.formats import frames, record
from kbackup.formats.index import SegmentIndex
from tests.support.frames import compress, make_records, pieces, plain
from tests.support.record_blocks import index_of
from tests.unit.formats.reference import to_batch


def refused(data: bytes, chunk: int = 1 << 20) -> None:
    with pytest.raises(CorruptError, match="x at byte"):
        list(frames.decompress(pieces(data, chunk), "x"))


def test_every_cut_is_refused() -> None:
    packed = compress([record.encode(to_batch(make_records(20)))], 500)
    for size in range(len(packed)):
        refused(packed[:size])


def test_foreign_bytes_are_refused() -> None:
    packed = compress([record.encode(to_batch(make_records(20)))], 500)
    table = packed[-frames.seek_table_size(packed, len(packed), "x") :]
    body = packed[: -len(table)]
    refused(packed + b"\0")
    refused(packed + packed)
    refused(packed + bytes(100_000), 4096)
    refused(body + body + table)
    refused(b"\x01plain")
    refused(table)
    refused(body + table[:4] + table[8:])


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_is_refused_or_without_effect(data: st.DataObject) -> None:
    block = record.encode(to_batch(make_records(20)))
    packed = bytearray(compress([block], 500))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = b"".join(frames.decompress(pieces(bytes(packed), 300), "x"))
    except CorruptError:
        return
    assert found == plain(block)


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    """Nearly a GiB of nothing in 32 KiB, all of it in one chunk."""
    size = 1 << 30
    packer = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()
    assert len(bomb) < 1 << 17
    tracemalloc.start()
    with pytest.raises(
        CorruptError, match="x at byte 0: the frame that starts here goes past plain byte 1000"
    ):
        list(frames.decompress([bomb], "x", 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 << 20


def test_decompression_beyond_the_limit_is_damage() -> None:
    block = record.encode(to_batch(make_records()))
    packed = compress([block], 5_000)
    assert b"".join(frames.decompress([packed], "x", block.nbytes + 1)) == plain(block)
    with pytest.raises(CorruptError, match=f"goes past plain byte {block.nbytes}"):
        list(frames.decompress([packed], "x", block.nbytes))


def footer(count: int, descriptor: int = 0, magic: int = 0x8F92EAB1) -> bytes:
    return struct.pack("<IBI", count, descriptor, magic)


@pytest.mark.parametrize(
    ("tail", "size", "message"),
    [
        (b"", 0, "too short"),
        (footer(1)[1:], 8, "too short"),
        (footer(1, magic=1), 100, "does not end in a seek table"),
        (footer(1, descriptor=0x80), 100, "does not end in a seek table"),
        (footer(0), 100, "a seek table of 0 frames"),
        (footer(2**32 - 1), 100, "a seek table of 4294967295 frames"),
        (struct.pack("<IIII", 0x184D2A5E, 18, 9, 9) + footer(1), 34, "does not start where"),
        (struct.pack("<IIII", 0x184D2A5F, 17, 9, 9) + footer(1), 34, "does not start where"),
        (struct.pack("<IIII", 0x184D2A5E, 17, 9, 0) + footer(1), 34, "an empty frame"),
        (struct.pack("<IIII", 0x184D2A5E, 17, 0, 9) + footer(1), 34, "an empty frame"),
        (
            struct.pack("<IIII", 0x184D2A5E, 17, 8, 9) + footer(1),
            34,
            "frames of the seek table end at",
        ),
    ],
)
def test_bad_seek_tables_are_refused(tail: bytes, size: int, message: str) -> None:
    with pytest.raises(CorruptError, match=f"x at byte .*{message}"):
        frames.decode_seek_table(tail, size, "x")


def test_positions_past_4_gib() -> None:
    """Sizes are 32 bits a frame, but their sums are not."""
    sizes = [(3 << 30, 4_000_000_000)] * 3
    entries = b"".join(struct.pack("<II", *size) for size in sizes)
    tail = struct.pack("<II", 0x184D2A5E, len(entries) + 9) + entries + footer(3)
    table = frames.decode_seek_table(tail, (9 << 30) + len(tail), "x")
    assert table.locate(8_000_000_100, 50) == (6 << 30, 3 << 30, 100)
    assert table.locate(3_999_999_999, 2) == (0, 6 << 30, 3_999_999_999)
    for position, length in [(12_000_000_000, 1), (11_999_999_999, 2), (-1, 5), (5, 0)]:
        with pytest.raises(CorruptError, match=r"x at byte .*no bytes"):
            table.locate(position, length)


def test_extract_refuses_frames_that_end_early() -> None:
    packed = compress([record.encode(to_batch(make_records(3)))], 10_000)
    with pytest.raises(CorruptError, match="end before plain byte 10000"):
        frames.extract(packed, 5, 9_995, "x")


def test_the_index_keeps_plain_positions() -> None:
    index: SegmentIndex = index_of([record.encode(to_batch(make_records(3)))])
    assert index.positions[0] == 1
