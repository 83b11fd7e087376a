"""The page of the archive's history, as in `kbackup log`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.view import GET, CatalogNumber, Requested

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100
"""Number of catalogs that a page reads."""


@router.api_route("/history", methods=GET)
def history_page(request: Requested, upto: CatalogNumber = None) -> HTMLResponse:
    """Show catalogs up to number `upto`, the newest first, whatever restore point the other pages show."""
    from kbackup.jobs.history.job import history

    archive = request.cache.archive()
    if archive is None:
        raise UsageError("a folder of the Java tool has no history", "make an archive of it: 'kbackup adopt'")
    last = archive.state.number if upto is None else min(upto, archive.state.number)
    rows = history(archive, PAGE + 1, last)
    return request.page(
        "history.html",
        "history",
        rows=rows[-PAGE:][::-1],
        earlier=rows[-PAGE - 1].catalog if len(rows) > PAGE else None,
        newest=last == archive.state.number,
    )
