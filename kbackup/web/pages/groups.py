"""Consumer groups and where they stand."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.query.content import ArchivedPartition
from kbackup.errors import UsageError
from kbackup.web.charts.strip import strip
from kbackup.web.view import GET, Look, Number, matching, part

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100


@router.api_route("/groups", methods=GET)
def groups(look: Look, page: Number = 1, q: str = "") -> HTMLResponse:
    found = look.at.groups
    some = [group for group in found.groups if matching(group.group, q)]
    return look.page(
        "groups.html", "groups", part=part(some, page, PAGE), of=len(found.groups), q=q, overview=found
    )


@router.api_route("/group", methods=GET)
def group(look: Look, name: str, page: Number = 1) -> HTMLResponse:
    """By a query: groups have names with slashes, and one may be empty."""
    if name not in look.at.by_group:
        why = look.at.groups.not_carried.get(name)
        raise UsageError(
            f"there is no group {name} in {look.at.catalogue.place}",
            f"it was not captured: {why}" if why else "was it another restore point?",
        )
    found = look.at.by_group[name]
    partitions: dict[tuple[str, int], ArchivedPartition] = {
        (topic, p.partition): p
        for topic in {stand.topic for stand in found.offsets}
        if topic in look.at.topics
        for p in look.at.topics[topic].partitions
    }
    shown = part(found.offsets, page, PAGE)
    rows = []
    for stand in shown.some:
        held = partitions.get((stand.topic, stand.partition))
        rows.append((stand, held, strip(held, [(name, stand.offset)]) if held is not None else None))
    return look.page(
        "group.html", "groups", group=found, part=shown, rows=rows, captured_at=look.at.groups.captured_at
    )
