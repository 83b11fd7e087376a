"""Check the files of drills in an archive: a report, and the page that it names."""

from __future__ import annotations

from collections.abc import Collection

from kbackup.archive import layout
from kbackup.archive.models import file_sum, load
from kbackup.archive.verify.findings import CHANGED, Findings
from kbackup.jobs.drill.report import DrillReport
from kbackup.store.base import Store


def check_drills(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Each report by its own sum and its page by the report's. A page alone is of a drill that was cut off just
    then, and is nothing wrong."""
    for key in keys:
        if not key.startswith(layout.DRILLS):
            continue
        drill_id, _, name = key.removeprefix(layout.DRILLS).partition("/")
        if name == layout.REPORT:
            with findings.catching(key):
                _check(store, key, drill_id, findings)
        elif name != layout.PAGE:
            findings.note(key, "is no file of a drill")


def _check(store: Store, key: str, drill_id: str, findings: Findings) -> None:
    report = load(DrillReport, store.get(key), key)
    if report.drill_id != drill_id:
        findings.add(key, f"is of drill {report.drill_id}, not of the folder it is in", CHANGED)
    page = layout.drill_key(drill_id, layout.PAGE)
    with findings.catching(page):
        if file_sum(store.get(page)) != report.page:
            findings.add(page, "is not what its report says", CHANGED)
