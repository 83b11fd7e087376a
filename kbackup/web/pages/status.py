"""The pages of status and drills."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.errors import CorruptError, NotFoundError, UsageError
from kbackup.util.system import in_threads
from kbackup.web.guard import STORED_POLICY
from kbackup.web.view import GET, Number, Requested, list_page

if TYPE_CHECKING:
    from kbackup.archive.verify.findings import Verification
    from kbackup.jobs.drill.report import DrillReport


router = APIRouter(default_response_class=HTMLResponse)


@router.api_route("/status", methods=GET)
def status(request: Requested) -> HTMLResponse:
    """Show the present status, whatever restore point the other pages show."""
    # This reads a new status where the last one is old: a page that is reloaded shows a backup that has just ended.
    request.cache.points()
    verdict = request.cache.verdict
    if verdict is None:
        raise UsageError("a folder of the Java tool has no status", "make an archive of it: 'kbackup adopt'")
    return request.page("status.html", "status", verdict=verdict, status=verdict.status)


# The page of drills and verifications, and the page that each drill stored.


PAGE = 20
"""Number of reports that a page reads."""
MOST = 5
"""Number of findings of a drill or a verification."""
_THREADS = 4

T = TypeVar("T")


@router.api_route("/drills", methods=GET)
def drills(request: Requested, page: Number = 1) -> HTMLResponse:
    """Show the stored drills, the newest first, whatever restore point the other pages show."""
    from kbackup.archive.verify.findings import Verification
    from kbackup.jobs.drill.report import list_drills, read_report

    state, store = request.cache.state, request.cache.store

    def verification(key: str) -> Verification:
        try:
            return load(Verification, store.get(key), key)
        except NotFoundError:
            raise UsageError(f"file {key} was deleted just now", "see the list of drills") from None

    stored = list_page(list_drills(state), page, PAGE)
    reports = _read_all(stored.entries, lambda drill: read_report(state, drill.drill_id))
    verification_keys: list[str] = []
    for entry in store.list(layout.VERIFICATIONS):
        if layout.parse_verification_key(entry.key) is not None:
            verification_keys.append(entry.key)
    # An id begins with its time: so the newest one comes first.
    keys = sorted(verification_keys, reverse=True)
    records = _read_all(keys[:PAGE], verification)
    points = {point.number for point in request.cache.points()}
    rows = list(zip(stored.entries, reports, strict=True))
    # Only as many verifications as a page shows were read; all are counted.
    verifications = list(zip(keys, records, strict=False))
    return request.page(
        "drills.html",
        "drills",
        list_page=stored,
        rows=rows,
        verifications=verifications,
        verified=len(keys),
        points=points,
        most=MOST,
    )


@router.api_route("/drills/{drill_id}/page", methods=GET)
def stored_page(request: Requested, drill_id: str) -> Response:
    """Return the page that a drill stored, with a link back. Browsers run no script of it."""
    from kbackup.jobs.drill.report import read_page

    back = '<body>\n<nav aria-label="Back"><a href="/drills">\N{LEFTWARDS ARROW} Drills and verifications</a></nav>'
    data = read_page(request.cache.state, drill_id).replace(b"<body>", back.encode(), 1)
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

    return in_threads(try_read, entries, _THREADS)
