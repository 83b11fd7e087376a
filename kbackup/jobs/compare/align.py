"""Align two sequences of records that differ: find where they agree again, and pair their records. Pure.

Records are given as digests: equal digests stand for equal records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
        pairs = _pair_by_cost(
            one_rest, other_rest, lambda i, j: 0.0 if one[i] == other[j] else 1 + cost(i, j)
        )
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
