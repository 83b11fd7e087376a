"""Cache an open archive between requests, with the content of the latest restore points that pages read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kbackup.archive import layout
from kbackup.archive.catalog.opening import far_numbers
from kbackup.archive.java.content import is_java_archive
from kbackup.archive.java.folder import JavaFolder
from kbackup.archive.query.points import PointOverview, list_points
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NoArchiveError
from kbackup.store.base import Store
from kbackup.web.lag import LagCache
from kbackup.web.sections import ArchivedSections, Section
from kbackup.web.snapshot import Snapshot
from kbackup.web.verdict import StatusRules, Verdict, verdict_on

FRESH = 5.0
"""Seconds between checks for a newer catalog."""
FRESH_STATUS = 60.0
"""Seconds between readings of the status, and checks for mirrors, without a newer catalog."""
FRESH_JAVA = 300.0
"""Seconds between readings of a folder of the Java tool: each reads all its indexes."""
CACHED = 3
"""Number of restore points whose content is cached."""


class ArchiveCache:
    """An open archive that all requests share. One request at a time reads metadata; records are read without a lock.

    Raises `NoArchiveError`, `WrongKeyError` and others if the archive can't be opened.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        state: Store | None = None,
        rules: StatusRules = StatusRules(),  # noqa: B008 (immutable)
    ) -> None:
        self.store = store  # of the archive; `state` holds reports of drills
        self.state = state if state is not None else store
        self._clock = clock
        self._lock = threading.RLock()
        self._archive: Archive | None = None
        self._reopenings = 0  # requested
        self._opened: int | None = None  # value of _reopenings when the archive was opened
        self._checked_at = 0.0
        self._points: list[PointOverview] = []
        self._let_go: list[int] = []
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self._archived_sections = ArchivedSections(store)
        self._rules = rules
        self._status_at = -FRESH_STATUS
        self.verdict: Verdict | None = None
        """The verdict of the last check; None for a folder of the Java tool."""
        self.sections: tuple[Section, ...] = ()
        """The sections of the navigation, by the last check."""
        self.lags = LagCache()
        with self._lock:
            self._refresh()

    @property
    def java(self) -> bool:
        return self._archive is None

    def archive(self) -> Archive | None:
        """Return the archive as of its newest catalog; None for a folder of the Java tool."""
        with self._lock:
            self._refresh()
            return self._archive

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
            self._status_at = now - FRESH_STATUS
        if now - self._status_at >= FRESH_STATUS:
            self.sections = self._archived_sections.find(self._archive)
            self.verdict = verdict_on(self._archive, self._rules, self.state) if self._archive else None
            self._status_at = now
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
        later = {key for key in keys if key is not None}
        return later - far_numbers(later, number) == ({number} if number else set())
