"""The page of flows that mirror the archive: their progress and incidents."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.view import GET, Requested

router = APIRouter(default_response_class=HTMLResponse)

MOST = 200
"""Number of topics and incidents of each flow."""
SILENT = 600.0
"""Seconds without a sign of life after which a flow counts as stopped: ten times the longest pause."""


@router.api_route("/mirrors", methods=GET)
def mirrors(request: Requested) -> HTMLResponse:
    """Show the present state, whatever restore point the other pages show."""
    from kbackup.jobs.mirror.status import flows_of

    archive = request.cache.snapshot().archive
    if archive is None:
        raise UsageError("a folder of the Java tool has no mirrors", "make an archive of it: 'kbackup adopt'")
    flows = [
        (flow, sorted(flow.topics, key=lambda t: (not t.held_back, -t.records_behind, t.topic)))
        for flow in flows_of(archive, request.cache.store)
    ]
    return request.page("mirrors.html", "mirrors", flows=flows, most=MOST, silent=SILENT)
