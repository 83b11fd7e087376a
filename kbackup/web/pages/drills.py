"""The page of drills and verifications, and the page that each drill stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.errors import CorruptError, NotFoundError, UsageError
from kbackup.store.base import Store
from kbackup.web.guard import STORED_POLICY
from kbackup.web.view import GET, Number, Requested, list_page

if TYPE_CHECKING:
    from kbackup.jobs.drill.report import DrillReport
    from kbackup.jobs.verify.report import Verification

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 20
"""Number of reports that a page reads."""
MOST = 5
"""Number of findings of a drill or a verification."""
_THREADS = 4

T = TypeVar("T")


@router.api_route("/drills", methods=GET)
def drills(request: Requested, page: Number = 1) -> HTMLResponse:
    """Show the stored drills, the newest first, whatever restore point the other pages show."""
    from kbackup.jobs.drill.stored import list_drills

    state = request.cache.state
    stored = list_page(list_drills(state), page, PAGE)
    reports = _read_all(stored.entries, lambda drill: _report(state, drill.drill_id))
    listed = [entry.key for entry in request.cache.store.list(layout.VERIFICATIONS)]
    keys = sorted((key for key in listed if layout.parse_verification_key(key) is not None), reverse=True)
    records = _read_all(keys[:PAGE], lambda key: _verification(request.cache.store, key))
    points = {point.number for point in request.cache.points()}
    return request.page(
        "drills.html",
        "drills",
        list_page=stored,
        rows=list(zip(stored.entries, reports, strict=True)),
        verifications=list(zip(keys, records, strict=False)),
        verified=len(keys),
        points=points,
        most=MOST,
    )


@router.api_route("/drills/{drill_id}/page", methods=GET)
def stored_page(request: Requested, drill_id: str) -> Response:
    """Return the page that a drill stored. Browsers run no script of it and keep it apart from the other pages."""
    from kbackup.jobs.drill.stored import read_page

    data = read_page(request.cache.state, drill_id)
    return HTMLResponse(data, headers={"content-security-policy": STORED_POLICY})


def _read_all(
    entries: Iterable[T], read: Callable[[T], DrillReport | Verification]
) -> list[DrillReport | Verification | CorruptError | UsageError]:
    """Read reports side by side. Where one can't be read, its row shows the error: the others stay readable."""

    def try_read(entry: T) -> DrillReport | Verification | CorruptError | UsageError:
        try:
            return read(entry)
        except (CorruptError, UsageError) as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(try_read, entries))


def _report(state: Store, drill_id: str) -> DrillReport:
    from kbackup.jobs.drill.stored import read_report

    return read_report(state, drill_id)


def _verification(store: Store, key: str) -> Verification:
    from kbackup.jobs.verify.report import Verification

    try:
        return load(Verification, store.get(key), key)
    except NotFoundError:
        raise UsageError(f"file {key} was deleted just now", "see the list of drills") from None
