"""An archive that stays open between requests: what it holds as of a restore point is read once and kept."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kbackup.archive import layout
from kbackup.archive.browse import Catalogue, catalogue, catalogue_of
from kbackup.archive.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.expired import gone_with, read_pins
from kbackup.archive.group_overview import (
    GroupOverview,
    GroupsOverview,
    groups_overview,
    java_groups_overview,
)
from kbackup.archive.java import is_java_archive
from kbackup.archive.java_folder import JavaFolder
from kbackup.archive.models import Loss, Manifest, Metadata, Point, TopicMetadata
from kbackup.archive.overview import (
    ExpiredPoints,
    PointOverview,
    Sums,
    expired_points,
    list_points,
    sums_of,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NoArchiveError, UsageError
from kbackup.store.base import ObjectInfo, Store

FRESH = 5.0
"""Seconds in which nobody looks for new restore points."""
FRESH_JAVA = 300.0
"""The same of a folder of the Java tool, all of whose indexes have to be read."""
KEPT = 3
"""Restore points whose catalogue is kept."""

Listed = list[tuple[str, str]]
"""Keys and ETags."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic's line in a list."""

    topic: ArchivedTopic
    sums: Sums
    losses: int

    @property
    def name(self) -> str:
        return self.topic.name


class Snapshot:
    """An archive as of a restore point (`point` is None for a folder of the Java tool)."""

    def __init__(self, store: Store, archive: Archive | None, point: Manifest | None, newest: bool) -> None:
        self.store, self.archive, self.point, self.newest = store, archive, point, newest
        self._read: dict[int, Metadata] = {}

    @property
    def number(self) -> int | None:
        return self.point.seq if self.point is not None else None

    @cached_property
    def catalogue(self) -> Catalogue:
        if self.archive is None or self.point is None:
            return catalogue(self.store)
        return catalogue_of(self.archive, self.point)

    @cached_property
    def topics(self) -> dict[str, ArchivedTopic]:
        return {topic.name: topic for topic in self.catalogue.topics}

    def topic(self, name: str) -> ArchivedTopic:
        if name not in self.topics:
            raise UsageError(
                f"there is no topic {name} in {self.catalogue.place}", "was it another restore point?"
            )
        return self.topics[name]

    def partition(self, name: str, number: int) -> ArchivedPartition:
        self.topic(name)
        return self.catalogue.partition(name, number)

    @cached_property
    def rows(self) -> list[TopicRow]:
        lost: dict[str, int] = {}
        for _, loss in self.losses:
            lost[loss.topic] = lost.get(loss.topic, 0) + 1
        return [TopicRow(t, sums_of(t.partitions), lost.get(t.name, 0)) for t in self.catalogue.topics]

    @cached_property
    def sums(self) -> Sums:
        return sums_of(p for topic in self.catalogue.topics for p in topic.partitions)

    @cached_property
    def losses(self) -> list[tuple[int, Loss]]:
        """(restore point, loss) up to this one, the newest first."""
        if self.archive is None or self.point is None:
            return []
        points = [p for p in self.archive.restore_points if p.seq <= self.point.seq]
        return [(p.seq, loss) for p in reversed(points) for loss in p.losses]

    @cached_property
    def groups(self) -> GroupsOverview:
        if self.archive is None or self.point is None:
            return java_groups_overview(self.store)
        return groups_overview(self.archive, self.point)

    @cached_property
    def by_group(self) -> dict[str, GroupOverview]:
        return {group.group: group for group in self.groups.groups}

    def metadata(self, seq: int | None = None) -> Metadata | None:
        """Settings that a restore point captured, by default this one's; None where there are none."""
        if self.archive is None or self.point is None:
            return None
        wanted = self.point.seq if seq is None else seq
        if wanted not in self._read:
            points = self.archive.captures
            if wanted not in points:
                return None
            self._read[wanted] = self.archive.metadata(points[wanted])
        return self._read[wanted]

    def settings(self, topic: ArchivedTopic) -> TopicMetadata | None:
        found = self.metadata(topic.as_of)
        return next((t for t in found.topics if t.name == topic.name), None) if found is not None else None


class Held:
    """Shared by all requests: one opens and reads metadata at a time, records are read outside of it.

    `NoArchiveError`, `WrongKeyError` and the like where it can't be opened.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._archive: Archive | None = None
        self._doubts = 0
        self._opened: int | None = None  # how many doubts there had been
        self._seen: object = None
        self._looked = 0.0
        self._points: list[PointOverview] = []
        self._expired: tuple[ExpiredPoints, ...] = ()
        self._kept: OrderedDict[int, Snapshot] = OrderedDict()
        with self._lock:
            self._look()

    @property
    def java(self) -> bool:
        return self._archive is None

    def points(self) -> Sequence[PointOverview]:
        """Every number that was ever begun, oldest first; none of a folder of the Java tool."""
        with self._lock:
            self._look()
            return self._points

    def expired(self) -> Sequence[ExpiredPoints]:
        """What was there once, in order."""
        with self._lock:
            self._look()
            return self._expired

    def committed(self) -> list[Point]:
        """The restore points, oldest first."""
        with self._lock:
            self._look()
            return list(self._archive.restore_points) if self._archive is not None else []

    def has_point(self, wanted: str) -> bool:
        """Whether there was such a restore point at the last look. Waits for nobody, as `doubt`."""
        return wanted == "latest" or any(
            p.status == "committed" and str(p.number) == wanted for p in self._points
        )

    def snapshot(self, wanted: str = "latest") -> Snapshot:
        """`UsageError` where there is no such restore point, `NoArchiveError` where there is none at all."""
        with self._lock:
            self._look()
            archive = self._archive
            point = archive.restore_point(wanted) if archive is not None else None
            number = point.seq if point is not None else 0
            if number not in self._kept:
                newest = archive is None or archive.restore_points[-1].seq == number
                store = self.store if archive is not None else JavaFolder(self.store)
                made = Snapshot(store, archive, point, newest)
                made.catalogue  # noqa: B018 (read by one request, not by all that wait for it)
                self._kept[number] = made
            self._kept.move_to_end(number)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[number]

    def doubt(self) -> None:
        """Something was not as it should be, perhaps because the archive has changed: the next request opens it anew.

        Waits for nobody: the event loop calls it, while some request may be busy opening."""
        self._doubts += 1

    def _look(self) -> None:
        now = self._clock()
        opened = self._opened == self._doubts
        if opened and now - self._looked < (FRESH_JAVA if self._archive is None else FRESH):
            return
        if not opened or self._archive is None:
            self._open()
        else:
            if (self._new(self._archive), self._beside()) != self._seen:
                self._open()
        self._looked = now

    def _open(self) -> None:
        doubts = self._doubts  # what is doubted from now on may be what is read here
        self._kept.clear()
        beside = self._beside()
        try:
            self._archive = open_archive(self.store)
        except NoArchiveError:
            if not is_java_archive(self.store):
                raise
            self._archive = None
        if self._archive is not None:
            new = self._new(self._archive)
            # what was committed while it was opened may not be in it: then the next one who looks opens it anew
            self._seen = (new, beside) if _stands(self._archive, new) else None
            pins = read_pins(self.store, self._archive.info.id)
            self._points = [replace(p, pinned=p.number in pins) for p in list_points(self._archive)]
            self._expired = expired_points(self._archive)
        self._opened = doubts

    def _new(self, archive: Archive) -> Listed:
        """The files of the newest restore point and of all after it."""
        last = archive.restore_points[-1].seq if archive.restore_points else 0
        return _listed(self.store.list(layout.BACKUPS, layout.backup_key(last, "")[:-1]))

    def _beside(self) -> Listed:
        """What changes with every pin, and with whatever does away with old restore points: a few keys."""
        return [
            entry
            for folder in (layout.CHECKPOINTS, layout.EXPIRATIONS, layout.PINS)
            for entry in _listed(self.store.list(folder))
        ]


def _listed(entries: Iterable[ObjectInfo]) -> Listed:
    return [(entry.key, entry.etag) for entry in entries]


def _stands(archive: Archive, new: Listed) -> bool:
    """Whether `archive` has every manifest that is listed in `new`, but for those that are gone."""
    closed = {run.seq for run in archive.runs if layout.MANIFEST in run.files}
    listed = (layout.parse_backup_key(key) for key, _ in new)
    return all(
        name != layout.MANIFEST or seq in closed or gone_with(archive.gone, seq) is not None
        for seq, name in filter(None, listed)
    )
