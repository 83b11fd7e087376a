"""The archive as pages read it, kept open between requests: content, sections, status and lag of groups."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from kbackup import systems
from kbackup.archive import layout
from kbackup.archive.catalog.commit import far_numbers
from kbackup.archive.catalog.labels import is_label
from kbackup.archive.catalog.points import PointOverview, list_points
from kbackup.archive.java import JavaFolder
from kbackup.archive.models import Loss, Manifest, Metadata, Schemas
from kbackup.archive.query.browse import Catalogue, catalogue_of, java_catalogue
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.query.groups import (
    GroupOverview,
    GroupsOverview,
    PointLags,
    groups_overview,
    java_groups_overview,
    point_lags,
    sample_points,
)
from kbackup.archive.query.java import is_java_archive
from kbackup.archive.query.overview import Sums, lost_ranges, sums_of
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.schemas import NO_SCHEMAS, SchemaIndex, VersionUse, schema_uses
from kbackup.config.models import Backup
from kbackup.errors import KbackupError, NoArchiveError, UsageError
from kbackup.jobs.schemas.plan import SubjectOverview, subjects_of
from kbackup.metadata.entities import TopicMetadata
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition
from kbackup.util.system import in_threads
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.jobs.status.report import ArchiveStatus


# The lag of consumer groups at restore points, for charts.


SAMPLES = 24
"""Number of restore points of a chart: each costs two objects."""

_CACHED = 4 * SAMPLES
_THREADS = 4


class LagCache:
    """The lag of all groups at restore points that were read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: OrderedDict[str, PointLags] = OrderedDict()  # by checksum of the manifest: it never changes

    def history(self, archive: Archive, points: Sequence[PointOverview]) -> list[PointLags]:
        """Return the lag of all groups at a sample of `points`, oldest first."""
        sample = {}
        for point in sample_points(points, SAMPLES):
            manifest = archive.find_point(point.number).manifest
            sample[manifest] = point

        def read(manifest: str) -> PointLags:
            return point_lags(archive, sample[manifest])

        # The lock is held while points are read: another request for the same page must not read them again.
        with self._lock:
            unread = [manifest for manifest in sample if manifest not in self._read]
            lags = in_threads(read, unread, _THREADS)
            self._read.update(zip(unread, lags, strict=True))
            for manifest in sample:
                self._read.move_to_end(manifest)
            history = [self._read[manifest] for manifest in sample]
            while len(self._read) > _CACHED:
                self._read.popitem(last=False)
        return history


# The content of an archive as of a restore point, read when a page first asks for it.


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic's row in a table."""

    topic: ArchivedTopic
    sums: Sums
    losses: int

    @property
    def name(self) -> str:
        return self.topic.name


class ArchiveSnapshot:
    """An archive as of a restore point. `archive` and `point` are None for a folder of the Java tool."""

    def __init__(self, store: Store, at: tuple[Archive, Manifest] | None, newest: bool) -> None:
        self.store, self.newest, self._at = store, newest, at
        self.archive: Archive | None = None
        self.point: Manifest | None = None
        self.number: int | None = None
        if at is not None:
            self.archive, self.point = at
            self.number = self.point.number
        self._read: dict[int, Metadata] = {}

    @cached_property
    def catalogue(self) -> Catalogue:
        if self._at is None:
            return java_catalogue(self.store)
        return catalogue_of(*self._at)

    @cached_property
    def topics(self) -> dict[str, ArchivedTopic]:
        return {topic.name: topic for topic in self.catalogue.topics}

    def topic(self, name: str) -> ArchivedTopic:
        if name not in self.topics:
            raise UsageError(f"there is no topic {name} in {self.catalogue.location}", "select another restore point")
        return self.topics[name]

    def partition(self, name: str, number: int) -> ArchivedPartition:
        self.topic(name)
        return self.catalogue.partition(name, number)

    @cached_property
    def rows(self) -> list[TopicRow]:
        losses_of = Counter(loss.topic for _, loss in self.losses)
        rows: list[TopicRow] = []
        for topic in self.catalogue.topics:
            sums = sums_of(topic.partitions)
            rows.append(TopicRow(topic, sums, losses_of[topic.name]))
        return rows

    @cached_property
    def sums(self) -> Sums:
        partitions: list[ArchivedPartition] = []
        for topic in self.catalogue.topics:
            partitions += topic.partitions
        return sums_of(partitions)

    @cached_property
    def losses(self) -> list[tuple[int, Loss]]:
        """Losses up to this restore point as (restore point, loss), the newest first."""
        if self._at is None:
            return []
        archive, point = self._at
        return archive.losses_by_point(point)[::-1]

    @cached_property
    def lost_ranges(self) -> dict[IncarnationPartition, list[tuple[int, int]]]:
        if self._at is None:
            return {}
        return lost_ranges(*self._at)

    def erased(self, topics: Iterable[ArchivedTopic]) -> int:
        """Return how many records of topics were erased, as far as this restore point had them."""
        erased = 0
        for topic in topics:
            for partition in topic.partitions:
                erased += self.erased_of(topic, partition)
        return erased

    def erased_of(self, topic: ArchivedTopic, partition: ArchivedPartition) -> int:
        """Return how many records of a partition were erased, as far as this restore point had them."""
        if self.archive is None:
            return 0
        erased = 0
        for start, end in self.archive.state.erased_offsets((*topic.key, partition.partition)):
            # One record at each offset. What expired since is counted as expired.
            erased += max(0, min(end, partition.end) - max(start, partition.start))
        return erased

    @cached_property
    def groups(self) -> GroupsOverview:
        if self._at is None:
            return java_groups_overview(self.store)
        return groups_overview(*self._at)

    @cached_property
    def by_group(self) -> dict[str, GroupOverview]:
        return {group.group: group for group in self.groups.groups}

    @cached_property
    def schemas(self) -> Schemas | None:
        if self._at is None:
            return None
        archive, point = self._at
        return archive.schemas(point)

    @cached_property
    def schema_index(self) -> SchemaIndex:
        return SchemaIndex(self.schemas or NO_SCHEMAS)

    @cached_property
    def schema_uses(self) -> list[VersionUse]:
        if self.point is None:
            return []
        return list(schema_uses(self.point.topics, self.schema_index))

    @cached_property
    def subjects(self) -> list[SubjectOverview]:
        if self.point is None or not self.schemas:
            return []
        return subjects_of(self.schemas, self.point.topics)

    @cached_property
    def compatibilities(self) -> dict[str, str]:
        """The compatibility that is set for subjects, for contexts, and ('') for the registry."""
        levels: dict[str, str] = {}
        if self.schemas is None:
            return levels
        for settings in self.schemas.settings:
            if settings.config and "compatibilityLevel" in settings.config:
                levels[settings.subject] = str(settings.config["compatibilityLevel"])
        return levels

    def uses_of(self, topic: str) -> list[VersionUse]:
        """Return the schemas that a topic uses; none if they can't be read: their own page shows the error."""
        try:
            return [use for use in self.schema_uses if use.topic == topic]
        except KbackupError:
            return []

    def metadata(self, number: int | None = None) -> Metadata | None:
        """Return the metadata of a restore point, by default this one; None for a folder of the Java tool."""
        if self._at is None:
            return None
        archive, point = self._at
        captured = point.number if number is None else number
        if captured not in self._read:
            self._read[captured] = archive.metadata(captured)
        return self._read[captured]

    def settings(self, topic: ArchivedTopic) -> TopicMetadata | None:
        """Return the settings of a topic as of the restore point that captured the topic last; None if it has none."""
        metadata = self.metadata(topic.as_of)
        if metadata is None:
            return None
        for settings in metadata.topics:
            if settings.name == topic.name:
                return settings
        return None


# The sections of the web page, and the verdict at the top of every page: as `kbackup status` gives it.


log = logging.getLogger(__name__)


class Section(NamedTuple):
    """A section of the navigation: `key` opens it. `java`: a folder of the Java tool has it, too."""

    name: str
    text: str
    key: str
    java: bool = False

    @property
    def address(self) -> tuple[str, ...]:
        """The names in its address."""
        return () if self.name == "points" else (self.name,)


SECTIONS = (
    Section("status", "Status", "a"),
    Section("points", "Restore points", "r", java=True),
    Section("topics", "Topics", "t", java=True),
    Section("groups", "Groups", "g", java=True),
    Section("schemas", "Schemas", "c"),
    Section("search", "Search", "s", java=True),
    Section("restore", "Restore", "e", java=True),
    Section("growth", "Growth", "w"),
    Section("diff", "Differences", "d"),
    Section("history", "History", "h"),
    Section("drills", "Drills", "i"),
)
"""The sections of the core. Schemas have one only in archives that hold any; pages of systems follow."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level with its line. `status` is None if it can't be read; `line` and `hint` explain it."""

    level: Literal["ok", "warning", "critical", "unknown"]
    line: str
    status: ArchiveStatus | None = None
    hint: str = ""


# Cache an open archive between requests, with the content of the latest restore points that pages read.


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

    `rules` are those of the verdict, as in `jobs.status`. Raises `NoArchiveError`, `WrongKeyError` and others if the
    archive can't be opened.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        state: Store | None = None,
        rules: Backup = Backup(),  # noqa: B008 (immutable)
    ) -> None:
        self.store = store  # of the archive; `state` holds reports of drills
        self.state = state if state is not None else store
        self._clock, self._rules = clock, rules
        self._lock = threading.RLock()
        self._archive: Archive | None = None
        self._reopenings = 0  # requested
        self._opened: int | None = None  # value of _reopenings when the archive was opened
        self._checked_at = 0.0
        self._points: list[PointOverview] = []
        self._expired: list[int] = []
        self._snapshots: OrderedDict[int, ArchiveSnapshot] = OrderedDict()
        self._system_pages = systems.pages()
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

    def expired(self) -> Sequence[int]:
        """Return the numbers of restore points that expired or were lost, in order."""
        with self._lock:
            self._refresh()
            return self._expired

    def has_point(self, name: str) -> bool:
        """Return whether the last check read such a restore point. Does not wait for other requests."""
        if name == "latest":
            return True
        if any(str(point.number) == name for point in self._points):
            return True
        # A label that could also be a number or a word of commands selects nothing.
        return is_label(name) and any(name in point.labels for point in self._points)

    def snapshot(self, point_name: str = "latest") -> ArchiveSnapshot:
        """Return the archive as of a restore point.

        Raises `UsageError` for an unknown restore point, `NoArchiveError` for an archive without restore points."""
        with self._lock:
            self._refresh()
            archive = self._archive
            point = archive.restore_point(point_name) if archive is not None else None
            # A folder of the Java tool has one snapshot, under a number that no restore point has.
            number = point.number if point is not None else 0
            if number not in self._snapshots:
                if archive is None or point is None:
                    snapshot = ArchiveSnapshot(JavaFolder(self.store), None, newest=True)
                else:
                    newest = archive.restore_points[-1].number == number
                    snapshot = ArchiveSnapshot(self.store, (archive, point), newest)
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
        """Look for a newer catalog, and judge the status anew, each no more often than its `FRESH` time says."""
        now = self._clock()
        opened = self._opened == self._reopenings
        fresh = FRESH_JAVA if self._archive is None else FRESH
        if opened and now - self._checked_at < fresh:
            return
        if not opened or self._archive is None or not self._is_newest(self._archive):
            self._open()
            # The verdict was on the archive before: a new one is due.
            self._status_at = now - FRESH_STATUS
        if now - self._status_at >= FRESH_STATUS:
            self.sections = self._find_sections()
            self.verdict = self._judge(self._archive) if self._archive is not None else None
            self._status_at = now
        self._checked_at = now

    def _open(self) -> None:
        reopenings = self._reopenings  # before reading: a later request must open it again
        self._snapshots.clear()
        # After an error the last points stay: the page of the error asks for them.
        try:
            archive = open_archive(self.store)
        except NoArchiveError:
            if not is_java_archive(self.store):
                raise
            self._archive = None
            self._points = []
            self._expired = []
        else:
            self._archive = archive
            self._points = list_points(archive.state)
            self._expired = sorted(archive.state.past_manifests)
        self._opened = reopenings

    def _is_newest(self, archive: Archive) -> bool:
        """Return whether the catalog of `archive` is the newest, by one listing from that catalog on."""
        number = archive.state.number
        before = layout.catalog_key(number - 1) if number else ""
        numbers = set()
        for entry in self.store.list(layout.CATALOG, before):
            found = layout.parse_catalog_key(entry.key)
            if found is not None:
                numbers.add(found)
        expected = {number} if number else set()
        return numbers - far_numbers(numbers, number) == expected

    def _find_sections(self) -> tuple[Section, ...]:
        archive = self._archive
        if archive is None:
            return tuple(section for section in SECTIONS if section.java)
        # Most archives have no schemas, mirrors or migration: an empty page would only make the navigation longer.
        head = archive.head
        has_schemas = head is not None and head.schemas is not None
        sections = [section for section in SECTIONS if section.name != "schemas" or has_schemas]
        for page in self._system_pages:
            if page.has_content(archive):
                sections.append(Section(page.name, page.title, page.key))
        return tuple(sections)

    def _judge(self, archive: Archive) -> Verdict:
        """Return the verdict now; an error is one, too, as the other pages must stay readable."""
        from kbackup.jobs.status.job import archive_status
        from kbackup.jobs.status.report import summary

        try:
            status = archive_status(archive, self._rules, reports=self.state)
        except KbackupError as error:
            log.warning("status: %s", error)
            return Verdict("unknown", error.message, hint=error.hint)
        if not status.findings:
            return Verdict("ok", summary(status), status)
        line = status.findings[0].message  # the worst one comes first
        others = len(status.findings) - 1
        if others:
            line += f"; {plural(others, 'other finding')}"
        return Verdict(status.level, line, status)
