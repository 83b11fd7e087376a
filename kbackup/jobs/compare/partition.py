"""Compare a partition of an archive with a partition of a topic: count, order and content of every record.

Both sides are blocks, cut anywhere. While both sides agree, bytes are compared by vector steps, without the offsets;
where they differ, records are compared one by one. In memory are the current blocks, or `_WINDOW` bytes a side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from kbackup.jobs.compare.align import Pair, find_sync, pair_records
from kbackup.jobs.compare.result import Comparison, Kind, Tally, TargetOffsets
from kbackup.jobs.compare.side import Record, Side, count_equal

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
        known: dict[tuple[bool, int], Record] = {}

        def record(side: Side, number: int) -> Record:
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


def _differing_fields(a: Record, b: Record) -> tuple[Kind, ...]:
    parts: tuple[tuple[Kind, bool], ...] = (
        ("key", a.key != b.key),
        ("value", a.value != b.value),
        ("headers", a.headers != b.headers),
        ("timestamp", a.stamp != b.stamp),
    )
    return tuple(kind for kind, differs in parts if differs)
