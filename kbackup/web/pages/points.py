"""The pages of restore points: the timeline, a restore point, growth, differences and the history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.catalog.points import list_points
from kbackup.archive.models import Metadata
from kbackup.archive.secrets import without_secrets
from kbackup.errors import UsageError
from kbackup.metadata.entities import (
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    MetadataPartName,
    Registration,
    reason_for,
)
from kbackup.util.times import ms_of, time_text
from kbackup.web.archive_cache import TopicRow
from kbackup.web.charts import Area, Unit, area, running_totals, timeline
from kbackup.web.pages.topics import added_lately, topic_charts
from kbackup.web.view import GET, CatalogNumber, Number, Requested, list_page


class SettingsTable(NamedTuple):
    """A table of settings. `rows` is None if nothing was captured, for the reason `why`."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] | None
    why: str


def settings_tables(archived: Metadata) -> list[SettingsTable]:
    """Return a table for each kind of settings, in the order of the page."""
    # Whoever may see the page must not get what logs in: an encrypted archive holds the keys of SCRAM users.
    metadata = without_secrets(archived)
    tables: list[SettingsTable] = []
    for layout in _TABLES:
        entities = getattr(metadata, layout.part)
        rows: list[tuple[Any, ...]] | None = None
        if entities is not None:
            rows = [layout.row(entity) for entity in entities]
        why = reason_for(layout.part, archived.not_carried) or ""
        tables.append(SettingsTable(layout.title, tuple(layout.columns), rows, why))
    return tables


class _TableLayout(NamedTuple):
    """How a page shows a part of the metadata: each column by its heading, with what its cells show of an entity: the
    name of an attribute, or a function."""

    title: str
    part: MetadataPartName
    columns: dict[str, str | Callable[[Any], Any]]

    def row(self, entity: object) -> tuple[Any, ...]:
        cells: list[Any] = []
        for shown in self.columns.values():
            cell = getattr(entity, shown) if isinstance(shown, str) else shown(entity)
            cells.append(cell)
        return tuple(cells)


def _broker(config: BrokerConfig) -> int | str:
    return "all" if config.broker is None else config.broker


def _named_in(kind: Literal["user", "client-id", "ip"]) -> Callable[[ClientQuota], str]:
    """Return a function that shows the user, the client or the address that a quota is for."""

    def shown(quota: ClientQuota) -> str:
        # None is Kafka's default entity, which stands for all that have no quota of their own.
        name = quota.entity.get(kind, "-")
        return "default" if name is None else name

    return shown


def _quotas(quota: ClientQuota) -> str:
    return ", ".join(f"{name}={value:.15g}" for name, value in quota.quotas.items())


def _renewers(token: DelegationToken) -> str:
    return ", ".join(token.renewers) or "-"


def _expiry(token: DelegationToken) -> str:
    return time_text(token.expires_at)


def _configs(metrics: ClientMetrics) -> str:
    return ", ".join(f"{name}={value}" for name, value in metrics.configs.items())


def _listeners(node: Registration) -> str:
    listeners = []
    for each in node.listeners:
        listeners.append(f"{each.name or each.security_protocol} {each.host}:{each.port}")
    return ", ".join(listeners) or "-"


def _rack(node: Registration) -> str:
    return node.rack or "-"


def _state(node: Registration) -> str:
    # None: where the metadata was read from, nobody says whether the node is alive.
    return {True: "alive", False: "down", None: "unknown"}[node.alive]


_ACLS = _TableLayout(
    "ACLs",
    "acls",
    {
        "permission": "permission",
        "principal": "principal",
        "host": "host",
        "operation": "operation",
        "resource": "resource",
        "name": "name",
        "pattern": "pattern",
    },
)
_SCRAM_USERS = _TableLayout(
    "SCRAM users", "scram_users", {"user": "user", "mechanism": "mechanism", "iterations": "iterations"}
)
_BROKER_CONFIGS = _TableLayout(
    "Configs of brokers", "broker_configs", {"broker": _broker, "name": "name", "value": "value"}
)
_GROUP_CONFIGS = _TableLayout(
    "Configs of groups", "group_configs", {"group": "group", "name": "name", "value": "value"}
)
_QUOTAS = _TableLayout(
    "Client quotas",
    "client_quotas",
    {"user": _named_in("user"), "client id": _named_in("client-id"), "ip": _named_in("ip"), "quotas": _quotas},
)
_TOKENS = _TableLayout(
    "Delegation tokens",
    "delegation_tokens",
    {"token": "id", "owner": "owner", "requester": "requester", "renewers": _renewers, "expires": _expiry},
)
_CLIENT_METRICS = _TableLayout("Client metrics", "client_metrics", {"subscription": "name", "configs": _configs})
_FEATURES = _TableLayout("Features", "features", {"feature": "name", "level": "level"})
_REGISTRATIONS = _TableLayout(
    "Brokers and controllers",
    "registrations",
    {"id": "id", "role": "role", "listeners": _listeners, "rack": _rack, "state": _state},
)

_TABLES = (
    _ACLS,
    _SCRAM_USERS,
    _BROKER_CONFIGS,
    _GROUP_CONFIGS,
    _QUOTAS,
    _TOKENS,
    _CLIENT_METRICS,
    _FEATURES,
    _REGISTRATIONS,
)
"""The tables of the page of a restore point, in its order."""


# The timeline, a restore point, and growth.


router = APIRouter(default_response_class=HTMLResponse)

PAGE = 50
CHARTS = 6
"""Number of topics with a chart of their own."""
LARGEST = 30
"""Number of topics with a row of their own in the table of growth; one row sums up the others."""
MOST = 200
"""Number of rows of a list without pages."""


@router.api_route("/", methods=GET)
def home(request: Requested, page: Number = 1) -> HTMLResponse:
    if request.cache.java:
        return request.page("java.html", "points", snapshot=request.snapshot, most=MOST)
    points = request.cache.points()
    expired = request.cache.expired()
    newest_first = points[::-1]
    before = {later.number: earlier for earlier, later in pairwise(points)}
    chart, age, snapshot = None, None, None  # a new archive has no restore point
    if points:
        chart = timeline(points, expired)
        age = ms_of(points[-1].committed_at)
        snapshot = request.snapshot
    return request.page(
        "points.html",
        "points",
        points=points,
        list_page=list_page(newest_first, page, PAGE),
        before=before,
        timeline=chart,
        expired=len(expired),
        age=age,
        snapshot=snapshot,
        most=5,
    )


@router.api_route("/points/{number}", methods=GET)
def point(request: Requested, number: str) -> HTMLResponse:
    shown = replace(request, point_name=number)
    snapshot = shown.snapshot
    if snapshot.point is None or snapshot.archive is None:
        raise UsageError("a folder of the Java tool has no restore points", "see its topics")
    points = list_points(snapshot.archive.state)  # a later list may not have this restore point
    numbers = [each.number for each in points]
    at = numbers.index(snapshot.point.number)
    metadata = snapshot.metadata()
    sizes = {ref.key: ref.size for ref in snapshot.point.documents}
    keys = snapshot.archive.find_point(snapshot.point.number).documents
    # The manifest is among the keys, and has no reference with a size: it would have to name itself.
    documents = [(key, sizes.get(key)) for key in keys]
    damage = [loss for _, loss in snapshot.losses if loss.kind == "damaged"]
    settings: list[SettingsTable] = []
    if metadata is not None:
        settings = settings_tables(metadata)
    # At index -1 there would be the newest one.
    earlier = points[at - 1] if at > 0 else None
    later = points[at + 1] if at + 1 < len(points) else None
    deleted_topics = [topic for topic in snapshot.point.topics if topic.state == "deleted"]
    erased_of_added = sum(row.records for row in snapshot.archive.state.rewrites if row.point == snapshot.number)
    return shown.page(
        "point.html",
        "points",
        snapshot=snapshot,
        of=snapshot.point,
        row=points[at],
        damage=damage,
        documents=documents,
        metadata=metadata,
        settings=settings,
        earlier=earlier,
        later=later,
        deleted=len(deleted_topics),
        erased=snapshot.erased(snapshot.topics.values()),
        erased_of_added=erased_of_added,
        most=MOST,
    )


@router.api_route("/growth", methods=GET)
def growth(request: Requested) -> HTMLResponse:
    points = request.cache.points()

    def grown(name: str, unit: Unit = "count") -> Area | None:
        """Return the chart of what the restore points up to a time added together."""
        samples = [(ms_of(point.committed_at), getattr(point, name)) for point in points]
        return area(running_totals(samples), unit)

    durations: list[tuple[int, int]] = []
    for point in points:
        committed_at = ms_of(point.committed_at)
        durations.append((committed_at, committed_at - ms_of(point.started_at)))
    rows = sorted(request.snapshot.rows, key=_largest_first)
    largest, rest = rows[:LARGEST], rows[LARGEST:]
    charted = [row.topic.key for row in rows[:CHARTS]]
    by_topic = topic_charts(request.snapshot, points, charted)
    charts: list[tuple[TopicRow, Area]] = []
    for row in rows:
        chart = by_topic.get(row.topic.key)
        if chart is not None:
            charts.append((row, chart))
    added = added_lately(request.snapshot, points)
    lately = {row.name: added.get(row.topic.key, 0) for row in largest}
    lately_others = sum(added.get(row.topic.key, 0) for row in rest)
    return request.page(
        "growth.html",
        "growth",
        expired=len(request.cache.expired()),
        stored=grown("stored_bytes", "bytes"),
        records=grown("records"),
        segments=grown("segments"),
        took=area(durations, "ms"),
        largest=largest,
        rest=rest,
        sums=request.snapshot.sums,
        charts=charts,
        lately=lately,
        lately_others=lately_others,
    )


def _largest_first(row: TopicRow) -> tuple[int, str]:
    return -row.sums.stored_bytes, row.name


# The page of differences between two restore points, as in `kbackup diff`.


MOST_CHANGES = 500
"""Rows of each table."""


@router.api_route("/diff", methods=GET)
def changes(request: Requested, a: str = "", b: str = "") -> HTMLResponse:
    """Compare `a` with `b`: by default the newest restore point with the one before."""
    from kbackup.archive.query.selection import Selection
    from kbackup.jobs.diff import diff, point_view

    archive = request.snapshot.archive
    if archive is None:
        raise UsageError(
            "a folder of the Java tool has no restore points", "use 'kbackup adopt' to make an archive of it"
        )
    numbers = [point.number for point in request.cache.points()]
    after = request.cache.snapshot(b.strip() or "latest").number or 0
    earlier = [number for number in numbers if number < after]
    before, differences = None, None
    # The first restore point has none before it: then the page has the form alone.
    if a.strip() or earlier:
        before = archive.restore_point(a.strip() or str(earlier[-1])).number
        everything = Selection()
        a_view = point_view(archive, archive.restore_point(before), everything, everything)
        b_view = point_view(archive, archive.restore_point(after), everything, everything)
        differences = diff(a_view, b_view)
    return request.page("diff.html", "diff", diff=differences, a=before, b=after, numbers=numbers, most=MOST_CHANGES)


# The page of the archive's history, as in `kbackup log`.


HISTORY_PAGE = 100
"""Number of catalogs that a page reads."""


@router.api_route("/history", methods=GET)
def history_page(request: Requested, upto: CatalogNumber = None) -> HTMLResponse:
    """Show catalogs up to number `upto`, the newest first, whatever restore point the other pages show."""
    from kbackup.jobs.points import history

    archive = request.cache.archive()
    if archive is None:
        raise UsageError("a folder of the Java tool has no history", "make an archive of it: 'kbackup adopt'")
    newest = archive.state.number
    last = newest if upto is None else min(upto, newest)
    rows = history(archive, HISTORY_PAGE + 1, last)
    # One row more than the page shows was read: where it is, a page of earlier rows begins.
    earlier: int | None = None
    if len(rows) > HISTORY_PAGE:
        earlier = rows[-HISTORY_PAGE - 1].catalog
    newest_first = rows[-HISTORY_PAGE:][::-1]
    return request.page("history.html", "history", rows=newest_first, earlier=earlier, newest=last == newest)
