"""The pages of consumer groups and their positions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.query.content import ArchivedPartition
from kbackup.errors import UsageError
from kbackup.web.charts.strip import strip
from kbackup.web.view import GET, Number, Requested, list_page, matches_search

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100


@router.api_route("/groups", methods=GET)
def groups(request: Requested, page: Number = 1, q: str = "") -> HTMLResponse:
    overview = request.snapshot.groups
    matching = [group for group in overview.groups if matches_search(group.group, q)]
    return request.page(
        "groups.html",
        "groups",
        list_page=list_page(matching, page, PAGE),
        of=len(overview.groups),
        q=q,
        overview=overview,
    )


@router.api_route("/group", methods=GET)
def group(request: Requested, name: str, page: Number = 1) -> HTMLResponse:
    """Show a group. Its name is a parameter: it may have slashes or be empty."""
    if name not in request.snapshot.by_group:
        why = request.snapshot.groups.not_carried.get(name)
        raise UsageError(
            f"there is no group {name} in {request.snapshot.catalogue.location}",
            f"select another restore point: it was not captured in this one: {why}"
            if why
            else "select another restore point",
        )
    shown = request.snapshot.by_group[name]
    partitions: dict[tuple[str, int], ArchivedPartition] = {
        (topic, p.partition): p
        for topic in {position.topic for position in shown.offsets}
        if topic in request.snapshot.topics
        for p in request.snapshot.topics[topic].partitions
    }
    positions = list_page(shown.offsets, page, PAGE)
    rows = []
    for position in positions.entries:
        partition = partitions.get((position.topic, position.partition))
        chart = strip(partition, [(name, position.offset)]) if partition is not None else None
        rows.append((position, partition, chart))
    return request.page(
        "group.html",
        "groups",
        group=shown,
        list_page=positions,
        rows=rows,
        captured_at=request.snapshot.groups.captured_at,
    )
