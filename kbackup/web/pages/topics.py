"""The pages of topics, partitions and consumer groups, with their charts."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.query.overview import Growth, PointOverview, added_after, growth_of, sums_of
from kbackup.archive.query.selection import exact_entry
from kbackup.errors import UsageError
from kbackup.types import Incarnation
from kbackup.util.times import ms_of
from kbackup.web.archive_cache import ArchiveSnapshot, TopicRow
from kbackup.web.charts import Area, Strip, area, records_over_time, strip
from kbackup.web.view import GET, Number, PageRequest, Requested, find_partition, list_page, matches_search

LATELY = 7 * 86_400_000
"""Span in ms before the restore point that is shown: growth within it is a column of a table."""


def topic_charts(
    snapshot: ArchiveSnapshot, points: Sequence[PointOverview], topics: Collection[Incarnation]
) -> dict[Incarnation, Area | None]:
    """Return the charts of stored bytes of topics at each restore point up to the snapshot's."""
    if snapshot.archive is None or snapshot.point is None:
        return {}
    growth = growth_of(snapshot.archive, snapshot.point, topics)
    times = [(p.number, ms_of(p.committed_at)) for p in points if p.number <= snapshot.point.number]

    def samples(growth: Growth) -> Iterator[tuple[int, int]]:
        """Yield (time in ms, stored bytes) at each restore point from the first one that has some of them."""
        numbers = [number for number, _ in growth]
        for number, time in times:
            if at := bisect_left(numbers, number + 1):
                yield time, growth[at - 1][1]

    return {topic: area(samples(growth[topic]), "bytes") for topic in topics if topic in growth}


def added_lately(snapshot: ArchiveSnapshot, points: Sequence[PointOverview]) -> dict[Incarnation, int]:
    """Return the stored bytes that topics got within `LATELY` before the restore point of the snapshot."""
    if snapshot.archive is None or snapshot.point is None:
        return {}
    last, since = snapshot.point.number, ms_of(snapshot.point.committed_at) - LATELY
    earlier = [p.number for p in points if p.number <= last and ms_of(p.committed_at) <= since]
    return added_after(snapshot.archive, snapshot.point, max(earlier, default=0))


# Strips of a topic's partitions, with what the catalog knows of lost and expired records.


def topic_strips(
    snapshot: ArchiveSnapshot, topic: ArchivedTopic
) -> Callable[[ArchivedPartition, Iterable[tuple[str, int]]], Strip]:
    """Return what makes the strips of the partitions of a topic, with groups as (name, offset)."""
    states = snapshot.point.topics if snapshot.point is not None else ()
    own = next((state for state in states if state.name == topic.name), None)
    firsts = {p.partition: p.start for p in own.partitions} if own is not None else {}

    def of(partition: ArchivedPartition, groups: Iterable[tuple[str, int]]) -> Strip:
        number, start = partition.partition, partition.start
        # as many offsets as records expired, or more where the manifest still has the first one
        first = max(min(firsts.get(number, start), start - partition.expired), 0)
        lost = snapshot.lost_ranges.get((*topic.key, number), ())
        return strip(partition, groups, lost, (first, start) if first < start else None)

    return of


# The pages of topics, their partitions and the segments of a partition.


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
        "topics.html", "topics", list_page=list_page(rows, page, PAGE), of=len(request.snapshot.rows), q=q, sort=sort
    )


@router.api_route("/topics/{name}", methods=GET)
def topic(request: Requested, name: str, page: Number = 1) -> HTMLResponse:
    shown_topic = request.snapshot.topic(name)
    known = request.snapshot.settings(shown_topic)
    strips = topic_strips(request.snapshot, shown_topic)
    positions: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    groups: list[tuple[str, int, int]] = []
    for group in request.snapshot.groups.groups:
        if ours := [position for position in group.offsets if position.topic == name]:
            groups.append((group.group, len(ours), sum(position.lag for position in ours)))
        for position in ours:
            positions[position.partition].append((group.group, position.offset))
    partitions = list_page(shown_topic.partitions, page, PAGE)
    return request.page(
        "topic.html",
        "topics",
        topic=shown_topic,
        sums=sums_of(shown_topic.partitions),
        known=known,
        uses=request.snapshot.uses_of(name),
        list_page=partitions,
        rows=[(p, sums_of([p]), strips(p, positions[p.partition])) for p in partitions.entries],
        losses=[(point, loss) for point, loss in request.snapshot.losses if loss.topic == name],
        groups=sorted(groups),
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
        strip=topic_strips(request.snapshot, shown_topic)(shown_partition, [(g, p.offset) for g, p in positions]),
        losses=[
            (point, loss) for point, loss in request.snapshot.losses if (loss.topic, loss.partition) == (name, number)
        ],
        chart=records_over_time([shown_partition]),
    )


# The pages of consumer groups and their positions.


GROUPS_PAGE = 100
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
        list_page=list_page(matching, page, GROUPS_PAGE),
        of=len(overview.groups),
        q=q,
        overview=overview,
    )


@router.api_route("/group", methods=GET)
def group(request: Requested, name: str, page: Number = 1) -> HTMLResponse:
    """Show a group. Its name is a parameter: it may have slashes or be empty."""
    if name not in request.snapshot.by_group:
        why = request.snapshot.groups.not_carried.get(name)
        hint = "select another restore point" + (f": it was not captured in this one: {why}" if why else "")
        raise UsageError(f"there is no group {name} in {request.snapshot.catalogue.location}", hint)
    shown = request.snapshot.by_group[name]
    positions = list_page(shown.offsets, page, GROUPS_PAGE)
    known = request.snapshot.topics
    topics = {p.topic: known[p.topic] for p in positions.entries if p.topic in known}
    partitions = {(name, p.partition): p for name, topic in topics.items() for p in topic.partitions}
    strips = {name: topic_strips(request.snapshot, topic) for name, topic in topics.items()}
    rows = []
    for position in positions.entries:
        partition = partitions.get((position.topic, position.partition))
        chart = strips[position.topic](partition, [(name, position.offset)]) if partition else None
        rows.append((position, partition, chart))
    # a restore of the group and its archived topics; none without any
    archived = sorted({each.topic for each in shown.offsets} & {*known})[:TOPICS]
    query = urlencode([("topic", exact_entry(topic)) for topic in archived])
    restore = request.link("restore", group=exact_entry(name)) + f"&{query}" if archived else ""
    return request.page(
        "group.html",
        "groups",
        group=shown,
        list_page=positions,
        rows=rows,
        captured_at=request.snapshot.groups.captured_at,
        chart=_lag_charts(request, [name])[0],
        restore=restore,
    )


@router.api_route("/groups/lag", methods=GET)
def lag(request: Requested, page: Number = 1) -> HTMLResponse:
    """Show the lag of each group over time, the greatest lag first."""
    groups = sorted(request.snapshot.groups.groups, key=lambda group: (-group.lag, group.group))
    shown = list_page(groups, page, CHARTS)
    charts = _lag_charts(request, [group.group for group in shown.entries])
    charted = list(zip(shown.entries, charts, strict=True))
    return request.page("lag.html", "groups", list_page=shown, charts=charted)


class LagChart(NamedTuple):
    """The chart of a group's lag (None for less than two restore points with the group).

    `read` restore points `of` all were read; `damaged` of them could not be."""

    area: Area | None
    read: int
    of: int
    damaged: int


def _lag_charts(request: PageRequest, groups: Sequence[str]) -> list[LagChart]:
    """Return the charts of the lag of groups at a sample of all restore points."""
    archive, points = request.cache.archive(), request.cache.points()
    history = request.cache.lags.history(archive, points) if archive is not None else []
    known = [(at.time, at.lags) for at in history if at.lags is not None]
    counts = len(history), len(points), len(history) - len(known)
    return [LagChart(area((at, lags[group]) for at, lags in known if group in lags), *counts) for group in groups]
