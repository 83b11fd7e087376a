"""Compare two sequences of records: where they differ, where they agree again, and which records pair. Pure.

Records are given as digests: equal digests stand for equal records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from kbackup.jobs.compare.side import ComparedRecord, Comparison, Kind, Side, Tally, TargetOffsets, count_equal

_MATCHES_TRIED = 8  # of a digest that occurs often, so many occurrences are compared
_CELLS = 40_000  # of a table of costs: 200 by 200 records take some 50 ms

Cost = Callable[[int, int], float]
"""Dissimilarity of two records, given by their indexes: 0 to 1."""


class Pair(NamedTuple):
    """Indexes of a record on one side and of its counterpart on the other side.

    None: the record has no counterpart. `moved`: both records are equal and stand at different places of the order.
    """

    one: int | None
    other: int | None
    moved: bool = False


def find_sync(one: Sequence[int], other: Sequence[int], run: int, final: bool) -> tuple[int, int] | None:
    """Return how many records to skip on each side until the next `run` records are equal, or None.

    `final`: both sides end with these sequences. Then fewer records are enough where they reach both ends.
    """
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
    """Pair the records of two stretches, in the order of both.

    Equal records are pairs. Of the other records, the most similar ones count as one record that was changed.
    """
    moved = _find_moved(one, other)
    moved_from, moved_to = {p.one for p in moved}, {p.other for p in moved}
    one_rest = [i for i in range(len(one)) if i not in moved_from]
    other_rest = [j for j in range(len(other)) if j not in moved_to]
    if (len(one_rest) + 1) * (len(other_rest) + 1) > _CELLS:
        pairs = _pair_in_order(one_rest, other_rest)
    else:
        pairs = _pair_by_cost(one_rest, other_rest, lambda i, j: 0.0 if one[i] == other[j] else 1 + cost(i, j))
    return _merge_in_order(pairs, moved)


def _merge_in_order(pairs: Sequence[Pair], moved: Sequence[Pair]) -> list[Pair]:
    """Sort all pairs by the records of `one`; a record of the other side alone stays after its predecessor."""
    placed: list[tuple[int, Pair]] = []
    last = -1
    for each in pairs:
        last = last if each.one is None else each.one
        placed.append((last, each))
    placed += [(p.one if p.one is not None else -1, p) for p in moved]
    return [each for _, each in sorted(placed, key=lambda entry: entry[0])]


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
    tops: list[int] = []  # index of the smallest last number of an increase of each length
    before: list[int] = []
    for at, number in enumerate(numbers):
        low, high = 0, len(tops)
        while low < high:
            middle = (low + high) // 2
            if numbers[tops[middle]] < number:
                low = middle + 1
            else:
                high = middle
        before.append(tops[low - 1] if low else -1)
        tops[low : low + 1] = [at]
    longest: set[int] = set()
    at = tops[-1] if tops else -1
    while at >= 0:
        longest.add(at)
        at = before[at]
    return longest


def _pair_in_order(one_rest: Sequence[int], other_rest: Sequence[int]) -> list[Pair]:
    both = min(len(one_rest), len(other_rest))
    pairs = [Pair(i, j) for i, j in zip(one_rest, other_rest, strict=False)]
    return [*pairs, *(Pair(i, None) for i in one_rest[both:]), *(Pair(None, j) for j in other_rest[both:])]


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


# Compare a partition of an archive with a partition of a topic: count, order and content of every record.
#
# Both sides are blocks, cut anywhere. While both sides agree, bytes are compared by vector steps, without the
# offsets; where they differ, records are compared one by one. In memory are the current blocks, or `_WINDOW` bytes a
# side.


_RUN = 8  # records in a row that are equal: from there on both sides agree
_LEAST, _MOST = 64, 1 << 20  # records that are compared at a time
_SEARCHES = (
    (32, _RUN),
    (256, _RUN),
    (256, 3),
    (4096, _RUN),
    (32768, _RUN),
)  # records ahead; equal records that are required
_WINDOW = 32 << 20  # bytes of a side in memory while the next agreement is searched
_MOST_FAR_SEARCHES = 4  # of a partition; each reads to the next agreement, or to the end
_PAIRED = 256  # records that are paired in their order where nothing agrees
_MOST_DIFFERENCES = 10_000  # more: it is a topic of other records

Unpaired = Literal["missing", "extra"]


class PartitionComparer:
    """Compares one partition.

    `target_offsets`: the due offsets of the archive's records in the topic; None: unknown. All differences are
    counted, at most `show` are named. `seen(records, bytes)` is called with the compared records of the archive.
    """

    def __init__(
        self,
        archive: Side,
        topic: Side,
        target_offsets: TargetOffsets | None,
        show: int,
        seen: Callable[[int, int], None],
    ) -> None:
        self._archive, self._topic, self._target_offsets, self._seen = archive, topic, target_offsets, seen
        self._tally = Tally(show)
        self._records = self._bytes = self._same = self._after = self._far_searches = 0
        self._after_from: int | None = None
        self._stopped = ""

    def run(self, topic: str, partition: int, target: str) -> Comparison:
        self._compare_all()
        return Comparison(
            topic=topic,
            partition=partition,
            target=target,
            records=self._records,
            bytes=self._bytes,
            same=self._same,
            counts=dict(self._tally.counts),
            differences=tuple(self._tally.named),
            after=self._after,
            after_from=self._after_from,
            stopped=self._stopped,
        )

    def _compare_all(self) -> None:
        one, other, step = self._archive, self._topic, _MOST
        while one.fill(1) and other.fill(1):
            ahead = min(one.remaining, other.remaining, step)
            alike = count_equal(one, other, ahead)
            self._count_same(alike)
            step = min(4 * step, _MOST)
            if alike < ahead:
                step = _LEAST
                self._resynchronize()
            if self._tally.reported > _MOST_DIFFERENCES:
                self._stopped = f"more than {_MOST_DIFFERENCES:,} differences"
                return
        self._report_rest(one, "missing")
        self._finish()

    def _count_same(self, records: int) -> None:
        """Count the next `records` records, which are the same on both sides."""
        if not records:
            return
        one, other = self._archive, self._topic
        if self._target_offsets is not None:
            sources = one.seen.offsets[one.at : one.at + records]
            targets = other.seen.offsets[other.at : other.at + records]
            self._tally.add_misplaced(sources, targets, self._target_offsets.targets(sources))
        self._same += records
        self._skip(one, records)
        other.skip(records)

    def _skip(self, side: Side, records: int) -> None:
        """Skip records of a side, and count them where they are of the archive."""
        if side is self._archive:
            size = side.bytes_of(records)
            self._records += records
            self._bytes += size
            self._seen(records, size)
        side.skip(records)

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
        known: dict[tuple[bool, int], ComparedRecord] = {}

        def record(side: Side, number: int) -> ComparedRecord:
            key = side is self._archive, number
            if key not in known:
                known[key] = side.record(number)
            return known[key]

        def unlike(i: int, j: int) -> float:
            return len(_differing_fields(record(self._archive, i), record(self._topic, j))) / 5

        pairs, taken = pair_records(archived, present, unlike), len(present)
        while last and pairs and pairs[-1] == Pair(None, taken - 1):  # after the archive's last record
            pairs.pop()
            taken -= 1
        for paired in pairs:
            self._report_pair(paired)
        self._skip(self._archive, len(archived))
        self._topic.skip(taken)

    def _report_pair(self, paired: Pair) -> None:
        source = None if paired.one is None else self._archive.offset(paired.one)
        target = None if paired.other is None else self._topic.offset(paired.other)
        if paired.other is None:
            self._tally.add_difference(("missing",), source, None)
        elif paired.one is None:
            self._tally.add_difference(("extra",), None, target)
        elif paired.moved:
            self._tally.add_difference(("order",), source, target)
        else:
            self._report_change(paired.one, paired.other)

    def _report_change(self, i: int, j: int) -> None:
        """Report the differences of a record of the archive and its counterpart."""
        source, target = self._archive.offset(i), self._topic.offset(j)
        kinds = _differing_fields(self._archive.record(i), self._topic.record(j))
        if kinds:
            self._tally.add_difference(kinds, source, target)
            return
        self._same += 1
        if self._target_offsets is not None:
            sources = np.array([source])
            self._tally.add_misplaced(sources, np.array([target]), self._target_offsets.targets(sources))

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
            self._skip(one, count)
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
                self._report_unpaired(side, back, passed, size, kind)
                return True
        side.rewind(back)
        return False

    def _report_rest(self, side: Side, kind: Unpaired) -> None:
        """Report all remaining records of a side as unpaired."""
        if not side.fill(1):
            return
        first, passed, size = side.next_offset, 0, 0
        while side.fill(1):
            passed, size = passed + side.remaining, size + side.bytes_of(side.remaining)
            side.skip(side.remaining)
        self._report_unpaired(side, first, passed, size, kind)

    def _report_unpaired(self, side: Side, first: int, records: int, size: int, kind: Unpaired) -> None:
        """Report records that have no counterpart, from offset `first` on; the side has passed them."""
        if side is self._archive:
            self._records += records
            self._bytes += size
            self._seen(records, size)
            self._tally.add_difference((kind,), first, None, records)
        else:
            self._tally.add_difference((kind,), None, first, records)

    def _finish(self) -> None:
        """Count the topic's records after the archive's last record."""
        if self._topic.fill(1):
            self._after_from = self._topic.next_offset
        while self._topic.fill(1):
            self._after += self._topic.remaining
            self._topic.skip(self._topic.remaining)


def _differing_fields(a: ComparedRecord, b: ComparedRecord) -> tuple[Kind, ...]:
    parts: tuple[tuple[Kind, bool], ...] = (
        ("key", a.key != b.key),
        ("value", a.value != b.value),
        ("headers", a.headers != b.headers),
        ("timestamp", a.stamp != b.stamp),
    )
    return tuple(kind for kind, differs in parts if differs)
