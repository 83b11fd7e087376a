"""The pages of topics, partitions and consumer groups, with their charts."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.catalog.points import PointOverview
from kbackup.archive.models import Loss
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.query.groups import GroupOverview, PointLags
from kbackup.archive.query.overview import Growth, Sums, added_after, growth_of, sums_of
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
    times: list[tuple[int, int]] = []
    for point in points:
        if point.number <= snapshot.point.number:
            times.append((point.number, ms_of(point.committed_at)))

    def samples(growth: Growth) -> Iterator[tuple[int, int]]:
        """Yield (time in ms, stored bytes) at each restore point from the first one that has some of them."""
        numbers = [number for number, _ in growth]
        for number, time in times:
            # A topic has an entry only for restore points that changed its size: the last one up to `number` holds.
            up_to_here = bisect_left(numbers, number + 1)
            if up_to_here > 0:
                _, stored_bytes = growth[up_to_here - 1]
                yield time, stored_bytes

    charts = {}
    for topic in topics:
        if topic in growth:
            charts[topic] = area(samples(growth[topic]), "bytes")
    return charts


def added_lately(snapshot: ArchiveSnapshot, points: Sequence[PointOverview]) -> dict[Incarnation, int]:
    """Return the stored bytes that topics got within `LATELY` before the restore point of the snapshot."""
    if snapshot.archive is None or snapshot.point is None:
        return {}
    last = snapshot.point.number
    since = ms_of(snapshot.point.committed_at) - LATELY
    # Without a restore point that old, everything was added lately.
    newest_earlier = 0
    for point in points:
        if point.number <= last and ms_of(point.committed_at) <= since:
            newest_earlier = max(newest_earlier, point.number)
    return added_after(snapshot.archive, snapshot.point, newest_earlier)


# Strips of a topic's partitions, with what the catalog knows of lost and expired records.


def topic_strips(
    snapshot: ArchiveSnapshot, topic: ArchivedTopic
) -> Callable[[ArchivedPartition, Iterable[tuple[str, int]]], Strip]:
    """Return a function that makes the strips of the partitions of a topic, with groups as (name, offset)."""
    firsts: dict[int, int] = {}
    if snapshot.point is not None:
        for state in snapshot.point.topics:
            if state.name == topic.name:
                firsts = {partition.partition: partition.start for partition in state.partitions}
                break

    def strip_of(partition: ArchivedPartition, groups: Iterable[tuple[str, int]]) -> Strip:
        number = partition.partition
        start = partition.start
        # As many offsets are expired as records expired, or more if the manifest still has the first one.
        first_once = min(firsts.get(number, start), start - partition.expired)
        first = max(first_once, 0)
        expired = (first, start) if first < start else None
        lost = snapshot.lost_ranges.get((*topic.key, number), ())
        return strip(partition, groups, lost, expired)

    return strip_of


# The pages of topics, their partitions and the segments of a partition.


router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100

Order = Literal["name", "partitions", "records", "bytes", "stored", "segments", "gaps", "newest", "losses"]


def _column(row: TopicRow, order: Order) -> int:
    """Return the number by which the table of topics is sorted, the greatest first."""
    match order:
        case "name":
            return 0
        case "partitions":
            return len(row.topic.partitions)
        case "records":
            return row.sums.records
        case "bytes":
            return row.sums.bytes
        case "stored":
            return row.sums.stored_bytes
        case "segments":
            return row.sums.segments
        case "gaps":
            return row.sums.gaps or 0
        case "newest":
            return row.sums.max_timestamp or -1
        case "losses":
            return row.losses


@router.api_route("/topics", methods=GET)
def topics(request: Requested, page: Number = 1, q: str = "", sort: Order = "name") -> HTMLResponse:
    def greatest_first(row: TopicRow) -> int:
        return -_column(row, sort)

    rows = [row for row in request.snapshot.rows if matches_search(row.name, q)]
    # Rows of equal values are in order of their names: sorting keeps the order of equal rows.
    rows.sort(key=_name)
    rows.sort(key=greatest_first)
    shown = list_page(rows, page, PAGE)
    return request.page("topics.html", "topics", list_page=shown, of=len(request.snapshot.rows), q=q, sort=sort)


def _name(row: TopicRow) -> str:
    return row.name


@router.api_route("/topics/{name}", methods=GET)
def topic(request: Requested, name: str, page: Number = 1) -> HTMLResponse:
    shown_topic = request.snapshot.topic(name)
    known = request.snapshot.settings(shown_topic)
    strips = topic_strips(request.snapshot, shown_topic)
    positions: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    groups: list[tuple[str, int, int]] = []
    for group in request.snapshot.groups.groups:
        of_topic = [position for position in group.offsets if position.topic == name]
        if not of_topic:
            continue
        total_lag = sum(position.lag for position in of_topic)
        groups.append((group.group, len(of_topic), total_lag))
        for position in of_topic:
            positions[position.partition].append((group.group, position.offset))
    # Sums and strips of the page's partitions alone: a topic may have thousands.
    partitions = list_page(shown_topic.partitions, page, PAGE)
    rows: list[tuple[ArchivedPartition, Sums, Strip]] = []
    for partition in partitions.entries:
        strip_of_partition = strips(partition, positions[partition.partition])
        rows.append((partition, sums_of([partition]), strip_of_partition))
    losses: list[tuple[int, Loss]] = []
    for point, loss in request.snapshot.losses:
        if loss.topic == name:
            losses.append((point, loss))
    growth = topic_charts(request.snapshot, request.cache.points(), [shown_topic.key])
    return request.page(
        "topic.html",
        "topics",
        topic=shown_topic,
        sums=sums_of(shown_topic.partitions),
        erased=request.snapshot.erased([shown_topic]),
        known=known,
        uses=request.snapshot.uses_of(name),
        list_page=partitions,
        rows=rows,
        losses=losses,
        groups=sorted(groups),
        chart=records_over_time(shown_topic.partitions),
        growth=growth.get(shown_topic.key),
    )


@router.api_route("/topics/{name}/{number}", methods=GET)
def partition(request: Requested, name: str, number: int, page: Number = 1) -> HTMLResponse:
    shown_topic, shown_partition = find_partition(request, name, number)
    positions = []
    for group in request.snapshot.groups.groups:
        for position in group.offsets:
            if (position.topic, position.partition) == (name, number):
                positions.append((group.group, position))
    losses = []
    for point, loss in request.snapshot.losses:
        if (loss.topic, loss.partition) == (name, number):
            losses.append((point, loss))
    strip_of = topic_strips(request.snapshot, shown_topic)
    offsets = [(group_name, position.offset) for group_name, position in positions]
    return request.page(
        "partition.html",
        "topics",
        topic=shown_topic,
        partition=shown_partition,
        sums=sums_of([shown_partition]),
        erased=request.snapshot.erased_of(shown_topic, shown_partition),
        list_page=list_page(shown_partition.segments, page, PAGE),
        positions=positions,
        strip=strip_of(shown_partition, offsets),
        losses=losses,
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
        hint = "select another restore point"
        why = request.snapshot.groups.not_carried.get(name)
        if why:
            hint += f": it was not captured in this one: {why}"
        raise UsageError(f"there is no group {name} in {request.snapshot.catalogue.location}", hint)
    shown = request.snapshot.by_group[name]
    positions = list_page(shown.offsets, page, GROUPS_PAGE)
    known = request.snapshot.topics
    # A group may have offsets of topics that are not archived: those have no strip.
    topics: dict[str, ArchivedTopic] = {}
    for position in positions.entries:
        if position.topic in known:
            topics[position.topic] = known[position.topic]
    partitions = {}
    strips = {}
    for topic in topics.values():
        # The strips of a topic share what is looked up once for all its partitions.
        strips[topic.name] = topic_strips(request.snapshot, topic)
        for partition in topic.partitions:
            partitions[topic.name, partition.partition] = partition
    rows = []
    for position in positions.entries:
        found = partitions.get((position.topic, position.partition))
        chart: Strip | None = None
        if found is not None:
            strip_of = strips[position.topic]
            chart = strip_of(found, [(name, position.offset)])
        rows.append((position, found, chart))
    (lag_chart,) = _lag_charts(request, [name])
    return request.page(
        "group.html",
        "groups",
        group=shown,
        list_page=positions,
        rows=rows,
        captured_at=request.snapshot.groups.captured_at,
        chart=lag_chart,
        restore=_restore_address(request, shown),
    )


def _restore_address(request: PageRequest, group: GroupOverview) -> str:
    """Return the address of the page that plans a restore of a group and its topics; '' if none of them is archived."""
    topics = {position.topic for position in group.offsets}
    archived = sorted(topics & request.snapshot.topics.keys())
    if not archived:
        return ""
    selected = [("topic", exact_entry(topic)) for topic in archived[:TOPICS]]
    address = request.link("restore", group=exact_entry(group.group))
    return f"{address}&{urlencode(selected)}"


@router.api_route("/groups/lag", methods=GET)
def lag(request: Requested, page: Number = 1) -> HTMLResponse:
    """Show the lag of each group over time, the greatest lag first."""
    groups = sorted(request.snapshot.groups.groups, key=_greatest_lag_first)
    shown = list_page(groups, page, CHARTS)
    charts = _lag_charts(request, [group.group for group in shown.entries])
    charted = list(zip(shown.entries, charts, strict=True))
    return request.page("lag.html", "groups", list_page=shown, charts=charted)


def _greatest_lag_first(group: GroupOverview) -> tuple[int, str]:
    return -group.lag, group.group


class LagChart(NamedTuple):
    """The chart of a group's lag; `area` is None if less than two restore points have the group.

    The chart is of a sample of `read` restore points `of` all, of which `damaged` ones could not be read."""

    area: Area | None
    read: int
    of: int
    damaged: int


def _lag_charts(request: PageRequest, groups: Sequence[str]) -> list[LagChart]:
    """Return the charts of the lag of groups at a sample of all restore points."""
    archive = request.cache.archive()
    points = request.cache.points()
    history: Sequence[PointLags] = []  # a folder of the Java tool has none
    if archive is not None:
        history = request.cache.lags.history(archive, points)
    known: list[tuple[int, dict[str, int]]] = []
    for at in history:
        if at.lags is not None:
            known.append((at.time, at.lags))
    # A chart with gaps that nobody explains would look as if the group had not been there.
    damaged = len(history) - len(known)
    charts: list[LagChart] = []
    for group in groups:
        samples: list[tuple[int, int]] = []
        for time, lags in known:
            if group in lags:
                samples.append((time, lags[group]))
        chart = area(samples)
        charts.append(LagChart(chart, len(history), len(points), damaged))
    return charts
