"""Comparing what an archive has of a partition with what a topic has: count, order and content of every record.

Both come as blocks, cut anywhere. While they agree, bytes are compared by vector steps, offsets left out; records are
looked at one by one only where they don't. Held are the blocks that were given, or `_WINDOW` of them a side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from kbackup.jobs.compare.align import Pair, find_sync, pair
from kbackup.jobs.compare.result import Comparison, Kind, Places, Tally
from kbackup.jobs.compare.side import Record, Side, agree

_RUN = 8  # records in a row that agree: from there on both sides go together again
_LEAST, _MOST = 64, 1 << 20  # records that are compared at a time
_SEARCHES = ((32, _RUN), (256, _RUN), (256, 3), (4096, _RUN), (32768, _RUN))  # records ahead; how many agree
_WINDOW = 32 << 20  # bytes of a side that are held to find where it agrees again
_FAR = 4  # times that a partition is read on as far as it takes to find that
_TOGETHER = 256  # records that are paired as they stand where nothing agrees
_ENOUGH = 10_000  # differences; where there are more it is another topic

Lone = Literal["missing", "extra"]


class Comparing:
    """`places` is where the archive's records belong in the topic; None: nobody knows. At most `show` differences are
    named, all are counted. `seen(records, bytes)` is called with what was compared of the archive."""

    def __init__(
        self, archive: Side, topic: Side, places: Places | None, show: int, seen: Callable[[int, int], None]
    ) -> None:
        self._archive, self._topic, self._places, self._seen = archive, topic, places, seen
        self._tally = Tally(show)
        self._records = self._bytes = self._same = self._after = self._far = 0
        self._after_from: int | None = None
        self._stopped = ""

    def run(self, topic: str, partition: int, target: str) -> Comparison:
        self._go()
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

    def _go(self) -> None:
        one, other, step = self._archive, self._topic, _MOST
        while one.fill(1) and other.fill(1):
            ahead = min(one.left, other.left, step)
            alike = agree(one, other, ahead)
            self._pass(alike)
            step = min(4 * step, _MOST)
            if alike < ahead:
                step = _LEAST
                self._settle()
            if self._tally.told > _ENOUGH:
                self._stopped = f"more than {_ENOUGH:,} differences"
                return
        self._drain(one, "missing")
        self._finish()

    def _pass(self, records: int) -> None:
        """So many records are the same on both sides."""
        if not records:
            return
        one, other = self._archive, self._topic
        if self._places is not None:
            sources = one.seen.offsets[one.at : one.at + records]
            targets = other.seen.offsets[other.at : other.at + records]
            self._tally.misplaced(sources, targets, self._places.targets(sources))
        self._same += records
        self._leave(one, records)
        other.skip(records)

    def _leave(self, side: Side, records: int) -> None:
        """Goes past records; those of the archive are what is counted."""
        if side is self._archive:
            size = side.bytes_of(records)
            self._records += records
            self._bytes += size
            self._seen(records, size)
        side.skip(records)

    def _settle(self) -> None:
        """Both sides differ from here on: tells how, up to where they agree again."""
        one, other = self._archive, self._topic
        tried = set()
        for size, run in _SEARCHES:
            mine, theirs = min(one.fill(size, _WINDOW), size), min(other.fill(size, _WINDOW), size)
            if (mine, theirs, run) in tried:
                continue
            tried.add((mine, theirs, run))
            last, ends = one.ended and one.left == mine, other.ended and other.left == theirs
            a, b = one.digests(mine), other.digests(theirs)
            found = find_sync(a, b, run, last and ends)
            if found is None and last and (ends or theirs >= mine + _TOGETHER):
                found = mine, min(theirs, mine + _TOGETHER)
            if found is not None:
                self._explain(a[: found[0]], b[: found[1]], last and found[0] == mine)
                return
        self._settle_far()

    def _explain(self, mine: list[int], theirs: list[int], last: bool) -> None:
        """Two stretches, after which both sides agree or (`last`) the archive ends."""
        known: dict[tuple[bool, int], Record] = {}

        def record(side: Side, number: int) -> Record:
            key = side is self._archive, number
            if key not in known:
                known[key] = side.record(number)
            return known[key]

        def unlike(i: int, j: int) -> float:
            return len(_unlike(record(self._archive, i), record(self._topic, j))) / 5

        pairs, taken = pair(mine, theirs, unlike), len(theirs)
        while last and pairs and pairs[-1] == Pair(None, taken - 1):  # after the archive's last record
            pairs.pop()
            taken -= 1
        for each in pairs:
            self._tell(each)
        self._leave(self._archive, len(mine))
        self._topic.skip(taken)

    def _tell(self, each: Pair) -> None:
        source = None if each.one is None else self._archive.offset(each.one)
        target = None if each.other is None else self._topic.offset(each.other)
        if each.other is None:
            self._tally.differ(("missing",), source, None)
        elif each.one is None:
            self._tally.differ(("extra",), None, target)
        elif each.moved:
            self._tally.differ(("order",), source, target)
        else:
            self._tell_pair(each.one, each.other)

    def _tell_pair(self, i: int, j: int) -> None:
        """A record of the archive, and the one it became."""
        source, target = self._archive.offset(i), self._topic.offset(j)
        what = _unlike(self._archive.record(i), self._topic.record(j))
        if what:
            self._tally.differ(what, source, target)
            return
        self._same += 1
        if self._places is not None:
            sources = np.array([source])
            self._tally.misplaced(sources, np.array([target]), self._places.targets(sources))

    def _settle_far(self) -> None:
        """They don't agree within the window: many records are missing, or in between, or nearly all are changed."""
        one, other = self._archive, self._topic
        self._far += 1
        if self._far <= _FAR and (self._search(one, other, "missing") or self._search(other, one, "extra")):
            return
        some = min(one.fill(_TOGETHER, _WINDOW), other.fill(_TOGETHER, _WINDOW), _TOGETHER)
        pairs = [(one.record(n), other.record(n)) for n in range(some)]
        if 2 * sum(a.key == b.key and len(_unlike(a, b)) < 3 for a, b in pairs) >= some:
            for n in range(some):
                self._tell_pair(n, n)
            self._leave(one, some)
            other.skip(some)
        else:
            self._drain(one, "missing")
            self._drain(other, "extra")

    def _search(self, side: Side, other: Side, what: Lone) -> bool:
        """Reads `side` on to where the other one's next records are. Where they are nowhere, it is as it was."""
        run = min(other.fill(_RUN, _WINDOW), _RUN)
        wanted, model, at = other.digests(run), other.seen, other.at
        length, stamp = model.ends[at] - model.bodies[at], model.stamps[at]
        back = side.next
        passed = size = 0
        while side.fill(run) >= run:
            some, places = side.seen, slice(side.at, side.at + side.left - run + 1)
            likely = (some.ends[places] - some.bodies[places] == length) & (some.stamps[places] == stamp)
            hit = next((n for n in np.flatnonzero(likely).tolist() if side.digests(run, n) == wanted), None)
            further = side.left - run + 1 if hit is None else hit
            passed, size = passed + further, size + side.bytes_of(further)
            side.skip(further)
            if hit is not None:
                self._lone(side, back, passed, size, what)
                return True
        side.rewind(back)
        return False

    def _drain(self, side: Side, what: Lone) -> None:
        """All that is left has no partner."""
        if not side.fill(1):
            return
        first, passed, size = side.next, 0, 0
        while side.fill(1):
            passed, size = passed + side.left, size + side.bytes_of(side.left)
            side.skip(side.left)
        self._lone(side, first, passed, size, what)

    def _lone(self, side: Side, first: int, records: int, size: int, what: Lone) -> None:
        """Records from offset `first` on, already passed, have no partner."""
        if side is self._archive:
            self._records += records
            self._bytes += size
            self._seen(records, size)
            self._tally.differ((what,), first, None, records)
        else:
            self._tally.differ((what,), None, first, records)

    def _finish(self) -> None:
        """What the topic has after the archive's last record is counted apart."""
        if self._topic.fill(1):
            self._after_from = self._topic.next
        while self._topic.fill(1):
            self._after += self._topic.left
            self._topic.skip(self._topic.left)


def _unlike(a: Record, b: Record) -> tuple[Kind, ...]:
    parts: tuple[tuple[Kind, bool], ...] = (
        ("key", a.key != b.key),
        ("value", a.value != b.value),
        ("headers", a.headers != b.headers),
        ("timestamp", a.stamp != b.stamp),
    )
    return tuple(kind for kind, differs in parts if differs)
