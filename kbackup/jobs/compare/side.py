"""One side of a comparison of records, and the result of comparing a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbackup.archive.models import Member
from kbackup.formats.block import heads, windows
from kbackup.types import Bytes, Int64Array, RecordBlock

Kind = Literal["missing", "extra", "order", "key", "value", "headers", "timestamp", "place"]


class Difference(Member, frozen=True, kw_only=True):
    """`what` is wrong with `count` records from offset `source` (null: not in the archive) or `target` (null: not in
    the topic) on. `expected` is the target offset in the offset map, if `what` is 'place' (null: none)."""

    what: tuple[Kind, ...]
    source: int | None = None
    target: int | None = None
    count: int = 1
    expected: int | None = None


class Comparison(Member, frozen=True, kw_only=True):
    """`records` counts the archive's records that were compared, `bytes` is their size; `same` counts the records that
    are in the topic, whole and in order. `counts` has how many records differ, by what. `after` is how many records the
    topic has after the archive's last one, from target offset `after_from` on. `stopped` is the reason why not all was
    compared."""

    topic: str
    partition: int
    target: str
    records: int
    bytes: int
    same: int
    counts: dict[Kind, int]
    differences: tuple[Difference, ...]
    after: int = 0
    after_from: int | None = None
    stopped: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TargetOffsets:
    """Target offsets of a partition's source offsets, as runs sorted by source.

    int64[n] each; the record of offset `source + i` has target offset `target + i`, 0 <= i < `count`.
    """

    source: Int64Array
    target: Int64Array
    count: Int64Array

    def targets(self, sources: Int64Array) -> Int64Array:
        """Return the target offset of each source offset, -1 if it has none."""
        if not len(self.source):
            return np.full(len(sources), -1, np.int64)
        at = np.searchsorted(self.source, sources, side="right") - 1
        into = sources - self.source[at]
        return np.where((at >= 0) & (into < self.count[at]), self.target[at] + into, -1)


@dataclass
class Tally:
    """Counts every difference, and names the first `show` of them. `reported`: calls of `add_difference`."""

    show: int
    counts: Counter[Kind] = field(default_factory=Counter)
    named: list[Difference] = field(default_factory=list)
    reported: int = 0

    def add_difference(self, kinds: tuple[Kind, ...], source: int | None, target: int | None, count: int = 1) -> None:
        self.reported += 1
        for kind in kinds:
            self.counts[kind] += count
        if len(self.named) < self.show:
            self.named.append(Difference(what=kinds, source=source, target=target, count=count))

    def add_misplaced(self, sources: Int64Array, targets: Int64Array, expected: Int64Array) -> None:
        """Add the records that are the same but have another offset than expected."""
        wrong = np.flatnonzero(expected != targets)
        if not len(wrong):
            return
        self.counts["place"] += len(wrong)
        for at in wrong[: max(0, self.show - len(self.named))].tolist():
            due = int(expected[at])
            self.named.append(
                Difference(
                    what=("place",),
                    source=int(sources[at]),
                    target=int(targets[at]),
                    expected=due if due >= 0 else None,
                )
            )


# One side of a comparison: the records of a partition, read as far as needed, and compared without their offsets.
#
# A record's *body* is its encoding from the key's length on. Compared are the body, the timestamp and its type.


_NONE = -2  # the kind of a record without a timestamp
_TIMED_HEAD, _BARE_HEAD = (20, 12)  # bytes before the key's length: offset, type and, where there is one, timestamp

Open = Callable[[int], Iterator[RecordBlock]]
"""The records of a partition from an offset on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of comparing timestamps.

    `stamps` False: timestamps are not compared (the broker sets its own). `restored`: timestamps are changed as a
    restore changes them: 0 becomes 1, and every time is a create time.
    """

    stamps: bool = True
    restored: bool = False


class ComparedRecord(NamedTuple):
    """One record's parts; `headers` is their encoding, `stamp` (kind, ms)."""

    key: bytes | None
    value: bytes | None
    headers: bytes
    stamp: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class RecordView:
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
        """Return a number that is equal for equal records, in this process alone."""
        body = self.data[self.bodies[record] : self.ends[record]].tobytes()
        return hash((int(self.kinds[record]), int(self.stamps[record]), body))

    def record(self, record: int) -> ComparedRecord:
        body = self.data[self.bodies[record] : self.ends[record]].tobytes()
        key, at = _field(body, 0)
        value, at = _field(body, at)
        return ComparedRecord(key, value, body[at:], (int(self.kinds[record]), int(self.stamps[record])))


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length = int.from_bytes(body[at : at + 4], "big", signed=True)
    end = at + 4 + max(length, 0)
    return (None if length < 0 else body[at + 4 : end]), end


def make_view(block: RecordBlock, rules: Rules) -> RecordView:
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
    return RecordView(block.data, block.offsets, block.positions, bodies, ends, kinds, stamps)


def _join(first: RecordView, second: RecordView) -> RecordView:
    """Append the second view to the first; drop the bytes before the first view's records."""
    cut = int(first.starts[0])
    kept = int(first.ends[-1]) - cut
    moved = [
        np.concatenate([getattr(first, name) - cut, getattr(second, name) + kept])
        for name in ("starts", "bodies", "ends")
    ]
    data = np.concatenate([first.data[cut : cut + kept], second.data])
    rest = [np.concatenate([getattr(first, n), getattr(second, n)]) for n in ("offsets", "kinds", "stamps")]
    return RecordView(data, rest[0], moved[0], moved[1], moved[2], rest[1], rest[2])


def _from(view: RecordView, start: int) -> RecordView:
    names = ("offsets", "starts", "bodies", "ends", "kinds", "stamps")
    return RecordView(view.data, *(getattr(view, name)[start:] for name in names))


class Side:
    """Reads on as far as it is request to. `at` is the first record of `seen` that is still to be looked at."""

    def __init__(self, opened: Open, start: int, rules: Rules) -> None:
        self._open, self._rules = opened, rules
        self.seen = make_view(_EMPTY, rules)
        self.at = 0
        self.ended = False
        self._blocks = opened(start)

    @property
    def remaining(self) -> int:
        return len(self.seen) - self.at

    @property
    def next_offset(self) -> int:
        """Return the offset of the first remaining record; there must be one."""
        return int(self.seen.offsets[self.at])

    def fill(self, records: int, size: int = 0) -> int:
        """Read until `records` records or more than `size` bytes remain, or to the end; return how many remain."""
        while self.remaining < records and not self.ended and not (size and self._unread_bytes() > size):
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
            elif len(block):
                more = make_view(block, self._rules)
                self.seen = _join(_from(self.seen, self.at), more) if self.remaining else more
                self.at = 0
        return self.remaining

    def skip(self, records: int) -> None:
        self.at += records

    def rewind(self, offset: int) -> None:
        """Read again from `offset` on."""
        self.close()
        self.seen, self.at, self.ended = make_view(_EMPTY, self._rules), 0, False
        self._blocks = self._open(offset)

    def digests(self, records: int, after: int = 0) -> list[int]:
        """Return the digests of `records` remaining records, from the one of index `after` on."""
        return [self.seen.digest(self.at + after + n) for n in range(records)]

    def record(self, number: int) -> ComparedRecord:
        return self.seen.record(self.at + number)

    def offset(self, number: int) -> int:
        return int(self.seen.offsets[self.at + number])

    def bytes_of(self, records: int) -> int:
        first, last = self.at, self.at + records - 1
        return int(self.seen.ends[last] - self.seen.starts[first]) if records else 0

    def close(self) -> None:
        """Close the reader; an iterator that is no generator needs no closing."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _unread_bytes(self) -> int:
        return self.bytes_of(self.remaining)


def count_equal(one: Side, other: Side, records: int) -> int:
    """Return how many of the next `records` are equal on both sides before the first difference.

    `records` is at most the remaining records of each side. Bytes are compared, not digests.
    """
    a, b = slice(one.at, one.at + records), slice(other.at, other.at + records)
    x, y = one.seen, other.seen
    same = (x.ends[a] - x.bodies[a] == y.ends[b] - y.bodies[b]) & (x.kinds[a] == y.kinds[b])
    same &= x.stamps[a] == y.stamps[b]
    alike = records if same.all() else int(np.argmin(same))
    if not alike:
        return 0
    ours, others = _bodies(x, one.at, alike), _bodies(y, other.at, alike)
    if len(ours.data) == len(others.data) and np.array_equal(ours.starts, others.starts):
        differ = ours.data != others.data
        _blank(differ, ours.starts, ours.bodies)
        starts = ours.starts
    else:  # records with and without timestamps, where these don't count
        differ = _packed(ours) != _packed(others)
        lengths = ours.ends - ours.bodies
        starts = np.cumsum(lengths) - lengths
    if not differ.any():
        return alike
    return int(np.searchsorted(starts, int(np.argmax(differ)), side="right")) - 1


class _Bodies(NamedTuple):
    """Bytes of records in a row; starts, bodies and ends count from the first one's start."""

    data: Bytes
    starts: Int64Array
    bodies: Int64Array
    ends: Int64Array


def _bodies(view: RecordView, at: int, records: int) -> _Bodies:
    part = slice(at, at + records)
    first = int(view.starts[at])
    starts, bodies, ends = (column[part] - first for column in (view.starts, view.bodies, view.ends))
    return _Bodies(view.data[first : first + int(ends[-1])], starts, bodies, ends)


def _blank(differ: npt.NDArray[np.bool_], starts: Int64Array, bodies: Int64Array) -> None:
    """Clear the flags of the heads of records."""
    flags = differ.view(np.uint8)
    windows(flags, f"V{_BARE_HEAD}")[starts] = np.zeros(1, f"V{_BARE_HEAD}")
    timed = starts[bodies - starts == _TIMED_HEAD] + _BARE_HEAD
    windows(flags, "V8")[timed] = np.zeros(1, "V8")


def _packed(view: _Bodies) -> Bytes:
    """Return the bodies alone, joined."""
    edges = np.zeros(len(view.data) + 1, np.int8)  # a head begins, a head ends
    edges[view.starts] = 1
    edges[view.bodies] = -1
    packed: Bytes = view.data[np.cumsum(edges[:-1], dtype=np.int8) == 0]
    return packed


_NOTHING = np.empty(0, np.int64)
_EMPTY = RecordBlock(np.empty(0, np.uint8), _NOTHING, _NOTHING, _NOTHING, None, None, 0)
