"""One record at a time, with `struct`: to rebuild an index, and where no vector step pays."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from kbackup.formats.magic import corrupt

MIN_RECORD = 24
"""Bytes of the shortest record: no timestamp, null key, null value, no headers."""

TIMED = (0, 1)
UNTIMED = (-1, -2)

_HEAD = Struct(">qi")
_LENGTH = Struct(">i")


class ShortError(Exception):
    """The bytes end within the record; not an error in itself where more bytes may come."""


def _length(view: memoryview, at: int, stop: int) -> int:
    if at + 4 > stop:
        raise ShortError
    return int(_LENGTH.unpack_from(view, at)[0])


def _field_end(view: memoryview, at: int, stop: int, least: int, name: str, base: int, field: str) -> int:
    """Return the end of the length-prefixed field at `at`; its length must be `least` or more."""
    length = _length(view, at, stop)
    if length < least:
        raise corrupt(name, base + at, f"{field} length {length}")
    end = at + 4 + max(length, 0)
    if end > stop:
        raise ShortError
    return end


def headers(
    view: memoryview, at: int, stop: int, count: int, name: str, base: int
) -> Iterator[tuple[int, int, int]]:
    """Yield for each of `count` headers from `at` the positions of its key, of its value's length, and of its end.

    `ShortError` where it goes past `stop`.
    """
    for _ in range(count):
        middle = _field_end(view, at, stop, 0, name, base, "header key")
        end = _field_end(view, middle, stop, -1, name, base, "header value")
        yield at + 4, middle, end
        at = end


def record(view: memoryview, at: int, after: int, name: str, base: int) -> tuple[int, int]:
    """Offset and end of the record at `at`; its offset must be greater than `after`.

    `ShortError` where `view` ends first; `CorruptError` for what no more bytes could mend.
    """
    stop = len(view)
    if at + MIN_RECORD > stop:
        raise ShortError
    offset, kind = _HEAD.unpack_from(view, at)
    if offset <= after:
        raise corrupt(name, base + at, f"record offset {offset} where one above {after} was due")
    if kind not in TIMED and kind not in UNTIMED:
        raise corrupt(name, base + at + 8, f"timestamp type {kind}")
    key = at + (20 if kind in TIMED else 12)
    value = _field_end(view, key, stop, -1, name, base, "key")
    counted = _field_end(view, value, stop, -1, name, base, "value")
    count = _length(view, counted, stop)
    if count < 0:
        raise corrupt(name, base + counted, f"header count {count}")
    ends = [end for _, _, end in headers(view, counted + 4, stop, count, name, base)]
    return offset, ends[-1] if ends else counted + 4
