"""The pages of topics, their partitions and the segments of a partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.query.sums import sums_of
from kbackup.web.charts.area import records_over_time
from kbackup.web.growth import topic_charts
from kbackup.web.snapshot import TopicRow
from kbackup.web.strips import TopicStrips
from kbackup.web.view import GET, Number, Requested, find_partition, list_page, matches_search

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
def topics(request: Requested, page: Number = 1, q: str = "", sort: Order = "name") -> HTMLResponse:
    rows = [row for row in request.snapshot.rows if matches_search(row.name, q)]
    key = _KEYS[sort]
    rows.sort(key=lambda row: (key(row), row.name))
    return request.page(
        "topics.html",
        "topics",
        list_page=list_page(rows, page, PAGE),
        of=len(request.snapshot.rows),
        q=q,
        sort=sort,
    )


@router.api_route("/topics/{name}", methods=GET)
def topic(request: Requested, name: str, page: Number = 1) -> HTMLResponse:
    shown_topic = request.snapshot.topic(name)
    known = request.snapshot.settings(shown_topic)
    strips = TopicStrips(request.snapshot, shown_topic)
    positions: dict[int, list[tuple[str, int]]] = {}
    position_counts: dict[str, int] = {}
    lag: dict[str, int] = {}
    for group in request.snapshot.groups.groups:
        for position in group.offsets:
            if position.topic == name:
                position_counts[group.group] = position_counts.get(group.group, 0) + 1
                lag[group.group] = lag.get(group.group, 0) + position.lag
                positions.setdefault(position.partition, []).append((group.group, position.offset))
    partitions = list_page(shown_topic.partitions, page, PAGE)
    return request.page(
        "topic.html",
        "topics",
        topic=shown_topic,
        sums=sums_of(shown_topic.partitions),
        known=known,
        list_page=partitions,
        rows=[(p, sums_of([p]), strips.of(p, positions.get(p.partition, ()))) for p in partitions.entries],
        losses=[(point, loss) for point, loss in request.snapshot.losses if loss.topic == name],
        groups=[(group, position_counts[group], lag[group]) for group in sorted(position_counts)],
        chart=records_over_time(shown_topic.partitions),
        growth=topic_charts(request.snapshot, request.cache.points(), [shown_topic.key]).get(shown_topic.key),
    )


@router.api_route("/topics/{name}/{number}", methods=GET)
def partition(request: Requested, name: str, number: int, page: Number = 1) -> HTMLResponse:
    shown_topic, shown_partition = find_partition(request, name, number)
    positions = [
        (group.group, position)
        for group in request.snapshot.groups.groups
        for position in group.offsets
        if (position.topic, position.partition) == (name, number)
    ]
    return request.page(
        "partition.html",
        "topics",
        topic=shown_topic,
        partition=shown_partition,
        sums=sums_of([shown_partition]),
        list_page=list_page(shown_partition.segments, page, PAGE),
        positions=positions,
        strip=TopicStrips(request.snapshot, shown_topic).of(
            shown_partition, [(group, position.offset) for group, position in positions]
        ),
        losses=[
            (point, loss)
            for point, loss in request.snapshot.losses
            if (loss.topic, loss.partition) == (name, number)
        ],
        chart=records_over_time([shown_partition]),
    )
