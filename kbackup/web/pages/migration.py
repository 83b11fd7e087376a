"""The page of a migration from ZooKeeper to KRaft: its state at the newest restore points with znodes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.jobs.migrate.states.archived import archived_state
from kbackup.web.sections import MIGRATION_POINTS
from kbackup.web.view import GET, Requested

router = APIRouter(default_response_class=HTMLResponse)


@router.api_route("/migration", methods=GET)
def migration(request: Requested) -> HTMLResponse:
    """Show the newest restore points, whatever restore point the other pages show."""
    archive = request.cache.snapshot().archive
    if archive is None:
        raise UsageError(
            "a folder of the Java tool has no metadata", "make an archive of it: 'kbackup adopt'"
        )
    rows = []
    for row in reversed(archive.restore_points[-MIGRATION_POINTS:]):
        metadata = archive.metadata(row.number)
        if (report := archived_state(metadata)) is not None:
            rows.append((row, metadata, report))
    return request.page("migration.html", "migration", rows=rows, most=MIGRATION_POINTS)
