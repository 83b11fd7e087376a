"""Segments compressed into frames."""

from __future__ import annotations

import shutil
import struct
import subprocess
import threading
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.formats import frames, record
from kbackup.types import RecordBlock
from kbackup.util.system import BufferPool
from tests.support.record_blocks import index_of
from tests.unit.formats.reference import Record, a_record, records, to_batch


def compress(blocks: Iterable[RecordBlock], frame_size: int) -> bytes:
    compressor = frames.FrameCompressor(frame_size=frame_size)
    return b"".join([frame for block in blocks for frame in compressor.feed(block)] + compressor.finish())


def make_records(count: int = 400, size: int = 100) -> list[Record]:
    rng = np.random.default_rng(3)
    return [
        a_record(i * 2, timestamp=1_600_000_000_000 + i, key=b"k%d" % i, value=rng.bytes(size)) for i in range(count)
    ]


def plain(block: RecordBlock) -> bytes:
    return b"\x01" + block.data.tobytes()


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def zstd() -> str:
    found = shutil.which("zstd")
    if found is None:
        pytest.fail("the zstd program is needed for this test: install the package zstd")
    return found


@given(records(), st.integers(1, 400), st.integers(1, 300), st.data())
def test_compressed_frames_decompress_to_what_they_were(
    made: list[Record], frame_size: int, chunk: int, data: st.DataObject
) -> None:
    block = record.encode(to_batch(made))
    cut = data.draw(st.integers(0, len(made)))
    parts = [record.slice_block(block, 0, cut), record.slice_block(block, cut, len(made))]
    packed = compress(parts, frame_size)
    assert b"".join(frames.decompress(pieces(packed, chunk), "seg.zst")) == plain(block)
    table = frames.decode_seek_table(packed, len(packed), "seg.zst")
    assert table.plain_size == len(plain(block))


@given(records(min_size=1), st.integers(1, 400))
def test_one_record_is_one_range(made: list[Record], frame_size: int) -> None:
    """And frames end where records do: each but the last has the frame size, not a record more."""
    block = record.encode(to_batch(made))
    packed = compress([block], frame_size)
    table = frames.decode_seek_table(packed, len(packed), "seg.zst")
    index = index_of([block])
    ends = (index.positions + index.lengths).tolist()
    assert set(table.plain[1:].tolist()) <= {1, *ends}
    sizes = np.diff(table.plain)
    assert (sizes[:-1] >= frame_size).all()
    assert (sizes < frame_size + block.largest + 1).all()
    for position, length in zip(index.positions.tolist(), index.lengths.tolist(), strict=True):
        start, size, skip = table.locate(position, length)
        assert start in table.compressed.tolist()
        got = frames.extract(packed[start : start + size], skip, length, "seg.zst")
        assert got == plain(block)[position : position + length]
        assert (table.plain > position).argmax() == (table.plain >= position + length).argmax()


def test_zstd_itself_gives_the_plain_file() -> None:
    block = record.encode(to_batch(make_records()))
    packed = compress([block], 5_000)
    run = subprocess.run([zstd(), "-d", "-c"], input=packed, capture_output=True, check=True)
    assert run.stdout == plain(block)
    count = len(frames.decode_seek_table(packed, len(packed), "x").plain) - 1
    assert count > 5
    table = packed[-(8 * count + 17) :]
    assert table[:8] == struct.pack("<II", 0x184D2A5E, 8 * count + 9)
    assert table[-9:] == struct.pack("<IBI", count, 0, 0x8F92EAB1)


@pytest.mark.exhaustive
def test_the_default_frame_is_one_mib_and_a_large_record_has_its_own() -> None:
    made = [*make_records(20_000), a_record(50_000, key=None, value=bytes(20_000_000))]
    block = record.encode(to_batch(made))
    packed = frames.FrameCompressor()
    out = b"".join(packed.feed(block) + packed.finish())
    table = frames.decode_seek_table(out, len(out), "x")
    sizes = np.diff(table.plain).tolist()
    assert len(sizes) == 3
    assert (1 << 20) <= sizes[0] < (1 << 20) + 200
    assert b"".join(frames.decompress(pieces(out, 1 << 20), "x")) == plain(block)


@pytest.mark.exhaustive
def test_blocks_are_let_go_when_their_frames_are_made() -> None:
    pool = BufferPool(8 << 20)
    made = record.encode(to_batch(make_records(2000, 4000)))
    compressor = frames.FrameCompressor()
    out: list[bytes] = []
    for _ in range(20):
        lease = pool.take()[: made.nbytes]
        lease[:] = made.data
        out += compressor.feed(replace(made, data=lease))
        del lease
    out += compressor.finish()
    assert pool.allocated <= 8, "32 MiB wait, one block is being filled, and threads may be about to let go of theirs"
    assert b"".join(frames.decompress(out, "x")) == b"\x01" + 20 * made.data.tobytes()


def test_an_error_in_a_thread_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def fail(self: frames.FrameCompressor, plain: bytes) -> bytes:
        release.wait()
        raise MemoryError("no room to compress")

    monkeypatch.setattr(frames.FrameCompressor, "_compress", fail)
    block = record.encode(to_batch(make_records()))
    compressor = frames.FrameCompressor(frame_size=block.nbytes)
    assert compressor.feed(block) == []  # one frame, which is not waited for
    release.set()
    with pytest.raises(MemoryError, match="no room"):
        compressor.finish()
    compressor.close()
    compressor.close()


def test_only_the_end_of_the_file_is_needed_for_the_table() -> None:
    block = record.encode(to_batch(make_records()))
    packed = compress([block], 5_000)
    size = frames.seek_table_size(packed[-frames.FOOTER_SIZE :], len(packed), "x")
    whole = frames.decode_seek_table(packed, len(packed), "x")
    tail = frames.decode_seek_table(packed[-size:], len(packed), "x")
    assert np.array_equal(whole.compressed, tail.compressed)
    with pytest.raises(ValueError, match=f"the last {size} bytes are needed"):
        frames.decode_seek_table(packed[-size + 1 :], len(packed), "x")


# Damaged frames and seek tables are refused.


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
    with pytest.raises(CorruptError, match="x at byte 0: the frame that starts here goes past plain byte 1000"):
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
        (struct.pack("<IIII", 0x184D2A5E, 17, 8, 9) + footer(1), 34, "frames of the seek table end at"),
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
