"""Target offsets of records, as runs of consecutive offsets; and their proof where delivery reports lack them.

librdkafka reports a batch that it sent again as delivered, but without offsets, where the broker had taken it the
first time. What is certain then: the records of one partition and one producer lie in its log in the order in which
they were sent. So between two records whose offsets are known, exactly as many offsets as records leave one
arrangement; with more offsets than records, the broker is asked which of them hold records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kbackup.types import Int64Array

UNKNOWN = -1
"""The target of a run whose records were delivered, the broker did not say where to."""

Ask = Callable[[int, int | None], Int64Array]
"""The offsets of a partition that hold records, from one (inclusive) to another (exclusive; None: the log's end)."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Target offsets of records: int64[n] each; record `source + i` is at `target + i` for 0 <= i < `count`."""

    source: Int64Array
    target: Int64Array
    count: Int64Array

    @property
    def next(self) -> int | None:
        """The first target offset after all of them; None without a run or where it is unknown."""
        if not len(self.target) or self.target[-1] < 0:
            return None
        return int(self.target[-1] + self.count[-1])


class NotProvenError(Exception):
    """The target offsets of some records can't be proven."""


def runs_of(sources: Int64Array, targets: Int64Array) -> Runs:
    """The runs of records one by one, in the order in which they were sent; a negative target is unknown."""
    ones = np.ones(len(sources), np.int64)
    return join([Runs(sources, np.where(targets < 0, UNKNOWN, targets), ones)])


def join(parts: Sequence[Runs]) -> Runs:
    """One after the other, with runs that go on made one."""
    empty = np.empty(0, np.int64)
    source, target, count = (
        np.concatenate([empty, *(getattr(p, name) for p in parts)]) for name in ("source", "target", "count")
    )
    if not len(source):
        return Runs(source, target, count)
    known = target >= 0
    goes_on = (target[1:] == target[:-1] + count[:-1]) & known[:-1]
    goes_on = np.where(known[1:], goes_on, ~known[:-1]) & (source[1:] == source[:-1] + count[:-1])
    first = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
    return Runs(source[first], target[first], np.add.reduceat(count, first))


def resolve(runs: Runs, floor: int | None, ask: Ask) -> Runs:
    """Return the runs with every target known, or raise `NotProvenError`. `runs` are one partition's; all its records
    lie at `floor` or after it (None: unknown)."""
    unknown = np.flatnonzero(runs.target < 0)
    if not len(unknown):
        return runs
    parts: list[Runs] = []
    done = 0
    for some in np.split(unknown, np.flatnonzero(np.diff(unknown) != 1) + 1):
        begin, end = int(some[0]), int(some[-1]) + 1
        before = _part(runs, done, begin)
        lower = before.next if begin > done else floor
        upper = int(runs.target[end]) if end < len(runs.target) else None
        parts += [before, _placed(_part(runs, begin, end), lower, upper, ask)]
        done = end
    return join([*parts, _part(runs, done, len(runs.source))])


def _part(runs: Runs, begin: int, end: int) -> Runs:
    return Runs(runs.source[begin:end], runs.target[begin:end], runs.count[begin:end])


def _placed(unknown: Runs, lower: int | None, upper: int | None, ask: Ask) -> Runs:
    """Records whose targets are unknown, with those in [lower, upper) that can only be theirs."""
    if lower is None:
        raise NotProvenError
    number = int(unknown.count.sum())
    if upper is not None and upper - lower == number:
        targets = np.arange(lower, upper, dtype=np.int64)
    else:
        targets = ask(lower, upper)
        if len(targets) != number:
            raise NotProvenError
    ranges = zip(unknown.source.tolist(), unknown.count.tolist(), strict=True)
    return runs_of(np.concatenate([np.arange(s, s + n, dtype=np.int64) for s, n in ranges]), targets)
