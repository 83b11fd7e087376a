"""The page of flows that mirror an archive: their progress and incidents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.reader import Archive
from kbackup.errors import UsageError
from kbackup.mirror.flow import has_flows
from kbackup.systems import SystemPage
from kbackup.web.view import GET, Requested

if TYPE_CHECKING:
    from kbackup.mirror.status import MirroredTopic

router = APIRouter(default_response_class=HTMLResponse)

MOST_FLOWS = 200
"""Number of topics and incidents of each flow."""
SILENT = 600.0
"""Seconds without a sign of life after which a flow counts as stopped: ten times the longest pause."""


@router.api_route("/mirrors", methods=GET)
def mirrors(request: Requested) -> HTMLResponse:
    """Show the present state, whatever restore point the other pages show."""
    from kbackup.mirror.status import flows_of

    archive = request.cache.snapshot().archive
    if archive is None:
        raise UsageError("a folder of the Java tool has no mirrors", "make an archive of it: 'kbackup adopt'")
    flows = []
    for flow in flows_of(archive, request.cache.store):
        flows.append((flow, sorted(flow.topics, key=_urgency)))
    return request.page("mirrors.html", "mirrors", flows=flows, most=MOST_FLOWS, silent=SILENT)


def _urgency(topic: MirroredTopic) -> tuple[bool, int, str]:
    """Order topics that are held back first, then the topics that are farthest behind."""
    return not topic.held_back, -topic.records_behind, topic.topic


def _has_content(archive: Archive) -> bool:
    return has_flows(archive.store)


PAGE = SystemPage("mirrors", "Mirrors", "m", router, Path(__file__).parent / "templates", _has_content)
