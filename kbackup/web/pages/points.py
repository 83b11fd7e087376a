"""The pages of restore points: the timeline, a restore point, and growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.models import Manifest
from kbackup.archive.query.points import PointOverview, list_points
from kbackup.archive.reader import Archive
from kbackup.errors import UsageError
from kbackup.util.times import ms_of
from kbackup.web.charts.area import Area, Unit, area, running_totals
from kbackup.web.charts.timeline import timeline
from kbackup.web.growth import added_lately, topic_charts
from kbackup.web.pages.settings import settings_tables
from kbackup.web.view import GET, Number, Requested, list_page

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 50
CHARTS = 6
"""Number of topics with a chart of their own."""
MOST = 200
"""Number of rows of a list without pages."""


@router.api_route("/", methods=GET)
def home(request: Requested, page: Number = 1) -> HTMLResponse:
    if request.cache.java:
        return request.page("java.html", "points", snapshot=request.snapshot, most=MOST)
    points = request.cache.points()
    let_go = request.cache.let_go()
    return request.page(
        "points.html",
        "points",
        points=points,
        list_page=list_page(points[::-1], page, PAGE),
        before={later.number: earlier for earlier, later in pairwise(points)},
        timeline=timeline(points, let_go) if points else None,
        let_go=len(let_go),
        age=_age(points),
        snapshot=request.snapshot if points else None,
        most=5,
    )


@router.api_route("/points/{number}", methods=GET)
def point(request: Requested, number: str) -> HTMLResponse:
    shown = replace(request, point_name=number)
    snapshot = shown.snapshot
    if snapshot.point is None or snapshot.archive is None:
        raise UsageError("a folder of the Java tool has no restore points", "see its topics")
    points = list_points(snapshot.archive)  # a later list may not have this restore point
    at = [p.number for p in points].index(snapshot.point.number)
    metadata = snapshot.metadata()
    return shown.page(
        "point.html",
        "points",
        snapshot=snapshot,
        of=snapshot.point,
        row=points[at],
        damage=[loss for _, loss in snapshot.losses if loss.kind == "damaged"],
        documents=_documents(snapshot.archive, snapshot.point),
        metadata=metadata,
        settings=settings_tables(metadata) if metadata is not None else [],
        earlier=points[at - 1] if at else None,
        later=points[at + 1] if at + 1 < len(points) else None,
        deleted=sum(t.state == "deleted" for t in snapshot.point.topics),
        most=MOST,
    )


@router.api_route("/growth", methods=GET)
def growth(request: Requested) -> HTMLResponse:
    points = request.cache.points()

    def grown(name: str, unit: Unit = "count") -> Area | None:
        samples = ((ms_of(p.committed_at), getattr(p, name)) for p in points)
        return area(running_totals(samples), unit)

    took = [(ms_of(p.committed_at), ms_of(p.committed_at) - ms_of(p.started_at)) for p in points]
    rows = sorted(request.snapshot.rows, key=lambda row: (-row.sums.stored_bytes, row.name))
    by_topic = topic_charts(request.snapshot, points, [row.topic.key for row in rows[:CHARTS]])
    lately = added_lately(request.snapshot, points)
    return request.page(
        "growth.html",
        "growth",
        let_go=len(request.cache.let_go()),
        stored=grown("stored_bytes", "bytes"),
        records=grown("records"),
        segments=grown("segments"),
        took=area(took, "ms"),
        largest=rows[:30],
        rest=rows[30:],
        sums=request.snapshot.sums,
        charts=[(row, chart) for row in rows if (chart := by_topic.get(row.topic.key)) is not None],
        lately={row.name: lately.get(row.topic.key, 0) for row in rows[:30]},
        lately_others=sum(lately.get(row.topic.key, 0) for row in rows[30:]),
    )


def _age(points: Sequence[PointOverview]) -> int | None:
    return ms_of(points[-1].committed_at) if points else None


def _documents(archive: Archive, manifest: Manifest) -> list[tuple[str, int | None]]:
    """Return the documents that a restore point needs: keys, and sizes if its manifest has them."""
    sizes = {ref.key: ref.size for c in manifest.captures for ref in (c.groups, c.metadata)}
    row = archive.find_point(manifest.number)
    return [(key, sizes.get(key)) for key in row.documents]
