"""The flows that mirror the archive: how far each is, and what holds it back."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.view import GET, Look

router = APIRouter(default_response_class=HTMLResponse)

MOST = 200
"""Topics of each flow, and incidents."""
SILENT = 600.0
"""Seconds without a sign of life after which a flow is thought to be stopped: ten times the longest pause."""


@router.api_route("/mirrors", methods=GET)
def mirrors(look: Look) -> HTMLResponse:
    """As of now, whatever restore point the other pages look at."""
    from kbackup.jobs.mirror.status import flows_of

    archive = look.held.snapshot().archive
    if archive is None:
        raise UsageError("a folder of the Java tool has no mirrors", "make an archive of it: 'kbackup adopt'")
    flows = [
        (flow, sorted(flow.topics, key=lambda t: (not t.held_back, -t.records_behind, t.topic)))
        for flow in flows_of(archive, look.held.store)
    ]
    return look.page("mirrors.html", "mirrors", flows=flows, most=MOST, silent=SILENT)
