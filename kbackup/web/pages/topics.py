"""Topics, their partitions, and the segments of those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.query.sums import sums_of
from kbackup.web.archive_cache import TopicRow
from kbackup.web.charts.area import records_over_time
from kbackup.web.charts.strip import strip
from kbackup.web.view import GET, Look, Number, matching, part, place

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100

Order = Literal["name", "partitions", "records", "bytes", "stored", "segments", "gaps", "newest", "losses"]
_KEYS: dict[str, Callable[[TopicRow], Any]] = {
    "name": lambda row: 0,
    "partitions": lambda row: -len(row.topic.partitions),
    "records": lambda row: -row.sums.records,
    "bytes": lambda row: -row.sums.bytes,
    "stored": lambda row: -row.sums.stored_bytes,
    "segments": lambda row: -row.sums.segments,
    "gaps": lambda row: -(row.sums.gaps or 0),
    "newest": lambda row: -(row.sums.max_timestamp or -1),
    "losses": lambda row: -row.losses,
}


@router.api_route("/topics", methods=GET)
def topics(look: Look, page: Number = 1, q: str = "", sort: Order = "name") -> HTMLResponse:
    rows = [row for row in look.at.rows if matching(row.name, q)]
    key = _KEYS[sort]
    rows.sort(key=lambda row: (key(row), row.name))
    return look.page(
        "topics.html", "topics", part=part(rows, page, PAGE), of=len(look.at.rows), q=q, sort=sort
    )


@router.api_route("/topics/{name}", methods=GET)
def topic(look: Look, name: str, page: Number = 1) -> HTMLResponse:
    found = look.at.topic(name)
    known = look.at.settings(found)
    positions: dict[str, int] = {}
    lag: dict[str, int] = {}
    for group in look.at.groups.groups:
        for stand in group.offsets:
            if stand.topic == name:
                positions[group.group] = positions.get(group.group, 0) + 1
                lag[group.group] = lag.get(group.group, 0) + stand.lag
    shown = part(found.partitions, page, PAGE)
    return look.page(
        "topic.html",
        "topics",
        topic=found,
        sums=sums_of(found.partitions),
        known=known,
        part=shown,
        rows=[(p, sums_of([p])) for p in shown.some],
        most=max((p.records for p in found.partitions), default=0),
        losses=[(point, loss) for point, loss in look.at.losses if loss.topic == name],
        groups=[(group, positions[group], lag[group]) for group in sorted(positions)],
        chart=records_over_time(found.partitions),
    )


@router.api_route("/topics/{name}/{number}", methods=GET)
def partition(look: Look, name: str, number: int, page: Number = 1) -> HTMLResponse:
    found, held = place(look, name, number)
    stands = [
        (group.group, stand)
        for group in look.at.groups.groups
        for stand in group.offsets
        if (stand.topic, stand.partition) == (name, number)
    ]
    return look.page(
        "partition.html",
        "topics",
        topic=found,
        partition=held,
        sums=sums_of([held]),
        part=part(held.segments, page, PAGE),
        stands=stands,
        strip=strip(held, [(group, stand.offset) for group, stand in stands]),
        losses=[
            (point, loss) for point, loss in look.at.losses if (loss.topic, loss.partition) == (name, number)
        ],
        chart=records_over_time([held]),
    )
