"""What is different between two restore points, as `kbackup diff` finds it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.view import GET, Look

router = APIRouter(default_response_class=HTMLResponse)

MOST = 500
"""Rows of each table."""


@router.api_route("/diff", methods=GET)
def changes(look: Look, a: str = "", b: str = "") -> HTMLResponse:
    """From `a` to `b`, by default the newest and the one before."""
    if look.at.archive is None:
        raise UsageError("a folder of the Java tool has no restore points", "there is nothing to compare")
    numbers = [point.number for point in look.held.points()]
    after = look.held.snapshot(b.strip() or "latest")
    earlier = [number for number in numbers if after.number is not None and number < after.number]
    if not a.strip() and not earlier:
        return look.page("diff.html", "diff", diff=None, a=None, b=after.number, numbers=numbers, most=MOST)
    from kbackup.archive.query.selection import Selection
    from kbackup.jobs.diff.job import diff
    from kbackup.jobs.diff.views import point_view

    archive = look.at.archive
    before = archive.restore_point(a.strip() or str(earlier[-1]))
    found = diff(
        *(
            point_view(archive, archive.restore_point(number), Selection(), Selection())
            for number in (before.number, after.number or 0)
        )
    )
    return look.page(
        "diff.html", "diff", diff=found, a=before.number, b=after.number, numbers=numbers, most=MOST
    )
