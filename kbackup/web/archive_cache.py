"""An archive that stays open between requests: what it holds as of a restore point is read once and kept."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kbackup.archive import layout
from kbackup.archive.java.content import is_java_archive
from kbackup.archive.java.folder import JavaFolder
from kbackup.archive.models import Loss, Manifest, Metadata
from kbackup.archive.query.browse import Catalogue, catalogue, catalogue_of
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.query.group_overview import (
    GroupOverview,
    GroupsOverview,
    groups_overview,
    java_groups_overview,
)
from kbackup.archive.query.points import PointOverview, list_points
from kbackup.archive.query.sums import Sums, sums_of
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NoArchiveError, UsageError
from kbackup.metadata.entities import TopicMetadata
from kbackup.store.base import Store

FRESH = 5.0
"""Seconds in which nobody looks for a newer catalog."""
FRESH_JAVA = 300.0
"""The same of a folder of the Java tool, all of whose indexes have to be read."""
KEPT = 3
"""Restore points whose catalogue is kept."""


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
        return self.point.number if self.point is not None else None

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
        return self.archive.losses_by_point(self.point)[::-1]

    @cached_property
    def groups(self) -> GroupsOverview:
        if self.archive is None or self.point is None:
            return java_groups_overview(self.store)
        return groups_overview(self.archive, self.point)

    @cached_property
    def by_group(self) -> dict[str, GroupOverview]:
        return {group.group: group for group in self.groups.groups}

    def metadata(self, number: int | None = None) -> Metadata | None:
        """Settings that a restore point captured, by default this one; None for a folder of the Java tool."""
        if self.archive is None or self.point is None:
            return None
        captured = self.point.number if number is None else number
        if captured not in self._read:
            self._read[captured] = self.archive.metadata(captured)
        return self._read[captured]

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
        self._looked = 0.0
        self._points: list[PointOverview] = []
        self._let_go: list[int] = []
        self._kept: OrderedDict[int, Snapshot] = OrderedDict()
        with self._lock:
            self._look()

    @property
    def java(self) -> bool:
        return self._archive is None

    def points(self) -> Sequence[PointOverview]:
        """Every restore point, oldest first; none of a folder of the Java tool."""
        with self._lock:
            self._look()
            return self._points

    def let_go(self) -> Sequence[int]:
        """The numbers of restore points that expired or were lost, in order."""
        with self._lock:
            self._look()
            return self._let_go

    def has_point(self, name: str) -> bool:
        """Whether there was such a restore point at the last look. Waits for nobody, as `doubt`."""
        return name == "latest" or any(str(p.number) == name or name in p.labels for p in self._points)

    def snapshot(self, wanted: str = "latest") -> Snapshot:
        """`UsageError` where there is no such restore point, `NoArchiveError` where there is none at all."""
        with self._lock:
            self._look()
            archive = self._archive
            point = archive.restore_point(wanted) if archive is not None else None
            number = point.number if point is not None else 0
            if number not in self._kept:
                newest = archive is None or archive.restore_points[-1].number == number
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
        if not opened or self._archive is None or not self._is_newest(self._archive):
            self._open()
        self._looked = now

    def _open(self) -> None:
        doubts = self._doubts  # what is doubted from now on may be what is read here
        self._kept.clear()
        try:
            self._archive = open_archive(self.store)
        except NoArchiveError:
            if not is_java_archive(self.store):
                raise
            self._archive = None
        archive = self._archive
        self._points = list_points(archive) if archive is not None else []
        self._let_go = sorted(archive.state.past_manifests) if archive is not None else []
        self._opened = doubts

    def _is_newest(self, archive: Archive) -> bool:
        """Whether the newest catalog is that of `archive`: by one listing, from that catalog on."""
        number = archive.state.number
        before = layout.catalog_key(number - 1) if number else ""
        keys = (layout.parse_catalog_key(entry.key) for entry in self.store.list(layout.CATALOG, before))
        return [key for key in keys if key is not None] == ([number] if number else [])
