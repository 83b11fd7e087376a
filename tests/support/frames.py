"""Blocks of records, compressed into frames."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kbackup.formats import frames
from kbackup.types import RecordBlock
from tests.unit.formats.reference import Record


def compress(blocks: Iterable[RecordBlock], frame_size: int) -> bytes:
    compressor = frames.FrameCompressor(frame_size=frame_size)
    return b"".join([frame for block in blocks for frame in compressor.feed(block)] + compressor.finish())


def make_records(count: int = 400, size: int = 100) -> list[Record]:
    rng = np.random.default_rng(3)
    return [Record(i * 2, 0, 1_600_000_000_000 + i, b"k%d" % i, rng.bytes(size), []) for i in range(count)]


def plain(block: RecordBlock) -> bytes:
    return b"\x01" + block.data.tobytes()


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]
