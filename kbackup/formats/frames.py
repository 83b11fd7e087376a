"""Frames of compressed segments: the seek table of the *zstd seekable format* (contrib/seekable_format of zstd), and
reads by it.

A skippable frame that ends the file; ours has no checksums, as every frame carries zstd's own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from struct import Struct

import numpy as np
import zstandard

from kbackup.formats.fields import MAGIC_BYTE, Buffer, corrupt
from kbackup.types import Int64Array, RecordBlock

FOOTER_SIZE = 9
SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"

_HEADER = Struct("<4sI")
_FOOTER = Struct("<IBI")
_SEEKABLE_MAGIC = 0x8F92EAB1
_ENTRY_SIZE = 8


def table_size(frames: int) -> int:
    """Return bytes of the seek table of so many frames, all included."""
    return _HEADER.size + frames * _ENTRY_SIZE + FOOTER_SIZE


def encode_seek_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Return the table of frames of these (compressed, plain) sizes in bytes."""
    entries = np.array(sizes, "<u4").tobytes()
    header = _HEADER.pack(SKIPPABLE_MAGIC, len(entries) + FOOTER_SIZE)
    return header + entries + _FOOTER.pack(len(sizes), 0, _SEEKABLE_MAGIC)


@dataclass(frozen=True, slots=True, eq=False)
class SeekTable:
    """The start of each frame of the file `name`, in the file (`compressed`) and in its plain form (`plain`).
    int64[frames + 1] each; the last element is the end of the frames."""

    name: str
    compressed: Int64Array
    plain: Int64Array

    @property
    def plain_size(self) -> int:
        return int(self.plain[-1])

    def locate(self, position: int, length: int) -> tuple[int, int, int]:
        """Find the frames that hold `length` bytes from `position` of the plain file (see `frames.extract`). Returns
        start and length in the compressed file, and the number of plain bytes to skip. `CorruptError` if the plain file
        has no such bytes."""
        if position < 0 or length < 1 or position + length > self.plain_size:
            damage = f"no bytes {position} to {position + length} in the {self.plain_size} of its plain form"
            raise corrupt(self.name, int(self.compressed[-1]), damage)
        last_position = position + length - 1
        first, last = np.searchsorted(self.plain, (position, last_position), side="right") - 1
        start = int(self.compressed[first])
        end = int(self.compressed[last + 1])
        skip = position - int(self.plain[first])
        return start, end - start, skip


def seek_table_size(tail: bytes, file_size: int, name: str) -> int:
    """Return the size of the seek table at the end of the file, read from `FOOTER_SIZE` of them or more."""
    if len(tail) < FOOTER_SIZE:
        raise corrupt(name, file_size - len(tail), "too short for a seek table")
    at = file_size - FOOTER_SIZE
    count, descriptor, magic = _FOOTER.unpack_from(tail, len(tail) - FOOTER_SIZE)
    if magic != _SEEKABLE_MAGIC or descriptor:
        raise corrupt(name, at, "the file does not end in a seek table without checksums")
    size = table_size(count)
    if not count or size > file_size:
        raise corrupt(name, at, f"a seek table of {count} frames in a file of {file_size} bytes")
    return size


def decode_seek_table(tail: bytes, file_size: int, name: str) -> SeekTable:
    """Return the table from the last bytes of a file of `file_size` bytes: at least `seek_table_size` of them.
    `ValueError` for fewer; `CorruptError` unless the table accounts for every byte of the file."""
    size = seek_table_size(tail, file_size, name)
    if len(tail) < size:
        raise ValueError(f"the last {size} bytes are needed, not {len(tail)}")
    start = len(tail) - size
    at = file_size - size
    if _HEADER.unpack_from(tail, start) != (SKIPPABLE_MAGIC, size - _HEADER.size):
        raise corrupt(name, at, "the seek table does not start where its footer says")
    count = (size - table_size(0)) // 4
    entries = np.frombuffer(tail, "<u4", count, start + _HEADER.size).reshape(-1, 2)
    if not entries.all():
        raise corrupt(name, at, "an empty frame in the seek table")
    edges = np.zeros((len(entries) + 1, 2), np.int64)
    np.cumsum(entries, axis=0, out=edges[1:])
    if edges[-1, 0] != at:
        raise corrupt(name, at, f"the frames of the seek table end at byte {edges[-1, 0]}")
    return SeekTable(name, edges[:, 0], edges[:, 1])


# The compressed form of a records file: zstd frames of whole records, then a seek table (`seek`).
#
# Every frame carries zstd's content checksum. `zstd -d` gives the plain file, magic byte first.

FRAME_SIZE = 1 << 20

LEVEL = 1
"""JSON takes 19 to 25 % of its bytes. Level 3 saves 2 % more, and takes twice the CPU for incompressible bytes."""
_THREADS = min(os.cpu_count() or 1, 4)
_WAITING = 2 * (16 << 20)
"""Plain bytes that may be with the threads: two of the largest blocks."""

_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 12
"""Compressed bytes that are given to zstd at once: it answers with all that they are, 32,768 times as much at worst."""


class FrameCompressor:
    """Records in, compressed frames out, in order, to be written one after the other; `finish` gives the last. A frame
    is closed by the record with which it has `frame_size` plain bytes or more, so a record is never split over frames.
    The first frame starts with the magic byte. Frames are compressed by a few threads (zstd holds no lock of Python's):
    `feed` waits only while more than `_WAITING` plain bytes are with them, and until then refers to the blocks' memory.
    A thread's error comes out of `feed` or `finish`; after it, or to give up, `close`."""

    def __init__(self, frame_size: int = FRAME_SIZE) -> None:
        self._frame_size = frame_size
        self._pending = bytearray(MAGIC_BYTE)
        self._sizes: list[tuple[int, int]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._waiting: deque[tuple[Future[bytes], int]] = deque()
        self._waiting_bytes = 0

    def feed(self, block: RecordBlock) -> list[bytes]:
        """Take the block's records; the frames that are ready by now (often none)."""
        ends = block.positions + block.lengths
        frames: list[bytes] = []
        start = 0
        while True:
            full = int(np.searchsorted(ends, start + self._frame_size - len(self._pending)))
            if full == len(ends):
                break
            plain: bytearray | memoryview = block.data[start : ends[full]].data
            if self._pending:
                plain = self._pending + plain
                # A new one: a thread has the other.
                self._pending = bytearray()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, "zstd")
            compressed = self._threads.submit(self._compress, plain)
            self._waiting.append((compressed, len(plain)))
            self._waiting_bytes += len(plain)
            frames += self._ready(_WAITING)
            start = int(ends[full])
        self._pending += block.data[start:].data
        return frames

    def finish(self) -> list[bytes]:
        """Return the last frames and the seek table; nothing can be fed afterwards."""
        frames = self._ready(0)
        if self._pending:
            frame = self._compress(self._pending)
            frames.append(frame)
            self._sizes.append((len(frame), len(self._pending)))
        self.close()
        frames.append(encode_seek_table(self._sizes))
        return frames

    def close(self) -> None:
        """Give up what is being compressed; idempotent."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._waiting.clear()

    def _ready(self, most: int) -> list[bytes]:
        """Return the compressed frames; wait until at most `most` plain bytes are not compressed yet."""
        frames: list[bytes] = []
        # From the front, as frames are written in order: one that is ready early waits for those before it.
        while self._waiting:
            future, size = self._waiting[0]
            if self._waiting_bytes <= most and not future.done():
                break
            self._waiting.popleft()
            frame = future.result()
            frames.append(frame)
            self._sizes.append((len(frame), size))
            self._waiting_bytes -= size
        return frames

    def _compress(self, plain: bytearray | memoryview) -> bytes:
        # Each thread has its own: a compressor can't be used by two at once.
        zstd: zstandard.ZstdCompressor | None = getattr(self._own, "zstd", None)
        if zstd is None:
            zstd = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
            self._own.zstd = zstd
        return zstd.compress(plain)


def extract(frames: bytes, skip: int, length: int, name: str, most: int | None = None) -> bytes:
    """Return `length` plain bytes after the first `skip` of whole frames, at the position from `SeekTable.locate`.
    `CorruptError` also for frames of more than `most` plain bytes."""
    plain = b"".join(_plain([frames], name, most, [(0, 0)]))
    if len(plain) < skip + length:
        raise corrupt(name, len(plain), f"the frames end before plain byte {skip + length}")
    return plain[skip : skip + length]


def decompress(chunks: Iterable[Buffer], name: str, most: int | None = None) -> Iterator[bytes]:
    """Yield the plain file, as a stream, from the compressed one in chunks of any size. `CorruptError` for a damaged or
    cut frame, for more than `most` plain bytes, and for a seek table that is missing or doesn't match the frames."""
    edges = [(0, 0)]
    read, tail = yield from _plain(chunks, name, most, edges)
    if read > edges[-1][0]:
        raise corrupt(name, read, "the file ends within a frame")
    size = read + len(tail)
    if seek_table_size(tail, size, name) != len(tail):
        raise corrupt(name, read, "something else than a seek table after the last frame")
    table = decode_seek_table(tail, size, name)
    table_edges = zip(table.compressed.tolist(), table.plain.tolist(), strict=True)
    if list(table_edges) != edges:
        raise corrupt(name, read, "the seek table is not that of the frames")


def _plain(
    chunks: Iterable[Buffer], name: str, most: int | None, edges: list[tuple[int, int]]
) -> Generator[bytes, None, tuple[int, bytes]]:
    """Yield the plain bytes, and add where each frame ends to `edges`: in the file and in its plain form. Return the
    size of the frames, and the bytes behind them: too few to identify, or the seek table."""
    zstd = zstandard.ZstdDecompressor()
    frame: zstandard.ZstdDecompressionObj | None = None
    read = 0
    given = 0
    rest = b""
    for chunk in chunks:
        view = np.frombuffer(chunk, np.uint8).data
        # In small pieces: zstd copies its remaining input after each frame.
        for start in range(0, len(view), _PIECE):
            rest += bytes(view[start : start + _PIECE])
            while rest:
                if frame is None:
                    if len(rest) < 4 or rest.startswith(SKIPPABLE_MAGIC):
                        break
                    if not rest.startswith(_FRAME_MAGIC):
                        raise corrupt(name, read, "neither a zstd frame nor a seek table")
                    frame = zstd.decompressobj()
                try:
                    plain = frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise corrupt(name, edges[-1][0], f"a damaged frame starts here ({error})") from None
                after = frame.unused_data if frame.eof else b""
                read += len(rest) - len(after)
                given += len(plain)
                rest = after
                if most is not None and given > most:
                    raise corrupt(name, edges[-1][0], f"the frame that starts here goes past plain byte {most}")
                if frame.eof:
                    edges.append((read, given))
                    frame = None
                if plain:
                    yield plain
            if len(rest) > table_size(len(edges) - 1):
                raise corrupt(name, read, "more than a seek table after the last frame")
    return read, rest
