"""Compare a partition of an archive with a partition of a topic: count, order and content of every record.

Both sides are blocks, cut anywhere. While both sides agree, bytes are compared by vector steps, without the offsets;
where they differ, records are compared one by one. In memory are the current blocks, or `_WINDOW` bytes a side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np

from kbackup.formats.block import heads, windows
from kbackup.jobs.compare.report import Comparison, Difference, DifferenceKind
from kbackup.types import Bytes, Int64Array, RecordBlock

_RUN = 8
"""Both sides agree again where this many records in a row are equal."""
_LEAST = 64
_MOST = 1 << 20
"""Records that are compared at a time: `_LEAST` after a difference, growing to `_MOST`."""
_SEARCHES = ((32, _RUN), (256, _RUN), (256, 3), (4096, _RUN), (32768, _RUN))
"""Searches for the next agreement: the records that are looked at on each side, and the equal records required."""
_WINDOW = 32 << 20
"""Bytes of a side in memory while the next agreement is searched."""
_MOST_FAR_SEARCHES = 4
"""Searches beyond the window in one partition. Each reads to the next agreement, or to the end."""
_PAIRED = 256
"""Records that are paired in their order where nothing agrees."""
_MOST_DIFFERENCES = 10_000
"""With more differences than these, the topic has other records; the comparison stops."""

Unpaired = Literal["missing", "extra"]
Open = Callable[[int], Iterator[RecordBlock]]  # the records of a partition from an offset on

_NONE = -2  # the kind of a record without a timestamp
_TIMED_HEAD, _BARE_HEAD = (20, 12)  # bytes before the key's length: offset, type and, where there is one, timestamp


@dataclass(frozen=True, slots=True, eq=False)
class TargetOffsets:
    """Target offsets of a partition's source offsets, as runs sorted by source. int64[n] each; the record of offset
    `source + i` has target offset `target + i`, 0 <= i < `count`."""

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


# One side of a comparison: the records of a partition, read as far as needed, and compared without their offsets.
#
# A record's *body* is its encoding from the key's length on. Compared are the body, the timestamp and its type.


class ComparedRecord(NamedTuple):
    """One record's parts; `headers` is their encoding, `stamp` (kind, ms)."""

    key: bytes | None
    value: bytes | None
    headers: bytes
    stamp: tuple[int, int]


class RecordView(NamedTuple):
    """Records in a row. `data` are their bytes; `starts`, `bodies` and `ends` say where in `data` each record starts,
    where its body starts and where it ends. All columns are int64[n]."""

    data: Bytes
    offsets: Int64Array
    starts: Int64Array
    bodies: Int64Array
    ends: Int64Array
    kinds: Int64Array
    stamps: Int64Array

    def body(self, record: int) -> bytes:
        return self.data[self.bodies[record] : self.ends[record]].tobytes()

    def stamp(self, record: int) -> tuple[int, int]:
        return int(self.kinds[record]), int(self.stamps[record])

    def part(self, first: int, stop: int) -> RecordView:
        """Return the records from `first` to `stop` (exclusive; at least one), whose data begin with the first."""
        rows = slice(first, stop)
        start = int(self.starts[first])
        end = int(self.ends[stop - 1])
        starts, bodies, ends = self.starts[rows], self.bodies[rows], self.ends[rows]
        if start:
            starts, bodies, ends = starts - start, bodies - start, ends - start
        return RecordView(
            data=self.data[start:end],
            offsets=self.offsets[rows],
            starts=starts,
            bodies=bodies,
            ends=ends,
            kinds=self.kinds[rows],
            stamps=self.stamps[rows],
        )

    def with_more(self, more: RecordView) -> RecordView:
        """Append records. The data end with the last record of this view."""
        size = len(self.data)
        return RecordView(
            data=np.concatenate((self.data, more.data)),
            offsets=np.concatenate((self.offsets, more.offsets)),
            starts=np.concatenate((self.starts, more.starts + size)),
            bodies=np.concatenate((self.bodies, more.bodies + size)),
            ends=np.concatenate((self.ends, more.ends + size)),
            kinds=np.concatenate((self.kinds, more.kinds)),
            stamps=np.concatenate((self.stamps, more.stamps)),
        )


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    length = int.from_bytes(body[at : at + 4], "big", signed=True)
    end = at + 4 + max(length, 0)
    return (None if length < 0 else body[at + 4 : end]), end


class Side:
    """The records of one side, read as far as they are asked for.

    `seen` are the records in memory; `at` is the index of the first one that is still to be compared. Without `stamps`,
    timestamps are not compared (the broker sets its own). With `restored`, timestamps are changed as a restore changes
    them: 0 becomes 1, and every time is a create time.
    """

    def __init__(self, opened: Open, start: int, *, stamps: bool = True, restored: bool = False) -> None:
        self._open, self._stamps, self._restored = opened, stamps, restored
        self._start(start)

    def _start(self, offset: int) -> None:
        self.seen = RecordView(np.empty(0, np.uint8), *(np.empty(0, np.int64) for _ in range(6)))
        self.at, self.ended = 0, False
        self._blocks = self._open(offset)

    @property
    def remaining(self) -> int:
        return len(self.seen.offsets) - self.at

    @property
    def next_offset(self) -> int:
        """Return the offset of the first remaining record; there must be one."""
        return self.offset(0)

    def fill(self, records: int, size: int = 0) -> int:
        """Read until `records` records or more than `size` bytes remain, or to the end; return how many remain."""
        while self.remaining < records and not self.ended and not (size and self.bytes_of(self.remaining) > size):
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
            elif len(block):
                more = self._view(block)
                if self.remaining:
                    more = self.seen.part(self.at, len(self.seen.offsets)).with_more(more)
                self.seen, self.at = more, 0
        return self.remaining

    def _view(self, block: RecordBlock) -> RecordView:
        head = heads(block.data, block.positions)
        kinds, stamps = head["type"].astype(np.int64), head["timestamp"].astype(np.int64)
        timed = kinds >= 0
        bodies = block.positions + np.where(timed, _TIMED_HEAD, _BARE_HEAD)
        stamps[~timed] = 0
        kinds[~timed] = _NONE
        if self._restored:
            kinds[timed] = 0
            stamps[timed & (stamps == 0)] = 1
        if not self._stamps:
            kinds[:] = stamps[:] = 0
        ends = block.positions + block.lengths
        return RecordView(block.data, block.offsets, block.positions, bodies, ends, kinds, stamps)

    def skip(self, records: int) -> None:
        self.at += records

    def rewind(self, offset: int) -> None:
        """Read again from `offset` on."""
        self.close()
        self._start(offset)

    def digests(self, records: int, after: int = 0) -> list[int]:
        """Return a number for each of `records` remaining records, from the one of index `after` on, that is equal for
        equal records, in this process alone."""
        first = self.at + after
        return [hash((self.seen.stamp(n), self.seen.body(n))) for n in range(first, first + records)]

    def record(self, number: int) -> ComparedRecord:
        body = self.seen.body(self.at + number)
        key, at = _field(body, 0)
        value, at = _field(body, at)
        return ComparedRecord(key, value, body[at:], self.seen.stamp(self.at + number))

    def offset(self, number: int) -> int:
        return int(self.seen.offsets[self.at + number])

    def bytes_of(self, records: int) -> int:
        return int(self.seen.ends[self.at + records - 1] - self.seen.starts[self.at]) if records else 0

    def close(self) -> None:
        """Close the reader; an iterator that is no generator needs no closing."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()


def count_equal(one: Side, other: Side, records: int) -> int:
    """Return how many of the next `records` are equal on both sides before the first difference. `records` is at most
    the remaining records of each side. Bytes are compared, not digests."""
    x, y = one.seen.part(one.at, one.at + records), other.seen.part(other.at, other.at + records)
    same = (x.ends - x.bodies == y.ends - y.bodies) & (x.kinds == y.kinds) & (x.stamps == y.stamps)
    alike = records if same.all() else int(np.argmin(same))
    if not alike:
        return 0
    x, y = x.part(0, alike), y.part(0, alike)
    if len(x.data) == len(y.data) and np.array_equal(x.starts, y.starts):
        starts, differ = x.starts, x.data != y.data
        # heads don't count
        flags = differ.view(np.uint8)
        windows(flags, f"V{_BARE_HEAD}")[starts] = np.zeros(1, f"V{_BARE_HEAD}")
        timed = starts[x.bodies - starts == _TIMED_HEAD] + _BARE_HEAD
        windows(flags, "V8")[timed] = np.zeros(1, "V8")
    else:  # records with and without timestamps, where these don't count
        differ = _packed(x) != _packed(y)
        lengths = x.ends - x.bodies
        starts = np.cumsum(lengths) - lengths
    if not differ.any():
        return alike
    return int(np.searchsorted(starts, int(np.argmax(differ)), side="right")) - 1


def _packed(view: RecordView) -> Bytes:
    """Return the bodies alone, joined."""
    edges = np.zeros(len(view.data) + 1, np.int8)  # a head begins, a head ends
    edges[view.starts] = 1
    edges[view.bodies] = -1
    packed: Bytes = view.data[np.cumsum(edges[:-1], dtype=np.int8) == 0]
    return packed


# Where two sequences of records differ, where they agree again, and which records pair. Pure.
#
# Records are given as digests: equal digests stand for equal records.

_MATCHES_TRIED = 8  # of a digest that occurs often, so many occurrences are compared
_CELLS = 40_000  # of a table of costs: 200 by 200 records take some 50 ms

Cost = Callable[[int, int], float]  # dissimilarity of two records, given by their indexes: 0 to 1.


class Pair(NamedTuple):
    """Indexes of a record on one side and of its counterpart on the other side. None: the record has no counterpart.
    `moved`: both records are equal and stand at different places of the order."""

    one: int | None
    other: int | None
    moved: bool = False


def find_sync(one: Sequence[int], other: Sequence[int], run: int, final: bool) -> tuple[int, int] | None:
    """Return how many records to skip on each side until the next `run` records are equal, or None. With `final`, both
    sides end with these sequences: then fewer equal records are enough if they reach both ends."""
    matches: dict[int, list[int]] = {}
    for at, digest in enumerate(other):
        matches_of_digest = matches.setdefault(digest, [])
        if len(matches_of_digest) < _MATCHES_TRIED:
            matches_of_digest.append(at)

    def agrees(i: int, j: int) -> bool:
        length = min(run, len(one) - i, len(other) - j)
        whole = final and len(one) - i == length == len(other) - j
        return (length == run or whole) and one[i : i + length] == other[j : j + length]

    best: tuple[int, int] | None = None
    for i, digest in enumerate(one):
        if best is not None and i >= sum(best):
            break
        for j in matches.get(digest, ()):
            if best is not None and i + j >= sum(best):
                break
            if agrees(i, j):
                best = (i, j)
                break
    return best


def pair_records(one: Sequence[int], other: Sequence[int], cost: Cost) -> list[Pair]:
    """Pair the records of two stretches, in the order of both. Equal records are pairs. Of the other records, the most
    similar ones count as one record that was changed."""
    moved = _find_moved(one, other)
    moved_from, moved_to = {p.one for p in moved}, {p.other for p in moved}
    one_rest = [i for i in range(len(one)) if i not in moved_from]
    other_rest = [j for j in range(len(other)) if j not in moved_to]
    if (len(one_rest) + 1) * (len(other_rest) + 1) > _CELLS:
        pairs = [Pair(i, j) for i, j in zip_longest(one_rest, other_rest)]
    else:

        def cost_of_pair(i: int, j: int) -> float:
            return 0.0 if one[i] == other[j] else 1 + cost(i, j)

        pairs = _pair_by_cost(one_rest, other_rest, cost_of_pair)
    # Pairs are sorted by the records of `one`. A record that only the other side has stays after its predecessor.
    placed: list[tuple[int, Pair]] = []
    last = -1
    for pair in pairs:
        if pair.one is not None:
            last = pair.one
        placed.append((last, pair))
    for pair in moved:
        place = pair.one if pair.one is not None else -1
        placed.append((place, pair))
    placed.sort(key=itemgetter(0))
    return [pair for _, pair in placed]


def _find_moved(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Return the fewest records whose move explains the different order of the records that both sides have."""
    common = Counter(one) & Counter(other)
    one_common, other_common = _common_records(one, common), _common_records(other, common)
    if [one[i] for i in one_common] == [other[j] for j in other_common]:
        return []
    matches: dict[int, list[int]] = {}
    for j in reversed(other_common):
        matches.setdefault(other[j], []).append(j)
    pairs = [(i, matches[one[i]].pop()) for i in one_common]
    unmoved = _longest_increase([j for _, j in pairs])
    return [Pair(i, j, True) for number, (i, j) in enumerate(pairs) if number not in unmoved]


def _common_records(digests: Sequence[int], common: Counter[int]) -> list[int]:
    remaining = Counter(common)
    records = []
    for at, digest in enumerate(digests):
        if remaining[digest] > 0:
            remaining[digest] -= 1
            records.append(at)
    return records


def _longest_increase(numbers: Sequence[int]) -> set[int]:
    """Return the indexes of a longest increasing subsequence (patience sorting)."""
    smallest: list[int] = []  # the smallest last number of an increase of each length, and where it is
    tops: list[int] = []
    before: list[int] = []
    for at, number in enumerate(numbers):
        length = bisect_left(smallest, number)
        before.append(tops[length - 1] if length else -1)
        smallest[length : length + 1] = [number]
        tops[length : length + 1] = [at]
    longest: set[int] = set()
    at = tops[-1] if tops else -1
    while at >= 0:
        longest.add(at)
        at = before[at]
    return longest


def _pair_by_cost(one_rest: Sequence[int], other_rest: Sequence[int], cost: Cost) -> list[Pair]:
    """Return the alignment of least cost; a record without a counterpart costs 1."""
    rows, columns = len(one_rest), len(other_rest)
    table = [[float(j) for j in range(columns + 1)]]
    for i in range(1, rows + 1):
        row = [float(i)]
        for j in range(1, columns + 1):
            paired = table[i - 1][j - 1] + cost(one_rest[i - 1], other_rest[j - 1])
            row.append(min(paired, table[i - 1][j] + 1, row[j - 1] + 1))
        table.append(row)
    pairs: list[Pair] = []
    i, j = rows, columns
    while i or j:
        if i and j and table[i][j] == table[i - 1][j - 1] + cost(one_rest[i - 1], other_rest[j - 1]):
            i, j = i - 1, j - 1
            pairs.append(Pair(one_rest[i], other_rest[j]))
        elif i and table[i][j] == table[i - 1][j] + 1:
            i -= 1
            pairs.append(Pair(one_rest[i], None))
        else:
            j -= 1
            pairs.append(Pair(None, other_rest[j]))
    return pairs[::-1]


# The comparison of a partition.


class PartitionComparer:
    """Compares one partition.

    `target_offsets` are the offsets that the archive's records should have in the topic, None if they are unknown. All
    differences are counted, `show` of them at most are named. `seen(records, bytes)` is called with the numbers of
    compared records and bytes of the archive.
    """

    def __init__(
        self,
        archive: Side,
        topic: Side,
        target_offsets: TargetOffsets | None,
        show: int,
        seen: Callable[[int, int], None],
    ) -> None:
        self._archive, self._topic, self._target_offsets = archive, topic, target_offsets
        self._show, self._seen = show, seen
        self._counts: Counter[DifferenceKind] = Counter()
        self._named: list[Difference] = []
        self._reported = self._records = self._bytes = self._same = self._far_searches = 0

    def run(self, topic: str, partition: int, target: str) -> Comparison:
        whole = self._compare_all()
        after, after_from = 0, None
        if whole:  # what the topic has after the archive's last record
            after_from = self._topic.next_offset if self._topic.fill(1) else None
            while count := self._topic.fill(1):
                after += count
                self._topic.skip(count)
        return Comparison(
            topic=topic,
            partition=partition,
            target=target,
            records=self._records,
            bytes=self._bytes,
            same=self._same,
            counts=dict(self._counts),
            differences=tuple(self._named),
            after=after,
            after_from=after_from,
            stopped="" if whole else f"more than {_MOST_DIFFERENCES:,} differences",
        )

    def _compare_all(self) -> bool:
        """Compare up to the archive's last record; return False where it stopped before."""
        one, other, step = self._archive, self._topic, _MOST
        while one.fill(1) and other.fill(1):
            ahead = min(one.remaining, other.remaining, step)
            alike = count_equal(one, other, ahead)
            if alike:
                sources = one.seen.offsets[one.at : one.at + alike]
                targets = other.seen.offsets[other.at : other.at + alike]
                self._count_same(sources, targets)
                self._count_archived(alike, one.bytes_of(alike))
                one.skip(alike)
                other.skip(alike)
            step = min(4 * step, _MOST)
            if alike < ahead:
                step = _LEAST
                self._resynchronize()
            if self._reported > _MOST_DIFFERENCES:
                return False
        self._report_rest(one, "missing")
        return True

    def _count_same(self, sources: Int64Array, targets: Int64Array) -> None:
        """Count records that are the same on both sides, and those that have another offset than they should."""
        self._same += len(sources)
        if self._target_offsets is None:
            return
        expected = self._target_offsets.targets(sources)
        wrong = np.flatnonzero(expected != targets)
        if not len(wrong):
            return
        self._counts["place"] += len(wrong)
        for at in wrong[: max(0, self._show - len(self._named))].tolist():
            due = int(expected[at]) if expected[at] >= 0 else None
            place = Difference(what=("place",), source=int(sources[at]), target=int(targets[at]), expected=due)
            self._named.append(place)

    def _count_archived(self, records: int, size: int) -> None:
        self._records += records
        self._bytes += size
        self._seen(records, size)

    def _report(
        self, kinds: tuple[DifferenceKind, ...], source: int | None, target: int | None, count: int = 1
    ) -> None:
        """Count a difference of `count` records, and name it if it is one of the first."""
        self._reported += 1
        for kind in kinds:
            self._counts[kind] += count
        if len(self._named) < self._show:
            self._named.append(Difference(what=kinds, source=source, target=target, count=count))

    def _resynchronize(self) -> None:
        """Report the differences from here on, up to the next records on which both sides agree."""
        one, other = self._archive, self._topic
        tried = set()
        for size, run in _SEARCHES:
            archived, present = min(one.fill(size, _WINDOW), size), min(other.fill(size, _WINDOW), size)
            if (archived, present, run) in tried:
                continue
            tried.add((archived, present, run))
            last, ends = one.ended and one.remaining == archived, other.ended and other.remaining == present
            a, b = one.digests(archived), other.digests(present)
            sync = find_sync(a, b, run, last and ends)
            if sync is None and last and (ends or present >= archived + _PAIRED):
                sync = archived, min(present, archived + _PAIRED)
            if sync is not None:
                self._report_stretch(a[: sync[0]], b[: sync[1]], last and sync[0] == archived)
                return
        self._resynchronize_far()

    def _report_stretch(self, archived: list[int], present: list[int], last: bool) -> None:
        """Report two stretches, after which both sides agree or (`last`) the archive ends."""
        one, other = self._archive, self._topic
        # A table of costs asks for each record many times.
        record_of_one, record_of_other = cache(one.record), cache(other.record)

        def cost(i: int, j: int) -> float:
            return len(_differing_fields(record_of_one(i), record_of_other(j))) / 5

        pairs = pair_records(archived, present, cost)
        taken = len(present)
        while last and pairs and pairs[-1] == Pair(None, taken - 1):  # after the archive's last record
            pairs.pop()
            taken -= 1
        for i, j, moved in pairs:
            if i is not None and j is not None and not moved:
                self._report_change(i, j)
            else:
                source = None if i is None else one.offset(i)
                target = None if j is None else other.offset(j)
                kind: DifferenceKind = "order"
                if j is None:
                    kind = "missing"
                elif i is None:
                    kind = "extra"
                self._report((kind,), source, target)
        self._count_archived(len(archived), one.bytes_of(len(archived)))
        one.skip(len(archived))
        other.skip(taken)

    def _report_change(self, i: int, j: int) -> None:
        source, target = self._archive.offset(i), self._topic.offset(j)
        kinds = _differing_fields(self._archive.record(i), self._topic.record(j))
        if kinds:
            self._report(kinds, source, target)
        else:
            self._count_same(np.array([source]), np.array([target]))

    def _resynchronize_far(self) -> None:
        """Report differences longer than the window: many records are missing, extra, or changed."""
        one, other = self._archive, self._topic
        self._far_searches += 1
        if self._far_searches <= _MOST_FAR_SEARCHES and (
            self._search_far(one, other, "missing") or self._search_far(other, one, "extra")
        ):
            return
        count = min(one.fill(_PAIRED, _WINDOW), other.fill(_PAIRED, _WINDOW), _PAIRED)
        pairs = [(one.record(n), other.record(n)) for n in range(count)]
        if 2 * sum(a.key == b.key and len(_differing_fields(a, b)) < 3 for a, b in pairs) >= count:
            for n in range(count):
                self._report_change(n, n)
            self._count_archived(count, one.bytes_of(count))
            one.skip(count)
            other.skip(count)
        else:
            self._report_rest(one, "missing")
            self._report_rest(other, "extra")

    def _search_far(self, side: Side, other: Side, kind: Unpaired) -> bool:
        """Read `side` up to the next records of `other`; rewind it where it has none of them."""
        run = min(other.fill(_RUN, _WINDOW), _RUN)
        expected, model, at = other.digests(run), other.seen, other.at
        length, stamp = model.ends[at] - model.bodies[at], model.stamps[at]
        back = side.next_offset
        passed = size = 0
        while side.fill(run) >= run:
            view, tried = side.seen, slice(side.at, side.at + side.remaining - run + 1)
            likely = (view.ends[tried] - view.bodies[tried] == length) & (view.stamps[tried] == stamp)
            hit = next((n for n in np.flatnonzero(likely).tolist() if side.digests(run, n) == expected), None)
            further = side.remaining - run + 1 if hit is None else hit
            passed, size = passed + further, size + side.bytes_of(further)
            side.skip(further)
            if hit is not None:
                self._report_unpaired(back, passed, size, kind)
                return True
        side.rewind(back)
        return False

    def _report_rest(self, side: Side, kind: Unpaired) -> None:
        if not side.fill(1):
            return
        first, passed, size = side.next_offset, 0, 0
        while count := side.fill(1):
            passed, size = passed + count, size + side.bytes_of(count)
            side.skip(count)
        self._report_unpaired(first, passed, size, kind)

    def _report_unpaired(self, first: int, records: int, size: int, kind: Unpaired) -> None:
        """Report records that have no counterpart, from offset `first` on; their side has passed them."""
        if kind == "missing":
            self._count_archived(records, size)
            self._report((kind,), first, None, records)
        else:
            self._report((kind,), None, first, records)


def _differing_fields(a: ComparedRecord, b: ComparedRecord) -> tuple[DifferenceKind, ...]:
    kinds: tuple[DifferenceKind, ...] = ("key", "value", "headers", "timestamp")
    return tuple(kind for kind, ours, theirs in zip(kinds, a, b, strict=True) if ours != theirs)
