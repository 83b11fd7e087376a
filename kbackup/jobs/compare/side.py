"""One side of a comparison: a partition's records as far as they were read, looked at without their offsets.

A record's *body* is its encoding from the key's length on; beside it count the kind of its timestamp and the timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbackup.formats.block import heads, windows
from kbackup.types import Bytes, Int64Array, RecordBlock

_NONE = -2  # the kind of a record without a timestamp
_TIMED_HEAD, _BARE_HEAD = (
    20,
    12,
)  # bytes before the key's length: offset, type and, where there is one, timestamp

Open = Callable[[int], Iterator[RecordBlock]]
"""The records of a partition from an offset on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How timestamps count. `stamps` False: not at all (the broker puts its own). `restored`: as a restore leaves
    them: 0 becomes 1, and every time is a create time."""

    stamps: bool = True
    restored: bool = False


class Record(NamedTuple):
    """One record's parts; `headers` is their encoding, `stamp` (kind, ms)."""

    key: bytes | None
    value: bytes | None
    headers: bytes
    stamp: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Records in a row; int64[n] each but `data`: where they start in it, where the body starts, where they end."""

    data: Bytes
    offsets: Int64Array
    starts: Int64Array
    bodies: Int64Array
    ends: Int64Array
    kinds: Int64Array
    stamps: Int64Array

    def __len__(self) -> int:
        return len(self.offsets)

    def digest(self, record: int) -> int:
        """Equal for equal records; in this process alone."""
        body = self.data[self.bodies[record] : self.ends[record]].tobytes()
        return hash((int(self.kinds[record]), int(self.stamps[record]), body))

    def record(self, record: int) -> Record:
        body = self.data[self.bodies[record] : self.ends[record]].tobytes()
        key, at = _field(body, 0)
        value, at = _field(body, at)
        return Record(key, value, body[at:], (int(self.kinds[record]), int(self.stamps[record])))


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length = int.from_bytes(body[at : at + 4], "big", signed=True)
    end = at + 4 + max(length, 0)
    return (None if length < 0 else body[at + 4 : end]), end


def view(block: RecordBlock, rules: Rules) -> View:
    head = heads(block.data, block.positions)
    kinds, stamps = head["type"].astype(np.int64), head["timestamp"].astype(np.int64)
    timed = kinds >= 0
    bodies = block.positions + np.where(timed, _TIMED_HEAD, _BARE_HEAD)
    stamps[~timed] = 0
    kinds[~timed] = _NONE
    if rules.restored:
        kinds[timed] = 0
        stamps[timed & (stamps == 0)] = 1
    if not rules.stamps:
        kinds[:] = stamps[:] = 0
    ends = block.positions + block.lengths
    return View(block.data, block.offsets, block.positions, bodies, ends, kinds, stamps)


def _join(first: View, second: View) -> View:
    """One after the other, the bytes before the first one's records dropped."""
    cut = int(first.starts[0])
    kept = int(first.ends[-1]) - cut
    moved = [
        np.concatenate([getattr(first, name) - cut, getattr(second, name) + kept])
        for name in ("starts", "bodies", "ends")
    ]
    data = np.concatenate([first.data[cut : cut + kept], second.data])
    rest = [np.concatenate([getattr(first, n), getattr(second, n)]) for n in ("offsets", "kinds", "stamps")]
    return View(data, rest[0], moved[0], moved[1], moved[2], rest[1], rest[2])


def _from(some: View, start: int) -> View:
    names = ("offsets", "starts", "bodies", "ends", "kinds", "stamps")
    return View(some.data, *(getattr(some, name)[start:] for name in names))


class Side:
    """Reads on as far as it is asked to. `at` is the first record of `seen` that is still to be looked at."""

    def __init__(self, opened: Open, start: int, rules: Rules) -> None:
        self._open, self._rules = opened, rules
        self.seen = view(_EMPTY, rules)
        self.at = 0
        self.ended = False
        self._blocks = opened(start)

    @property
    def left(self) -> int:
        return len(self.seen) - self.at

    @property
    def next(self) -> int:
        """The offset of the first record that is left; there must be one."""
        return int(self.seen.offsets[self.at])

    def fill(self, records: int, size: int = 0) -> int:
        """Reads until so many records are left, or more than `size` bytes of them, or there are no more; returns
        how many are."""
        while self.left < records and not self.ended and not (size and self._held() > size):
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
            elif len(block):
                more = view(block, self._rules)
                self.seen = _join(_from(self.seen, self.at), more) if self.left else more
                self.at = 0
        return self.left

    def skip(self, records: int) -> None:
        self.at += records

    def rewind(self, offset: int) -> None:
        """Read again from `offset` on."""
        self.close()
        self.seen, self.at, self.ended = view(_EMPTY, self._rules), 0, False
        self._blocks = self._open(offset)

    def digests(self, records: int, after: int = 0) -> list[int]:
        """Those of so many of the records left, less the first `after`."""
        return [self.seen.digest(self.at + after + n) for n in range(records)]

    def record(self, number: int) -> Record:
        return self.seen.record(self.at + number)

    def offset(self, number: int) -> int:
        return int(self.seen.offsets[self.at + number])

    def bytes_of(self, records: int) -> int:
        first, last = self.at, self.at + records - 1
        return int(self.seen.ends[last] - self.seen.starts[first]) if records else 0

    def close(self) -> None:
        """Lets go of what reads; iterators that are made elsewhere need no closing."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _held(self) -> int:
        return self.bytes_of(self.left)


def agree(one: Side, other: Side, records: int) -> int:
    """How many of the next `records` (no more than are left) are the same on both sides before the first that is
    not. Bytes are compared, not digests."""
    a, b = slice(one.at, one.at + records), slice(other.at, other.at + records)
    x, y = one.seen, other.seen
    same = (x.ends[a] - x.bodies[a] == y.ends[b] - y.bodies[b]) & (x.kinds[a] == y.kinds[b])
    same &= x.stamps[a] == y.stamps[b]
    alike = records if same.all() else int(np.argmin(same))
    if not alike:
        return 0
    mine, theirs = _bodies(x, one.at, alike), _bodies(y, other.at, alike)
    if len(mine.data) == len(theirs.data) and np.array_equal(mine.starts, theirs.starts):
        differ = mine.data != theirs.data
        _blank(differ, mine.starts, mine.bodies)
        starts = mine.starts
    else:  # records with and without timestamps, where these don't count
        differ = _packed(mine) != _packed(theirs)
        lengths = mine.ends - mine.bodies
        starts = np.cumsum(lengths) - lengths
    if not differ.any():
        return alike
    return int(np.searchsorted(starts, int(np.argmax(differ)), side="right")) - 1


class _Bodies(NamedTuple):
    """Bytes of some records; starts, bodies and ends count from the first one's start."""

    data: Bytes
    starts: Int64Array
    bodies: Int64Array
    ends: Int64Array


def _bodies(some: View, at: int, records: int) -> _Bodies:
    part = slice(at, at + records)
    first = int(some.starts[at])
    starts, bodies, ends = (column[part] - first for column in (some.starts, some.bodies, some.ends))
    return _Bodies(some.data[first : first + int(ends[-1])], starts, bodies, ends)


def _blank(differ: npt.NDArray[np.bool_], starts: Int64Array, bodies: Int64Array) -> None:
    """Clears what stands for the heads of records."""
    flags = differ.view(np.uint8)
    windows(flags, f"V{_BARE_HEAD}")[starts] = np.zeros(1, f"V{_BARE_HEAD}")
    timed = starts[bodies - starts == _TIMED_HEAD] + _BARE_HEAD
    windows(flags, "V8")[timed] = np.zeros(1, "V8")


def _packed(some: _Bodies) -> Bytes:
    """The bodies alone, one after the other."""
    edges = np.zeros(len(some.data) + 1, np.int8)  # a head begins, a head ends
    edges[some.starts] = 1
    edges[some.bodies] = -1
    packed: Bytes = some.data[np.cumsum(edges[:-1], dtype=np.int8) == 0]
    return packed


_NOTHING = np.empty(0, np.int64)
_EMPTY = RecordBlock(np.empty(0, np.uint8), _NOTHING, _NOTHING, _NOTHING, None, None, 0)
