"""The page of the archive's status: its findings, and when it was last backed up, verified and restored."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.view import GET, Requested

router = APIRouter(default_response_class=HTMLResponse)


@router.api_route("/status", methods=GET)
def status(request: Requested) -> HTMLResponse:
    """Show the present status, whatever restore point the other pages show."""
    request.cache.points()  # reads a new status where the last one is old
    verdict = request.cache.verdict
    if verdict is None:
        raise UsageError("a folder of the Java tool has no status", "make an archive of it: 'kbackup adopt'")
    return request.page("status.html", "status", verdict=verdict, status=verdict.status)
