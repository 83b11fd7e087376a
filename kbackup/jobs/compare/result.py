"""Result of comparing one partition of an archive with a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kbackup.archive.models import Member
from kbackup.types import Int64Array

Kind = Literal["missing", "extra", "order", "key", "value", "headers", "timestamp", "place"]


class Difference(Member, frozen=True, kw_only=True):
    """`what` is wrong with `count` records from offset `source` (null: not in the archive) or `target` (null: not in
    the topic) on. `expected` is the target offset that the offset map says, where `what` is 'place' (null: none)."""

    what: tuple[Kind, ...]
    source: int | None = None
    target: int | None = None
    count: int = 1
    expected: int | None = None


class Comparison(Member, frozen=True, kw_only=True):
    """`records` are those of the archive that were compared, `bytes` their size; `same` those that are in the topic,
    whole and in order. `counts` has how many records differ, by what. `after` is how many records the topic has after
    the archive's last one, from target offset `after_from` on. `stopped` says why not all was compared."""

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
        """Return the target offset of each source offset, -1 where it has none."""
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

    def add_difference(
        self, kinds: tuple[Kind, ...], source: int | None, target: int | None, count: int = 1
    ) -> None:
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
