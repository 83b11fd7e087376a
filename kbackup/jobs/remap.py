"""From committed offsets of the source to offsets of the target, by the broker's own word on where records
went. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kbackup.types import Int64Array

How = Literal["exact", "gap", "past end", "before start", "empty"]


class Mapped(NamedTuple):
    """`how`: the record itself was restored; it was missing and the next one counts; there is nothing after
    it; it lies
    before the first restored record; nothing was restored."""

    offset: int
    how: How


@dataclass(frozen=True, slots=True, eq=False)
class OffsetMap:
    """One partition's map as runs, sorted by source: int64[n] each; record `source + i` went to `target + i`,
    0 <= i < `count`.

    `next` is the target's next offset after the restore.
    """

    source: Int64Array
    target: Int64Array
    count: Int64Array
    next: int

    def map(self, committed: int) -> Mapped:
        """The target offset of the first restored record whose source offset is at or after `committed`."""
        if not len(self.source):
            return Mapped(self.next, "empty")
        at = int(np.searchsorted(self.source, committed, side="right")) - 1
        if at < 0:
            return Mapped(int(self.target[0]), "before start")
        into = committed - int(self.source[at])
        if into < self.count[at]:
            return Mapped(int(self.target[at]) + into, "exact")
        if at + 1 < len(self.source):
            return Mapped(int(self.target[at + 1]), "gap")
        return Mapped(self.next, "past end")
