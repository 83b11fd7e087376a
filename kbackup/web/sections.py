"""The sections of the web page. Mirrors and migrations have one only in archives that hold any."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kbackup.archive.reader import Archive
from kbackup.errors import KbackupError
from kbackup.store.base import Store

log = logging.getLogger(__name__)

MIGRATION_POINTS = 20
"""Number of restore points, the newest, whose metadata is searched for znodes."""


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
    Section("points", "Restore points", "r", java=True),
    Section("topics", "Topics", "t", java=True),
    Section("groups", "Groups", "g", java=True),
    Section("search", "Search", "s", java=True),
    Section("restore", "Restore", "e", java=True),
    Section("growth", "Growth", "w"),
    Section("diff", "Differences", "d"),
    Section("history", "History", "h"),
    Section("drills", "Drills", "i"),
    Section("mirrors", "Mirrors", "m"),
    Section("migration", "Migration", "z"),
)


class ArchivedSections:
    """Finds the sections of an archive. The metadata of a restore point is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._znodes: dict[int, bool] = {}  # by restore point

    def find(self, archive: Archive | None) -> tuple[Section, ...]:
        """Return the sections of the archive; None stands for a folder of the Java tool."""
        if archive is None:
            return tuple(section for section in SECTIONS if section.java)
        rare = {"mirrors": self._has_mirrors(), "migration": self._has_migration(archive)}
        return tuple(section for section in SECTIONS if rare.get(section.name, True))

    def _has_mirrors(self) -> bool:
        from kbackup.jobs.mirror.status import has_flows

        return has_flows(self._store)

    def _has_migration(self, archive: Archive) -> bool:
        """Return whether a restore point holds znodes: the newest, or one of metadata alone among the last ones.

        'kbackup migrate archive' makes restore points of metadata alone."""
        points = archive.restore_points[-MIGRATION_POINTS:]
        candidates = {p.number for p in points if p is points[-1] or not (p.topics or p.segments)}
        self._znodes = {number: held for number, held in self._znodes.items() if number in candidates}
        for number in candidates - self._znodes.keys():
            try:
                self._znodes[number] = archive.metadata(number).znodes is not None
            except KbackupError as error:  # its own page shows the error; the others stay readable
                log.warning("restore point %s: %s", number, error)
        return any(self._znodes.values())
