"""Compare a partition of an archive with a partition of a topic: count, order and content of every record.

Both sides are blocks, cut anywhere. While both sides agree, bytes are compared by vector steps, without the offsets;
where they differ, records are compared one by one. In memory are the current blocks, or `_WINDOW` bytes a side.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kbackup.formats.block import heads, windows
from kbackup.jobs.compare.report import Comparison, Difference, DifferenceKind
from kbackup.types import Bytes, Int64Array, RecordBlock

_RUN = 8
"""Both sides agree again where this many records in a row are equal."""
_LEAST = 64
_MOST = 1 << 20
"""Records that are compared at a time: `_LEAST` after a difference, growing to `_MOST`."""
_SEARCHES = ((32, _RUN), (256, _RUN), (256, 3), (4096, _RUN), (32768, _RUN))
"""Searches for the next agreement: the records that are looked at on each side, and the equal records required. Most
differences are of few records: a narrow search finds their end without a digest of thousands."""
_WINDOW = 32 << 20
"""Bytes of a side in memory while the next agreement is searched."""
_MOST_FAR_SEARCHES = 4
"""Searches beyond the window in one partition. Each reads to the next agreement, or to the end."""
_PAIRED = 256
"""Records that are paired in their order where nothing agrees."""
_MOST_DIFFERENCES = 10_000
"""With more differences than these, the topic has other records; the comparison stops."""
_SIMILAR_FIELDS = 3
"""Fields of a record, out of four, that may differ where its key is the same: then it was changed, not exchanged."""

Unpaired = Literal["missing", "extra"]
Open = Callable[[int], Iterator[RecordBlock]]  # the records of a partition from an offset on

_NONE = -2  # the kind of a record without a timestamp
_TIMED_HEAD, _BARE_HEAD = (20, 12)  # bytes before the key's length: offset, type and, where there is one, timestamp


@dataclass(frozen=True, slots=True, eq=False)
class TargetOffsets:
    """Target offsets of a partition's source offsets, as runs sorted by source, int64[n] each. The record of offset
    `source + i` has target offset `target + i`, 0 <= i < `count`."""

    source: Int64Array
    target: Int64Array
    count: Int64Array

    def targets(self, sources: Int64Array) -> Int64Array:
        """Return the target offset of each source offset, -1 if it has none."""
        if not len(self.source):
            return np.full(len(sources), -1, np.int64)
        # Below the first run, `at` is -1: that reads the last run, and is left out below.
        at = np.searchsorted(self.source, sources, side="right") - 1
        into = sources - self.source[at]
        is_in_run = (at >= 0) & (into < self.count[at])
        return np.where(is_in_run, self.target[at] + into, -1)


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
        nothing = np.empty(0, np.int64)
        self.seen = RecordView(np.empty(0, np.uint8), nothing, nothing, nothing, nothing, nothing, nothing)
        self.at = 0
        self.ended = False
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
        while self.remaining < records and not self.ended:
            if size and self.bytes_of(self.remaining) > size:
                break
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
            elif len(block):
                more = self._view(block)
                if self.remaining:
                    rest = self.seen.part(self.at, len(self.seen.offsets))
                    more = rest.with_more(more)
                self.seen = more
                self.at = 0
        return self.remaining

    def _view(self, block: RecordBlock) -> RecordView:
        head = heads(block.data, block.positions)
        kinds = head["type"].astype(np.int64)
        stamps = head["timestamp"].astype(np.int64)
        timed = kinds >= 0
        bodies = block.positions + np.where(timed, _TIMED_HEAD, _BARE_HEAD)
        # A record without a timestamp has other bytes where a timestamp would be.
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
        """Return a number for each of `records` remaining records, from index `after` on. Equal records have equal
        numbers, in this process alone."""
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
        """Return the size of the next `records` records."""
        if not records:
            return 0
        end = self.seen.ends[self.at + records - 1]
        return int(end - self.seen.starts[self.at])

    def close(self) -> None:
        """Close the reader; an iterator that is no generator needs no closing."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()


def count_equal(one: Side, other: Side, records: int) -> int:
    """Return how many of the next `records` are equal on both sides before the first difference. `records` is at most
    the remaining records of each side. Bytes are compared, not digests."""
    x = one.seen.part(one.at, one.at + records)
    y = other.seen.part(other.at, other.at + records)
    # Lengths and timestamps first: with bodies of the same lengths, all bytes are compared in one step.
    same = (x.ends - x.bodies == y.ends - y.bodies) & (x.kinds == y.kinds) & (x.stamps == y.stamps)
    alike = records if same.all() else int(np.argmin(same))
    if not alike:
        return 0
    x = x.part(0, alike)
    y = y.part(0, alike)
    if len(x.data) == len(y.data) and np.array_equal(x.starts, y.starts):
        starts = x.starts
        differ = x.data != y.data
        _clear_heads(differ, x)
    else:  # records with and without timestamps, where these don't count
        differ = _packed(x) != _packed(y)
        lengths = x.ends - x.bodies
        starts = np.cumsum(lengths) - lengths
    if not differ.any():
        return alike
    first_byte = int(np.argmax(differ))
    # The record that has this byte is the one before the first record that starts behind it.
    return int(np.searchsorted(starts, first_byte, side="right")) - 1


def _clear_heads(differ: npt.NDArray[np.bool_], view: RecordView) -> None:
    """Set `differ` to False in the heads of records: their offsets always differ, and timestamps are compared apart."""
    flags = differ.view(np.uint8)
    windows(flags, f"V{_BARE_HEAD}")[view.starts] = np.zeros(1, f"V{_BARE_HEAD}")
    timed = view.starts[view.bodies - view.starts == _TIMED_HEAD] + _BARE_HEAD
    windows(flags, f"V{_TIMED_HEAD - _BARE_HEAD}")[timed] = np.zeros(1, f"V{_TIMED_HEAD - _BARE_HEAD}")


def _packed(view: RecordView) -> Bytes:
    """Return the bodies alone, joined."""
    edges = np.zeros(len(view.data) + 1, np.int8)
    edges[view.starts] = 1  # a head begins
    edges[view.bodies] = -1  # a head ends
    is_body = np.cumsum(edges[:-1], dtype=np.int8) == 0
    packed: Bytes = view.data[is_body]
    return packed


# Where two sequences of records differ, where they agree again, and which records pair. Pure.
#
# Records are given as digests: equal digests stand for equal records.

_MATCHES_TRIED = 8  # of a digest that occurs often, so many occurrences are compared
_MATCHED = 40_000
"""The product of the lengths of two stretches, up to which equal records between them are looked for: the time that
takes may grow with it."""


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
        reaches_ends = final and len(one) - i == length == len(other) - j
        if length < run and not reaches_ends:
            return False
        return one[i : i + length] == other[j : j + length]

    # The best answer skips the fewest records on both sides together: no other explanation leaves out so little.
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


def pair_records(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Pair the records of two stretches, in the order of `one`.

    Records that are equal on both sides are pairs. What lies between two of them was changed: it is paired in its
    order, and records that are left over on one side have no counterpart.
    """
    blocks = [Match(len(one), len(other), 0)]
    moved: dict[int, int] = {}
    if len(one) * len(other) <= _MATCHED:
        blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
        moved = _find_moved(one, other, blocks)
    pairs: list[Pair] = []
    i = j = 0
    for block in blocks:  # the last one is empty, and lies at both ends
        pairs += _pair_changed(range(i, block.a), range(j, block.b), moved)
        i = block.a + block.size
        j = block.b + block.size
        pairs += map(Pair, range(block.a, i), range(block.b, j))
    return pairs


def _find_moved(one: Sequence[int], other: Sequence[int], blocks: Iterable[Match]) -> dict[int, int]:
    """Return the records outside of the equal `blocks` that both sides have all the same, by their indexes."""
    unmatched: list[int] = []
    places: dict[int, deque[int]] = defaultdict(deque)
    i = j = 0
    for block in blocks:
        unmatched += range(i, block.a)
        for at in range(j, block.b):
            places[other[at]].append(at)
        i = block.a + block.size
        j = block.b + block.size
    moved: dict[int, int] = {}
    for at in unmatched:
        if places[one[at]]:
            moved[at] = places[one[at]].popleft()
    return moved


def _pair_changed(ours: Iterable[int], theirs: Iterable[int], moved: Mapping[int, int]) -> list[Pair]:
    """Pair records in their order. A moved record is paired with its counterpart, wherever that is."""
    moved_to = set(moved.values())
    rest = (j for j in theirs if j not in moved_to)
    pairs: list[Pair] = []
    for i in ours:
        if i in moved:
            pairs.append(Pair(i, moved[i], True))
        else:
            pairs.append(Pair(i, next(rest, None)))
    pairs += [Pair(None, j) for j in rest]
    return pairs


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
        self._archive = archive
        self._topic = topic
        self._target_offsets = target_offsets
        self._show = show
        self._seen = seen
        self._counts: Counter[DifferenceKind] = Counter()
        self._named: list[Difference] = []
        self._reported = self._records = self._bytes = self._same = self._far_searches = 0

    def run(self, topic: str, partition: int, target: str) -> Comparison:
        whole = self._compare_all()
        after = 0
        after_from: int | None = None
        if whole and self._topic.fill(1):  # what the topic has after the archive's last record
            after_from = self._topic.next_offset
            after, _ = _skip_rest(self._topic)
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
        """Compare up to the archive's last record. Return False if there were too many differences before it."""
        one = self._archive
        other = self._topic
        step = _MOST
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
                # Differences come in clusters: a large step would compare records in vain that the next one parts.
                step = _LEAST
                self._resynchronize()
            if self._reported > _MOST_DIFFERENCES:
                return False
        self._report_rest(one, "missing")
        return True

    def _count_same(self, sources: Int64Array, targets: Int64Array) -> None:
        """Count records that are the same on both sides, and name the ones at another offset than they should have."""
        self._same += len(sources)
        if self._target_offsets is None:
            return
        expected = self._target_offsets.targets(sources)
        wrong = np.flatnonzero(expected != targets)
        if not len(wrong):
            return
        self._counts["place"] += len(wrong)
        room = max(0, self._show - len(self._named))
        for at in wrong[:room].tolist():
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
        one = self._archive
        other = self._topic
        tried = set()
        for size, run in _SEARCHES:
            archived = min(one.fill(size, _WINDOW), size)
            present = min(other.fill(size, _WINDOW), size)
            # Near the ends, or with large records, a wider search would see nothing more.
            if (archived, present, run) in tried:
                continue
            tried.add((archived, present, run))
            archive_ends = one.ended and one.remaining == archived
            topic_ends = other.ended and other.remaining == present
            ours = one.digests(archived)
            theirs = other.digests(present)
            sync = find_sync(ours, theirs, run, archive_ends and topic_ends)
            if sync is None and archive_ends and (topic_ends or present >= archived + _PAIRED):
                # The archive's last records are changed in the topic, or missing: what follows there is of others.
                sync = archived, min(present, archived + _PAIRED)
            if sync is not None:
                skip_ours, skip_theirs = sync
                is_last = archive_ends and skip_ours == archived
                self._report_stretch(ours[:skip_ours], theirs[:skip_theirs], is_last)
                return
        self._resynchronize_far()

    def _report_stretch(self, archived: list[int], present: list[int], is_last: bool) -> None:
        """Report two stretches, after which both sides agree or (`is_last`) the archive ends."""
        pairs = pair_records(archived, present)
        taken = len(present)
        while is_last and pairs and pairs[-1] == Pair(None, taken - 1):  # after the archive's last record
            pairs.pop()
            taken -= 1
        for pair in pairs:
            self._report_pair(pair)
        self._count_archived(len(archived), self._archive.bytes_of(len(archived)))
        self._archive.skip(len(archived))
        self._topic.skip(taken)

    def _report_pair(self, pair: Pair) -> None:
        if pair.one is not None and pair.other is not None and not pair.moved:
            self._report_change(pair.one, pair.other)
            return
        source = None if pair.one is None else self._archive.offset(pair.one)
        target = None if pair.other is None else self._topic.offset(pair.other)
        kind: DifferenceKind = "order"
        if pair.other is None:
            kind = "missing"
        elif pair.one is None:
            kind = "extra"
        self._report((kind,), source, target)

    def _report_change(self, i: int, j: int) -> None:
        source = self._archive.offset(i)
        target = self._topic.offset(j)
        kinds = _differing_fields(self._archive.record(i), self._topic.record(j))
        if kinds:
            self._report(kinds, source, target)
        else:
            self._count_same(np.array([source]), np.array([target]))

    def _resynchronize_far(self) -> None:
        """Report differences longer than the window: many records are missing, extra, or changed."""
        one = self._archive
        other = self._topic
        self._far_searches += 1
        if self._far_searches <= _MOST_FAR_SEARCHES:
            # Missing first: a restore that left out a whole segment is likelier than a topic with so many others.
            if self._search_far(one, other, "missing"):
                return
            if self._search_far(other, one, "extra"):
                return
        count = min(one.fill(_PAIRED, _WINDOW), other.fill(_PAIRED, _WINDOW), _PAIRED)
        if 2 * self._count_similar(count) >= count:
            for n in range(count):
                self._report_change(n, n)
            self._count_archived(count, one.bytes_of(count))
            one.skip(count)
            other.skip(count)
        else:
            self._report_rest(one, "missing")
            self._report_rest(other, "extra")

    def _count_similar(self, records: int) -> int:
        """Return how many of the next `records` look like changed ones, compared in their order."""
        similar = 0
        for n in range(records):
            ours = self._archive.record(n)
            theirs = self._topic.record(n)
            if ours.key == theirs.key and len(_differing_fields(ours, theirs)) < _SIMILAR_FIELDS:
                similar += 1
        return similar

    def _search_far(self, side: Side, other: Side, kind: Unpaired) -> bool:
        """Read `side` up to the next records of `other`, and report what lies before them. If `side` has none of them,
        rewind it and return False."""
        run = min(other.fill(_RUN, _WINDOW), _RUN)
        back = side.next_offset
        passed = size = 0
        while side.fill(run) >= run:
            hit = _find_run(side, other, run)
            further = side.remaining - run + 1 if hit is None else hit
            passed += further
            size += side.bytes_of(further)
            side.skip(further)
            if hit is not None:
                self._report_unpaired(back, passed, size, kind)
                return True
        side.rewind(back)
        return False

    def _report_rest(self, side: Side, kind: Unpaired) -> None:
        if side.fill(1):
            first = side.next_offset
            records, size = _skip_rest(side)
            self._report_unpaired(first, records, size, kind)

    def _report_unpaired(self, first: int, records: int, size: int, kind: Unpaired) -> None:
        """Report records that have no counterpart, from offset `first` on; their side has passed them."""
        if kind == "missing":
            self._count_archived(records, size)
            self._report((kind,), first, None, records)
        else:
            self._report((kind,), None, first, records)


def _find_run(side: Side, other: Side, run: int) -> int | None:
    """Return where the next `run` records of `other` lie in a row among the remaining ones of `side`, as an index."""
    expected = other.digests(run)
    # The first record's length and timestamp leave few candidates: digests are made in Python, record by record.
    length = other.seen.ends[other.at] - other.seen.bodies[other.at]
    stamp = other.seen.stamps[other.at]
    tried = slice(side.at, side.at + side.remaining - run + 1)
    lengths = side.seen.ends[tried] - side.seen.bodies[tried]
    likely = (lengths == length) & (side.seen.stamps[tried] == stamp)
    for at in np.flatnonzero(likely).tolist():
        if side.digests(run, at) == expected:
            return int(at)
    return None


def _skip_rest(side: Side) -> tuple[int, int]:
    """Read a side to its end, and return how many records there were, and their size."""
    records = size = 0
    while count := side.fill(1):
        records += count
        size += side.bytes_of(count)
        side.skip(count)
    return records, size


def _differing_fields(a: ComparedRecord, b: ComparedRecord) -> tuple[DifferenceKind, ...]:
    kinds: tuple[DifferenceKind, ...] = ("key", "value", "headers", "timestamp")
    return tuple(kind for kind, ours, theirs in zip(kinds, a, b, strict=True) if ours != theirs)
