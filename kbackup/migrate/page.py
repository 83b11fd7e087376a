"""The page of a migration from ZooKeeper to KRaft: its state at the newest restore points with znodes."""

from __future__ import annotations

import logging
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.reader import Archive
from kbackup.errors import KbackupError, UsageError
from kbackup.migrate.readings import archived_state
from kbackup.systems import SystemPage
from kbackup.web.view import GET, Requested

log = logging.getLogger(__name__)

MIGRATION_POINTS = 20
"""Number of restore points, the newest, whose metadata is searched for znodes."""

router = APIRouter(default_response_class=HTMLResponse)


@router.api_route("/migration", methods=GET)
def migration(request: Requested) -> HTMLResponse:
    """Show the newest restore points, whatever restore point the other pages show."""
    archive = request.cache.snapshot().archive
    if archive is None:
        raise UsageError("a folder of the Java tool has no metadata", "make an archive of it: 'kbackup adopt'")
    rows = []
    for row in reversed(archive.restore_points[-MIGRATION_POINTS:]):
        metadata = archive.metadata(row.number)
        if (report := archived_state(metadata)) is not None:
            rows.append((row, metadata, report))
    return request.page("migration.html", "migration", rows=rows, most=MIGRATION_POINTS)


class ZnodeSearch:
    """Finds out whether an archive has znodes. The metadata of a restore point never changes, and is read once."""

    def __init__(self) -> None:
        self._has_znodes: dict[int, bool] = {}  # by number of the restore point

    def has_znodes(self, archive: Archive) -> bool:
        """Return whether a restore point holds znodes: the newest, or one of metadata alone among the last ones.

        'kbackup migrate archive' makes restore points of metadata alone."""
        points = archive.restore_points[-MIGRATION_POINTS:]
        candidates = set[int]()
        for point in points:
            holds_metadata_alone = not point.topics and not point.segments
            if point is points[-1] or holds_metadata_alone:
                candidates.add(point.number)
        self._has_znodes = {number: known for number, known in self._has_znodes.items() if number in candidates}
        for number in candidates - self._has_znodes.keys():
            try:
                self._has_znodes[number] = archive.metadata(number).znodes is not None
            except KbackupError as error:  # the page itself shows the error; the others stay readable
                log.warning("restore point %s: %s", number, error)
        return any(self._has_znodes.values())


def make_page() -> SystemPage:
    """Return the page, with a search for znodes that remembers what it has read."""
    templates = Path(__file__).parent / "templates"
    return SystemPage("migration", "Migration", "z", router, templates, ZnodeSearch().has_znodes)
