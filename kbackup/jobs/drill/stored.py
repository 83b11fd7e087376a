"""Read the stored reports of drills and their pages."""

from __future__ import annotations

import re
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.models import file_sum, load
from kbackup.errors import CorruptError, NotFoundError, UsageError
from kbackup.jobs.drill.report import DrillReport
from kbackup.store.base import Store

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_REPORT = re.compile(rf"{layout.DRILLS}({_ID.pattern})/{re.escape(layout.REPORT)}")
MAX_PAGE = 16 << 20
"""Size in bytes of the largest page that is read: a drill writes at most 200 rows of each table."""


class StoredDrill(NamedTuple):
    """A drill whose report is stored. `modified` is in seconds since the epoch by the store's clock."""

    drill_id: str
    modified: float


def list_drills(store: Store) -> list[StoredDrill]:
    """Return the stored drills, the newest first. Costs one listing."""
    drills = [
        StoredDrill(match[1], entry.modified)
        for entry in store.list(layout.DRILLS)
        if (match := _REPORT.fullmatch(entry.key)) is not None
    ]
    return sorted(drills, key=lambda drill: (-drill.modified, drill.drill_id))


def read_report(store: Store, drill_id: str) -> DrillReport:
    """Return the report of a drill. Raises `UsageError` if there is none, `CorruptError` if it is damaged."""
    if not _ID.fullmatch(drill_id):
        raise _unknown(drill_id)
    key = layout.drill_key(drill_id, layout.REPORT)
    try:
        data = store.get(key)
    except NotFoundError:
        raise _unknown(drill_id) from None
    report = load(DrillReport, data, key)
    if report.drill_id != drill_id:
        raise CorruptError(f"file {key} is of drill {report.drill_id}", "run 'kbackup verify'")
    return report


def read_page(store: Store, drill_id: str) -> bytes:
    """Return the HTML page of a drill: the bytes that its report names. Raises `CorruptError` for others."""
    report = read_report(store, drill_id)
    key = layout.drill_key(drill_id, layout.PAGE)
    if report.page is None or report.page.size > MAX_PAGE:
        raise CorruptError(
            f"the report of drill {drill_id} names no page of {MAX_PAGE:,} bytes or less", _HINT
        )
    try:
        data = store.get_range(key, 0, report.page.size)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _HINT) from error
    if file_sum(data) != report.page:
        raise CorruptError(f"file {key} is not what its report says", _HINT)
    return data


_HINT = "read report.json beside it, or run 'kbackup verify'"


def _unknown(drill_id: str) -> UsageError:
    return UsageError(f"there is no drill {drill_id} in the archive", "select another drill")
