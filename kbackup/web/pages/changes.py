"""The page of differences between two restore points, as in `kbackup diff`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.view import GET, Requested

router = APIRouter(default_response_class=HTMLResponse)

MOST = 500
"""Rows of each table."""


@router.api_route("/diff", methods=GET)
def changes(request: Requested, a: str = "", b: str = "") -> HTMLResponse:
    """Compare `a` with `b`: by default the newest restore point with the one before."""
    if request.snapshot.archive is None:
        raise UsageError(
            "a folder of the Java tool has no restore points", "use 'kbackup adopt' to make an archive of it"
        )
    numbers = [point.number for point in request.cache.points()]
    after = request.cache.snapshot(b.strip() or "latest")
    earlier = [number for number in numbers if after.number is not None and number < after.number]
    if not a.strip() and not earlier:
        return request.page(
            "diff.html", "diff", diff=None, a=None, b=after.number, numbers=numbers, most=MOST
        )
    from kbackup.archive.query.selection import Selection
    from kbackup.jobs.diff.job import diff, point_view

    archive = request.snapshot.archive
    before = archive.restore_point(a.strip() or str(earlier[-1]))
    differences = diff(
        *(
            point_view(archive, archive.restore_point(number), Selection(), Selection())
            for number in (before.number, after.number or 0)
        )
    )
    return request.page(
        "diff.html", "diff", diff=differences, a=before.number, b=after.number, numbers=numbers, most=MOST
    )
