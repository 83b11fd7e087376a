"""The pages of consumer groups and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.group_overview import GroupOverview
from kbackup.archive.query.selection import exact_entry
from kbackup.errors import UsageError
from kbackup.web.lag import LagChart, lag_chart
from kbackup.web.strips import TopicStrips
from kbackup.web.view import GET, Number, PageRequest, Requested, list_page, matches_search

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100
CHARTS = 12
"""Number of charts of a page."""
TOPICS = 50
"""Number of topics that are restored with a group, at most."""


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
    positions = list_page(shown.offsets, page, PAGE)
    topics = {name: request.snapshot.topics.get(name) for name in {p.topic for p in positions.entries}}
    partitions: dict[tuple[str, int], ArchivedPartition] = {
        (name, p.partition): p for name, topic in topics.items() if topic for p in topic.partitions
    }
    strips = {name: TopicStrips(request.snapshot, topic) for name, topic in topics.items() if topic}
    rows = []
    for position in positions.entries:
        partition = partitions.get((position.topic, position.partition))
        chart = strips[position.topic].of(partition, [(name, position.offset)]) if partition else None
        rows.append((position, partition, chart))
    return request.page(
        "group.html",
        "groups",
        group=shown,
        list_page=positions,
        rows=rows,
        captured_at=request.snapshot.groups.captured_at,
        chart=_lag_charts(request, [name])[0],
        restore=_restore_link(request, shown),
    )


@router.api_route("/groups/lag", methods=GET)
def lag(request: Requested, page: Number = 1) -> HTMLResponse:
    """Show the lag of each group over time, the greatest lag first."""
    groups = sorted(request.snapshot.groups.groups, key=lambda group: (-group.lag, group.group))
    shown = list_page(groups, page, CHARTS)
    charts = _lag_charts(request, [group.group for group in shown.entries])
    charted = list(zip(shown.entries, charts, strict=True))
    return request.page("lag.html", "groups", list_page=shown, charts=charted)


def _lag_charts(request: PageRequest, groups: Sequence[str]) -> list[LagChart]:
    """Return the charts of the lag of groups at a sample of all restore points."""
    archive, points = request.cache.archive(), request.cache.points()
    history = request.cache.lags.history(archive, points) if archive is not None else []
    return [lag_chart(history, group, len(points)) for group in groups]


def _restore_link(request: PageRequest, group: GroupOverview) -> str:
    """Return the address of the page that plans a restore of a group and its archived topics; '' without any."""
    topics = sorted({each.topic for each in group.offsets} & {*request.snapshot.topics})
    query = [("topic", exact_entry(topic)) for topic in topics[:TOPICS]]
    return request.link("restore", group=exact_entry(group.group)) + f"&{urlencode(query)}" if query else ""
