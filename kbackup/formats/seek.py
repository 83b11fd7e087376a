"""The seek table of the *zstd seekable format* (contrib/seekable_format of the zstd project).

A skippable frame that ends the file; ours has no checksums, as every frame carries zstd's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from kbackup.formats.magic import corrupt
from kbackup.types import Int64Array

FOOTER_SIZE = 9
SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"

_HEADER = Struct("<4sI")
_FOOTER = Struct("<IBI")
_SEEKABLE_MAGIC = 0x8F92EAB1
_ENTRY_SIZE = 8


def table_size(frames: int) -> int:
    """Bytes of the seek table of so many frames, all included."""
    return _HEADER.size + frames * _ENTRY_SIZE + FOOTER_SIZE


def encode_seek_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """The table of frames of these (compressed, plain) sizes in bytes."""
    entries = np.array(sizes, "<u4").tobytes()
    header = _HEADER.pack(SKIPPABLE_MAGIC, len(entries) + FOOTER_SIZE)
    return header + entries + _FOOTER.pack(len(sizes), 0, _SEEKABLE_MAGIC)


@dataclass(frozen=True, slots=True, eq=False)
class SeekTable:
    """The start of each frame of the file `name`, in the file (`compressed`) and in its plain form (`plain`).

    int64[frames + 1] each; the last element is the end of the frames.
    """

    name: str
    compressed: Int64Array
    plain: Int64Array

    @property
    def plain_size(self) -> int:
        return int(self.plain[-1])

    def locate(self, position: int, length: int) -> tuple[int, int, int]:
        """Find the frames that hold `length` bytes from `position` of the plain file (see `frames.extract`).

        Returns start and length in the compressed file, and the number of plain bytes to skip. `CorruptError` if the
        plain file has no such bytes.
        """
        if position < 0 or length < 1 or position + length > self.plain_size:
            damage = f"no bytes {position} to {position + length} in the {self.plain_size} of its plain form"
            raise corrupt(self.name, int(self.compressed[-1]), damage)
        first, last = np.searchsorted(self.plain, (position, position + length - 1), side="right") - 1
        start = int(self.compressed[first])
        return start, int(self.compressed[last + 1]) - start, position - int(self.plain[first])


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
    """The table from the last bytes of a file of `file_size` bytes: at least `seek_table_size` of them.

    `ValueError` for fewer; `CorruptError` unless the table accounts for every byte of the file.
    """
    size = seek_table_size(tail, file_size, name)
    if len(tail) < size:
        raise ValueError(f"the last {size} bytes are needed, not {len(tail)}")
    start, at = len(tail) - size, file_size - size
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
