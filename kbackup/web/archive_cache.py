"""Cache an open archive between requests, with the content of the latest restore points that pages read."""

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
"""Seconds between checks for a newer catalog."""
FRESH_JAVA = 300.0
"""Seconds between readings of a folder of the Java tool: each reads all its indexes."""
CACHED = 3
"""Number of restore points whose content is cached."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic's row in a table."""

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
                f"there is no topic {name} in {self.catalogue.location}", "select another restore point"
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
        """Losses up to this restore point as (restore point, loss), the newest first."""
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
        """Return the metadata of a restore point, by default this one; None for a folder of the Java tool."""
        if self.archive is None or self.point is None:
            return None
        captured = self.point.number if number is None else number
        if captured not in self._read:
            self._read[captured] = self.archive.metadata(captured)
        return self._read[captured]

    def settings(self, topic: ArchivedTopic) -> TopicMetadata | None:
        metadata = self.metadata(topic.as_of)
        if metadata is None:
            return None
        return next((t for t in metadata.topics if t.name == topic.name), None)


class ArchiveCache:
    """An open archive that all requests share. One request at a time reads metadata; records are read without a lock.

    Raises `NoArchiveError`, `WrongKeyError` and others if the archive can't be opened.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._archive: Archive | None = None
        self._reopenings = 0  # requested
        self._opened: int | None = None  # value of _reopenings when the archive was opened
        self._checked_at = 0.0
        self._points: list[PointOverview] = []
        self._let_go: list[int] = []
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        with self._lock:
            self._refresh()

    @property
    def java(self) -> bool:
        return self._archive is None

    def points(self) -> Sequence[PointOverview]:
        """Return all restore points, oldest first; none for a folder of the Java tool."""
        with self._lock:
            self._refresh()
            return self._points

    def let_go(self) -> Sequence[int]:
        """Return the numbers of restore points that expired or were lost, in order."""
        with self._lock:
            self._refresh()
            return self._let_go

    def has_point(self, name: str) -> bool:
        """Return whether the last check read such a restore point. Does not wait for other requests."""
        return name == "latest" or any(str(p.number) == name or name in p.labels for p in self._points)

    def snapshot(self, point_name: str = "latest") -> Snapshot:
        """Return the archive as of a restore point.

        Raises `UsageError` for an unknown restore point, `NoArchiveError` for an archive without restore points."""
        with self._lock:
            self._refresh()
            archive = self._archive
            point = archive.restore_point(point_name) if archive is not None else None
            number = point.number if point is not None else 0
            if number not in self._snapshots:
                newest = archive is None or archive.restore_points[-1].number == number
                store = self.store if archive is not None else JavaFolder(self.store)
                snapshot = Snapshot(store, archive, point, newest)
                snapshot.catalogue  # noqa: B018 (read it now: waiting requests must not read it again)
                self._snapshots[number] = snapshot
            self._snapshots.move_to_end(number)
            while len(self._snapshots) > CACHED:
                self._snapshots.popitem(last=False)
            return self._snapshots[number]

    def reopen(self) -> None:
        """Let the next request open the archive anew, after an error that a change of the archive may have caused.

        Does not wait: the event loop calls it, while a request may be opening the archive."""
        self._reopenings += 1

    def _refresh(self) -> None:
        now = self._clock()
        opened = self._opened == self._reopenings
        if opened and now - self._checked_at < (FRESH_JAVA if self._archive is None else FRESH):
            return
        if not opened or self._archive is None or not self._is_newest(self._archive):
            self._open()
        self._checked_at = now

    def _open(self) -> None:
        reopenings = self._reopenings  # before reading: a later request must open it again
        self._snapshots.clear()
        try:
            self._archive = open_archive(self.store)
        except NoArchiveError:
            if not is_java_archive(self.store):
                raise
            self._archive = None
        archive = self._archive
        self._points = list_points(archive) if archive is not None else []
        self._let_go = sorted(archive.state.past_manifests) if archive is not None else []
        self._opened = reopenings

    def _is_newest(self, archive: Archive) -> bool:
        """Return whether the catalog of `archive` is the newest, by one listing from that catalog on."""
        number = archive.state.number
        before = layout.catalog_key(number - 1) if number else ""
        keys = (layout.parse_catalog_key(entry.key) for entry in self.store.list(layout.CATALOG, before))
        return [key for key in keys if key is not None] == ([number] if number else [])
