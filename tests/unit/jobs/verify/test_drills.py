"""The reports of drills in an archive are verified with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbackup.archive.verify.findings import Findings
from kbackup.jobs.drill.report import store_report
from kbackup.jobs.verify.job import check_drills
from kbackup.store.base import Store
from tests.support.drill_reports import report
from tests.support.memory_store import MemoryStore

FOLDER = f"drills/{report().drill_id}/"
PAGE, REPORT = FOLDER + "report.html", FOLDER + "report.json"


@pytest.fixture
def store() -> Store:
    made = MemoryStore()
    store_report(made, report(), "<!doctype html><p>grüße</p>")
    return made


def found(store: Store) -> dict[str, str]:
    findings = Findings()
    check_drills(store, [entry.key for entry in store.list()], findings)
    return {f.file: f.what for f in findings.entries} | {n.file: n.what for n in findings.notes}


def test_unchanged_drills_have_no_findings(store: Store) -> None:
    assert found(store) == {}


def copy_to_another(store: Store) -> None:
    for key in (PAGE, REPORT):
        store.put(key.replace(report().drill_id, "other"), store.get(key))


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (lambda s: s.put(PAGE, s.get(PAGE).replace(b"<p>", b"<q>")), PAGE, "is not what its report says"),
        (lambda s: s.delete([PAGE]), PAGE, "is missing"),
        (
            lambda s: s.put(REPORT, s.get(REPORT).replace(b"passed", b"failed")),
            REPORT,
            "does not match its own checksum",
        ),
        (lambda s: s.put(REPORT, s.get(REPORT)[:-9]), REPORT, "is not JSON"),
        (copy_to_another, "drills/other/report.json", "is of drill"),
        (lambda s: s.put(FOLDER + "more", b""), FOLDER + "more", "is no file of a drill"),
    ],
)
def test_damage_of_a_drill_is_named(
    store: Store, change: Callable[[Store], object], key: str, message: str
) -> None:
    change(store)
    assert [(k, w) for k, w in found(store).items() if message in w and k == key]
    assert len(found(store)) == 1


def test_a_page_alone_is_of_a_drill_that_was_cut_off(store: Store) -> None:
    store.delete([REPORT])
    assert found(store) == {}
