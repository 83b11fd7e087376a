"""Where two sequences that differ agree again, and which record of the one is which of the other. Pure.

Records are digests here: equal where the records are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SAME_PLACES = 8  # of a digest that comes again and again, so many places are looked at
_CELLS = 40_000  # of a table of costs: 200 by 200 records take some 50 ms

Cost = Callable[[int, int], float]
"""How unlike two records are, by their numbers: 0 to 1."""


class Pair(NamedTuple):
    """A record of the one side and the record of the other that it became; None: there is none. `moved`: it is the
    same record, before or after others than there."""

    one: int | None
    other: int | None
    moved: bool = False


def find_sync(one: Sequence[int], other: Sequence[int], run: int, final: bool) -> tuple[int, int] | None:
    """The nearest place, as numbers of records to pass over on each side, from which `run` records agree; or, where
    both sides end with these sequences (`final`), all that is left of them."""
    places: dict[int, list[int]] = {}
    for at, digest in enumerate(other):
        found = places.setdefault(digest, [])
        if len(found) < _SAME_PLACES:
            found.append(at)

    def agrees(i: int, j: int) -> bool:
        length = min(run, len(one) - i, len(other) - j)
        whole = final and len(one) - i == length == len(other) - j
        return (length == run or whole) and one[i : i + length] == other[j : j + length]

    best: tuple[int, int] | None = None
    for i, digest in enumerate(one):
        if best is not None and i >= sum(best):
            break
        for j in places.get(digest, ()):
            if best is not None and i + j >= sum(best):
                break
            if agrees(i, j):
                best = (i, j)
                break
    return best


def pair(one: Sequence[int], other: Sequence[int], cost: Cost) -> list[Pair]:
    """What became of each record of two stretches between which nothing is known, in the order of both. Records that
    are on both sides are the same; of the rest, the most alike are one record that was changed."""
    moved = _moved(one, other)
    gone, come = {p.one for p in moved}, {p.other for p in moved}
    left = [i for i in range(len(one)) if i not in gone]
    right = [j for j in range(len(other)) if j not in come]
    if (len(left) + 1) * (len(right) + 1) > _CELLS:
        pairs = _in_place(left, right)
    else:
        pairs = _cheapest(left, right, lambda i, j: 0.0 if one[i] == other[j] else 1 + cost(i, j))
    return _in_order(pairs, moved)


def _in_order(pairs: Sequence[Pair], moved: Sequence[Pair]) -> list[Pair]:
    """By the records of the one side; what is on the other side alone stays after the pair before it."""
    placed: list[tuple[int, Pair]] = []
    last = -1
    for each in pairs:
        last = last if each.one is None else each.one
        placed.append((last, each))
    placed += [(p.one if p.one is not None else -1, p) for p in moved]
    return [each for _, each in sorted(placed, key=lambda entry: entry[0])]


def _moved(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """The fewest records whose move explains that what both sides have is in another order."""
    common = Counter(one) & Counter(other)
    mine, theirs = _only(one, common), _only(other, common)
    if [one[i] for i in mine] == [other[j] for j in theirs]:
        return []
    places: dict[int, list[int]] = {}
    for j in reversed(theirs):
        places.setdefault(other[j], []).append(j)
    pairs = [(i, places[one[i]].pop()) for i in mine]
    kept = _longest_rise([j for _, j in pairs])
    return [Pair(i, j, True) for number, (i, j) in enumerate(pairs) if number not in kept]


def _only(digests: Sequence[int], wanted: Counter[int]) -> list[int]:
    rest = Counter(wanted)
    found = []
    for at, digest in enumerate(digests):
        if rest[digest] > 0:
            rest[digest] -= 1
            found.append(at)
    return found


def _longest_rise(numbers: Sequence[int]) -> set[int]:
    """The places of a longest rising subsequence (patience sorting)."""
    tops: list[int] = []  # place of the smallest end of a rise of each length
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
    found: set[int] = set()
    at = tops[-1] if tops else -1
    while at >= 0:
        found.add(at)
        at = before[at]
    return found


def _in_place(left: Sequence[int], right: Sequence[int]) -> list[Pair]:
    both = min(len(left), len(right))
    pairs = [Pair(i, j) for i, j in zip(left, right, strict=False)]
    return [*pairs, *(Pair(i, None) for i in left[both:]), *(Pair(None, j) for j in right[both:])]


def _cheapest(left: Sequence[int], right: Sequence[int], cost: Cost) -> list[Pair]:
    """The alignment of least cost, where a record that has no partner costs 1."""
    rows, columns = len(left), len(right)
    table = [[float(j) for j in range(columns + 1)]]
    for i in range(1, rows + 1):
        row = [float(i)]
        for j in range(1, columns + 1):
            paired = table[i - 1][j - 1] + cost(left[i - 1], right[j - 1])
            row.append(min(paired, table[i - 1][j] + 1, row[j - 1] + 1))
        table.append(row)
    pairs: list[Pair] = []
    i, j = rows, columns
    while i or j:
        if i and j and table[i][j] == table[i - 1][j - 1] + cost(left[i - 1], right[j - 1]):
            i, j = i - 1, j - 1
            pairs.append(Pair(left[i], right[j]))
        elif i and table[i][j] == table[i - 1][j] + 1:
            i -= 1
            pairs.append(Pair(left[i], None))
        else:
            j -= 1
            pairs.append(Pair(None, right[j]))
    return pairs[::-1]
