"""The pages of restore points: the timeline, a restore point, growth, differences and the history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.archive.models import Metadata
from kbackup.archive.query.overview import list_points
from kbackup.archive.secrets import without_secrets
from kbackup.errors import UsageError
from kbackup.metadata.entities import ClientQuota, DelegationToken, MetadataPartName, Registration, reason_for
from kbackup.util.times import ms_of, time_text
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
    metadata = without_secrets(archived)
    tables = []
    for title, kind, columns, row in _TABLES:
        entities = getattr(metadata, kind)
        rows = None if entities is None else list(map(row, entities))
        why = reason_for(kind, archived.not_carried) or ""
        tables.append(SettingsTable(title, tuple(columns.split(",")), rows, why))
    return tables


def _quota(quota: ClientQuota) -> tuple[Any, ...]:
    names = {str(kind): "default" if name is None else name for kind, name in quota.entity.items()}
    cells = (names.get(kind, "-") for kind in ("user", "client-id", "ip"))
    return (*cells, ", ".join(f"{name}={value:.15g}" for name, value in quota.quotas.items()))


def _token(token: DelegationToken) -> tuple[Any, ...]:
    renewers = ", ".join(token.renewers) or "-"
    return token.id, token.owner, token.requester, renewers, time_text(token.expires_at)


def _registration(node: Registration) -> tuple[Any, ...]:
    listeners = ", ".join(f"{each.name or each.security_protocol} {each.host}:{each.port}" for each in node.listeners)
    state = {True: "alive", False: "down", None: "unknown"}[node.alive]
    return node.id, node.role, listeners or "-", node.rack or "-", state


_TABLES: tuple[tuple[str, MetadataPartName, str, Callable[[Any], tuple[Any, ...]]], ...] = (
    (
        "ACLs",
        "acls",
        "permission,principal,host,operation,resource,name,pattern",
        lambda a: (a.permission, a.principal, a.host, a.operation, a.resource, a.name, a.pattern),
    ),
    ("SCRAM users", "scram_users", "user,mechanism,iterations", lambda u: (u.user, u.mechanism, u.iterations)),
    (
        "Configs of brokers",
        "broker_configs",
        "broker,name,value",
        lambda c: ("all" if c.broker is None else c.broker, c.name, c.value),
    ),
    ("Configs of groups", "group_configs", "group,name,value", lambda c: (c.group, c.name, c.value)),
    ("Client quotas", "client_quotas", "user,client id,ip,quotas", _quota),
    ("Delegation tokens", "delegation_tokens", "token,owner,requester,renewers,expires", _token),
    (
        "Client metrics",
        "client_metrics",
        "subscription,configs",
        lambda m: (m.name, ", ".join(f"{name}={value}" for name, value in m.configs.items())),
    ),
    ("Features", "features", "feature,level", lambda f: (f.name, f.level)),
    ("Brokers and controllers", "registrations", "id,role,listeners,rack,state", _registration),
)


# The timeline, a restore point, and growth.


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
    expired = request.cache.expired()
    return request.page(
        "points.html",
        "points",
        points=points,
        list_page=list_page(points[::-1], page, PAGE),
        before={later.number: earlier for earlier, later in pairwise(points)},
        timeline=timeline(points, expired) if points else None,
        expired=len(expired),
        age=ms_of(points[-1].committed_at) if points else None,
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
    sizes = {ref.key: ref.size for ref in snapshot.point.documents}
    documents = snapshot.archive.find_point(snapshot.point.number).documents
    return shown.page(
        "point.html",
        "points",
        snapshot=snapshot,
        of=snapshot.point,
        row=points[at],
        damage=[loss for _, loss in snapshot.losses if loss.kind == "damaged"],
        documents=[(key, sizes.get(key)) for key in documents],
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
        expired=len(request.cache.expired()),
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
    if a.strip() or earlier:
        before = archive.restore_point(a.strip() or str(earlier[-1])).number
        views = (archive.restore_point(number) for number in (before, after))
        differences = diff(*(point_view(archive, view, Selection(), Selection()) for view in views))
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
    last = archive.state.number if upto is None else min(upto, archive.state.number)
    rows = history(archive, HISTORY_PAGE + 1, last)
    return request.page(
        "history.html",
        "history",
        rows=rows[-HISTORY_PAGE:][::-1],
        earlier=rows[-HISTORY_PAGE - 1].catalog if len(rows) > HISTORY_PAGE else None,
        newest=last == archive.state.number,
    )
