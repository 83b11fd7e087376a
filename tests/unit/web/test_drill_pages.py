"""Drills on the page: the list, damaged reports, and the stored pages behind a policy of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.jobs.verify.report import record_verification
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.guard import STORED_POLICY
from tests.support.archives import make_archive
from tests.support.drill_reports import EVIL, comparison, store_drill
from tests.support.memory_store import MemoryStore
from tests.support.verifications import SEGMENT, run
from tests.support.visits import text, visit


def test_an_archive_without_drills(store: Store) -> None:
    assert "No drill of this archive is stored" in text(visit(store).get("/drills").text)


def test_the_newest_drill_comes_first_and_damage_hides_no_other(store: Store) -> None:
    store_drill(store, "drill-1", result="failed", findings=(EVIL, *["differs"] * 6))
    store_drill(store, "drill-2")
    store.put(layout.drill_key("drill-2", layout.REPORT), b"{}")
    store_drill(store, "drill-3", restore_point=2, comparison=comparison("clicks"))
    shown = visit(store).get("/drills").text
    assert "<script>alert" not in shown
    said = text(shown)
    assert said.index("last drill passed") < said.index("drill-3 passed")
    assert "drill-2 can't be read" in said
    assert "drill-1 failed" in said
    assert "and 2 more" in said
    assert 'href="/points/2"' in shown, "a restore point that the archive has"
    assert 'href="/points/7"' not in shown


def test_recorded_verifications(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    store = FileStore(root)
    make_archive(store)
    client = visit(store)
    assert "No verification of this archive is recorded" in text(client.get("/drills").text)
    record_verification(store, run(root, quick=True), "2026-01-31T05:30:00.000Z", partial=False)
    (root / SEGMENT).write_bytes(b"damage")
    record_verification(store, run(root, quick=True), "2026-01-31T06:30:00.000Z", partial=False)
    broken = layout.verification_key("2026-01-31T07-30-00-000Z-full-0a")
    store.put(broken, b"{}")
    shown = text(client.get("/drills").text)
    assert f"can't be read file {broken}" in shown
    assert shown.index("can't be read") < shown.index("1 finding ") < shown.index("nothing found")
    assert SEGMENT in shown


def test_the_stored_page_is_kept_apart(store: Store) -> None:
    store_drill(store, "drill-1")
    client = visit(store)
    shown = client.get("/drills/drill-1/page")
    assert shown.status_code == 200
    assert shown.text.startswith("<!doctype html>")
    assert shown.headers["content-security-policy"] == STORED_POLICY
    assert "sandbox" in STORED_POLICY
    assert "script" not in STORED_POLICY
    assert shown.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("drill_id", ["drill-9", "..", "a b", "%2e%2e%2farchive.json"])
def test_a_drill_that_is_not_stored(store: Store, drill_id: str) -> None:
    assert visit(store).get(f"/drills/{drill_id}/page").status_code == 404


def test_a_page_that_was_changed_is_not_shown(store: Store) -> None:
    store_drill(store, "drill-1")
    store.put(layout.drill_key("drill-1", layout.PAGE), b"<script>alert(1)</script>" * 1000)
    shown = visit(store).get("/drills/drill-1/page")
    assert shown.status_code == 500
    assert "is not what its report says" in text(shown.text)
    store.delete([layout.drill_key("drill-1", layout.PAGE)])
    assert "is missing" in text(visit(store).get("/drills/drill-1/page").text)


def test_drills_beside_the_archive(store: Store) -> None:
    """With `restore.state`, reports of drills are not in the archive."""
    state = MemoryStore()
    store_drill(state, "drill-1")
    client = visit(store, cache=ArchiveCache(store, lambda: 0.0, state))
    assert "drill-1 passed" in text(client.get("/drills").text)
