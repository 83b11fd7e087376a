"""From committed offsets of the source to offsets of the target, by the broker's own word on where records
went. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kbackup.types import Int64Array

How = Literal["exact", "next record", "log end", "log start", "empty", "expired"]


class Mapped(NamedTuple):
    """`how`: the record itself was restored; it was missing and the next one counts; there is nothing after
    it; it lies before the first restored record; nothing was restored; the target's log has lost the place
    since, and its first record counts."""

    offset: int
    how: How


@dataclass(frozen=True, slots=True, eq=False)
class OffsetMap:
    """One partition's map as runs, sorted by source: int64[n] each; record `source + i` went to `target + i`,
    0 <= i < `count`.

    `next` is the target's next offset after the restore, `start` where the target's log starts now.
    """

    source: Int64Array
    target: Int64Array
    count: Int64Array
    next: int
    start: int = 0

    def map(self, committed: int) -> Mapped:
        """The target offset of the first restored record whose source offset is at or after `committed`."""
        found = self._restored(committed)
        return found if found.offset >= self.start else Mapped(self.start, "expired")

    def _restored(self, committed: int) -> Mapped:
        if not len(self.source):
            return Mapped(self.next, "empty")
        at = int(np.searchsorted(self.source, committed, side="right")) - 1
        if at < 0:
            return Mapped(int(self.target[0]), "log start")
        into = committed - int(self.source[at])
        if into < self.count[at]:
            return Mapped(int(self.target[at]) + into, "exact")
        if at + 1 < len(self.source):
            return Mapped(int(self.target[at + 1]), "next record")
        return Mapped(self.next, "log end")


@dataclass(frozen=True, slots=True)
class SameLog:
    """The map onto the very log that was archived: offsets are what they were, as far as it still has them
    (`start` to `end`)."""

    start: int
    end: int

    def map(self, committed: int) -> Mapped:
        if committed < self.start:
            return Mapped(self.start, "expired")
        if committed > self.end:
            return Mapped(self.end, "log end")
        return Mapped(committed, "exact")
