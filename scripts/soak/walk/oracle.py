"""Compute the expected content of an archive from Kafka's content at each backup, and compare a restored topic with it.

Nothing here reads an archive or imports kbackup: a `Book` follows the commands of a walk and knows the answer of each
restore. Some answers are open: an interrupted backup may have archived records that have expired since, and an
expiration removes whole segments. Such records are `unsure`: a restore may bring them or not.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """The content of a record that a restore preserves."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


Partitions = Mapping[int, Mapping[int, Record]]
"""By partition and offset."""


class Offset(NamedTuple):
    """One offset of a life."""

    life: int
    partition: int
    offset: int


@dataclass(frozen=True)
class Log:
    """A topic as Kafka shows it: records, and by partition where the log starts and ends, and where the group is."""

    records: Partitions
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    positions: Mapping[int, int]


@dataclass(eq=False)
class Life:
    """A topic between its creation and its deletion, and every record of it that any backup may have archived."""

    number: int
    topic: str
    compacted: bool = False
    records: dict[int, dict[int, Record]] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """A topic in a restore point: records of its life below `ends`. `positions` are of the group, None: unknown."""

    life: Life
    ends: Mapping[int, int]
    positions: Mapping[int, int] | None


Views = dict[str, View]


@dataclass(frozen=True)
class Expiration:
    """The restore points, labels and records that an expiration removed."""

    points: Mapping[int, Views]
    labels: Mapping[str, int]
    records: frozenset[Offset]


@dataclass
class Book:
    """The expected state of an archive.

    `archived` are the records that it may have, `expired` the removed restore points, `damaged` the records of deleted
    segments, `erased` those that were erased. `superseded` are those that a compaction may have left out.
    """

    points: dict[int, Views] = field(default_factory=dict)
    expired: dict[int, Views] = field(default_factory=dict)
    pins: set[int] = field(default_factory=set)
    labels: dict[str, int] = field(default_factory=dict)
    archived: set[Offset] = field(default_factory=set)
    unsure: set[Offset] = field(default_factory=set)
    damaged: set[Offset] = field(default_factory=set)
    erased: set[Offset] = field(default_factory=set)
    superseded: set[Offset] = field(default_factory=set)
    expirations: list[Expiration] = field(default_factory=list)
    interrupted: dict[str, View] = field(default_factory=dict)
    """Topics that backups killed since the newest restore point may have archived."""
    is_doubtful: bool = False
    """True when the newest restore point is of a killed backup, any one of several."""

    @property
    def newest(self) -> int:
        return max(self.points)

    @property
    def next_point(self) -> int:
        return max([*self.points, *self.expired], default=0) + 1

    @property
    def views(self) -> Views:
        return self.points[self.newest] if self.points else {}

    def offsets(self, view: View) -> Iterator[tuple[Offset, Record]]:
        """The records of a view, in order."""
        for partition, end in view.ends.items():
            for offset, record in sorted(view.life.records.get(partition, {}).items()):
                place = Offset(view.life.number, partition, offset)
                if offset < end and place in self.archived:
                    yield place, record

    def snapshot(self) -> Book:
        """A copy's book. Lives are Kafka's, and shared."""
        return copy.deepcopy(self, {id(life): life for life in self._lives()})

    def _lives(self) -> set[Life]:
        every = [*self.points.values(), *self.expired.values(), self.interrupted]
        every += [views for expiration in self.expirations for views in expiration.points.values()]
        return {view.life for views in every for view in views.values()}

    def lacks(self, logs: Mapping[Life, Log]) -> bool:
        """Return True when Kafka deleted records before a backup of `logs` could archive them."""
        return any(
            log.starts[partition] > end
            for life, log in logs.items()
            if (view := self._known(life)) is not None
            for partition, end in view.ends.items()
        )

    def has_former(self, logs: Mapping[Life, Log]) -> bool:
        """Return True when a topic was deleted and created again since the newest restore point.

        The records that its former life got after that restore point are unknown.
        """
        return any(life.topic in self.views and self._known(life) is None for life in logs)

    def _known(self, life: Life) -> View | None:
        view = self.views.get(life.topic)
        return view if view is not None and view.life is life else None

    def back_up(self, number: int, logs: Mapping[Life, Log], label: str = "") -> None:
        """Restore point `number` of `logs`, by a backup that ended."""
        views = dict(self.views)
        for life, log in logs.items():
            places = self._add_new(life, log)
            self.archived |= places
            self.unsure -= places
            views[life.topic] = View(life, self._ends(life, log.ends), dict(log.positions))
        self.points[number] = views
        self.interrupted, self.is_doubtful = {}, False
        if label:
            self.labels[label] = number

    def interrupt(self, logs: Mapping[Life, Log]) -> None:
        """A backup of `logs` was killed before its commit."""
        for life, log in logs.items():
            places = self._add_new(life, log) - self.archived
            self.archived |= places
            self.unsure |= places
            self.interrupted[life.topic] = View(life, dict(log.ends), None)

    def _add_new(self, life: Life, log: Log) -> set[Offset]:
        """Add the records of a log that the newest restore point lacks to its life; return their offsets."""
        known = self._known(life)
        places: set[Offset] = set()
        for partition, records in log.records.items():
            end = known.ends.get(partition, 0) if known is not None else 0
            new = {offset: record for offset, record in records.items() if offset >= end}
            life.records.setdefault(partition, {}).update(new)
            places |= {Offset(life.number, partition, offset) for offset in new}
        return places

    def _ends(self, life: Life, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the ends of a life after a backup up to `ends`."""
        known = self._known(life)
        before = known.ends if known is not None else {}
        return {partition: max(end, before.get(partition, 0)) for partition, end in ends.items()}

    def list_interrupted(self, number: int) -> bool:
        """Return True, and record restore point `number`, when it may be that of a killed backup.

        Such a backup wrote everything but the catalog. A repair without the newest catalog can't tell its restore
        point from a committed one.
        """
        if number != self.next_point or not self.interrupted:
            return False
        views = dict(self.views)
        for topic, view in self.interrupted.items():
            views[topic] = View(view.life, self._ends(view.life, view.ends), None)
        self.points[number], self.is_doubtful = views, True
        return True

    def retained(self, keep_last: int | None) -> set[int]:
        """The restore points that stay."""
        if keep_last is None:
            return set(self.points)
        return {*sorted(self.points)[-keep_last:], *self.pins}

    def expire(self, keep_last: int | None, cutoff: int | None) -> None:
        """Record an expiration: restore points go, and records older than `cutoff` (ms) by whole segments."""
        stay = self.retained(keep_last)
        going = {number: views for number, views in self.points.items() if number not in stay}
        labels = {name: number for name, number in self.labels.items() if number in going}
        self.points = {number: self.points[number] for number in stay}
        self.labels = {name: number for name, number in self.labels.items() if number not in going}
        self.expired |= going
        records = frozenset(self._expirable(cutoff) - self.unsure) if cutoff is not None else frozenset()
        self.unsure |= records
        self.expirations.append(Expiration(going, labels, records))

    def _expirable(self, cutoff: int) -> set[Offset]:
        """The records that lie before the first one of a partition that is young or that a pinned restore point has."""
        views = [view for number in self.pins for view in self.points.get(number, {}).values()]
        pinned = {offset for view in views for offset, _ in self.offsets(view)}
        expirable: set[Offset] = set()
        for life in {v.life for views in self.points.values() for v in views.values()}:
            for partition, records in life.records.items():
                for offset, record in sorted(records.items()):
                    location = Offset(life.number, partition, offset)
                    # What may be gone already holds nothing back.
                    is_there = location in self.archived and location not in self.unsure
                    if is_there and (record.timestamp >= cutoff or location in pinned):
                        break
                    expirable.add(location)
        return expirable

    def undo(self) -> None:
        """Take the newest expiration back."""
        last = self.expirations.pop()
        self.points |= last.points
        self.expired = {number: views for number, views in self.expired.items() if number not in last.points}
        self.labels = {**last.labels, **self.labels}
        self.unsure -= last.records

    def erase(self, topic: str, value: bytes) -> int:
        """Records of a topic with a value are erased from all restore points. Returns how many there were for certain:
        a segment of a killed backup, or one that has expired or is damaged, is not looked into."""
        found: set[Offset] = set()
        for life in self._lives():
            if life.topic == topic:
                for partition, records in life.records.items():
                    for offset, record in records.items():
                        if record.value == value:
                            found.add(Offset(life.number, partition, offset))
        shown = {place for views in self.points.values() for v in views.values() for place, _ in self.offsets(v)}
        certain = (found & shown) - self.optional
        self.archived -= certain
        self.erased |= certain
        self.unsure |= found - certain
        self.expirations = []
        return len(certain)

    @property
    def optional(self) -> set[Offset]:
        """The records that a restore may bring or not."""
        return self.unsure | self.damaged | self.superseded

    def compact(self) -> None:
        """Records of compacted topics may be gone that have a later one of their key in the oldest restore point with
        records of the partition."""
        looked_at: set[tuple[int, int]] = set()
        for _, views in sorted(self.points.items()):
            for view in views.values():
                if not view.life.compacted:
                    continue
                last: dict[tuple[int, bytes | None], Offset] = {}
                for place, record in self.offsets(view):
                    if (place.life, place.partition) in looked_at:
                        continue
                    earlier = last.get((place.partition, record.key))
                    if earlier is not None:
                        self.superseded.add(earlier)
                    last[place.partition, record.key] = place
                looked_at |= {(place.life, place.partition) for place in last.values()}

    def lose(self, topic: str, partition: int, start: int, end: int | None) -> None:
        """Records of a topic from `start` to before `end` (None: to the last one) were in a segment that is lost."""
        for life in self._lives():
            if life.topic == topic:
                self.damaged |= {
                    Offset(life.number, partition, offset)
                    for offset in life.records.get(partition, {})
                    if offset >= start and (end is None or offset < end)
                }

    def forget_positions(self) -> None:
        """A document of groups is lost: restore points up to now may not have it."""
        for views in (*self.points.values(), *self.expired.values()):
            for topic, view in views.items():
                views[topic] = View(view.life, view.ends, None)

    def follow(self, source: Book, *, keep: bool) -> None:
        """Bring a copy up to its source."""
        had = {place for views in self.points.values() for v in views.values() for place, _ in self.offsets(v)}
        other = source.snapshot()
        theirs = {*other.points, *other.expired}
        dropped = {n for n in theirs if n < self.next_point and n not in self.points}
        kept = {n: views for n, views in self.points.items() if n not in other.points} if keep else {}
        self.expired |= other.expired | self.points
        for number, views in self.points.items():
            for topic, view in other.points.get(number, {}).items():
                if views[topic].positions is None:
                    other.points[number][topic] = View(view.life, view.ends, None)
        self.points = {n: v for n, v in other.points.items() if n not in dropped} | kept
        self.expired = {n: v for n, v in self.expired.items() if n not in self.points}
        self.pins = {n for n in other.pins if n in self.points} | {n for n in self.pins if n in kept}
        labels = {name: n for name, n in self.labels.items() if n in kept}
        self.labels = labels | {name: n for name, n in other.labels.items() if n in self.points}
        self.erased |= other.erased
        self.superseded |= other.superseded
        self.archived = (self.archived | other.archived) - other.erased
        self.unsure |= {offset for offset in other.unsure if not (keep and offset in had)}
        self.damaged |= other.damaged - had
        self.expirations = []
        self.interrupted = {}


def compare(book: Book, view: View, restored: Log) -> tuple[list[str], bool]:
    """Return the problems of a restored topic, and True when it lacks records of damaged segments."""
    wrong: list[str] = []
    lacks = False
    if set(restored.records) != set(view.ends):
        return [f"partitions {sorted(restored.records)}, not {sorted(view.ends)}"], False
    expected: dict[int, list[tuple[Offset, Record]]] = {p: [] for p in view.ends}
    for offset, record in book.offsets(view):
        expected[offset.partition].append((offset, record))
    for partition, rows in expected.items():
        pairs, problems = _match(rows, restored.records[partition], book.optional)
        name = f"{view.life.topic}-{partition}"
        wrong += [f"{name}: {problem}" for problem in problems]
        there = {offset for offset, _ in pairs}
        demanded = book.damaged - book.unsure - book.superseded
        lacks |= any(offset in demanded and offset not in there for offset, _ in rows)
        position = view.positions.get(partition) if view.positions is not None else None
        if position is not None and not problems:
            wrong += [f"{name}: {p}" for p in _compare_position(pairs, position, restored.positions.get(partition))]
    return wrong, lacks


def _match(
    expected: Iterable[tuple[Offset, Record]], restored: Mapping[int, Record], optional: Collection[Offset]
) -> tuple[list[tuple[Offset, int]], list[str]]:
    """The restored records with their offsets in source and target, and what is wrong with their order or content.
    Every record of a walk has a value of its own."""
    pairs: list[tuple[Offset, int]] = []
    rows = sorted(restored.items())
    at = 0
    for offset, record in expected:
        if at < len(rows) and rows[at][1] == record:
            pairs.append((offset, rows[at][0]))
            at += 1
        elif offset not in optional:
            found = rows[at][1] if at < len(rows) else "its end"
            return pairs, [f"offset {offset.offset} of life {offset.life} is {record}, the restored topic has {found}"]
    if at < len(rows):
        return pairs, [f"{len(rows) - at} records too many, the first is {rows[at][1]}"]
    return pairs, []


def _compare_position(pairs: Iterable[tuple[Offset, int]], committed: int, restored: int | None) -> Iterator[str]:
    """The group must read the same records in the target that it would have read in the source."""
    if restored is None:
        yield f"the group has no offset, it was at {committed}"
        return
    for source, target in pairs:
        if (source.offset >= committed) != (target >= restored):
            yield f"the group is at {restored}, was at {committed}: record {source.offset} is at {target}"
            return
