"""Each verification is recorded in its archive, and the records are verified with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.query.java import JAVA
from kbackup.archive.verify.findings import Findings
from kbackup.jobs.verify.job import check_verifications
from kbackup.jobs.verify.report import STORED_FINDINGS, Verification, record_verification
from kbackup.store import open_store
from kbackup.store.base import Store
from tests.support.memory_store import MemoryStore
from tests.support.verifications import OTHER, SEGMENT, run

STARTED = "2026-01-31T05:30:00.000Z"


def records(root: Path) -> list[Verification]:
    store = open_store(str(root))
    return [load(Verification, store.get(e.key), e.key) for e in store.list(layout.VERIFICATIONS)]


def test_the_command_records_each_verification(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 0
    (root / SEGMENT).unlink()
    assert cli.main(["verify", str(root), "--quick", "--restore-point", "1", "-q"]) == 13
    assert "no file" not in capsys.readouterr().out, "a record is a file of an archive"
    first, second = sorted(records(root), key=lambda record: record.started_at)
    assert (first.scope, first.restore_points, first.newest, first.finding_count) == ("quick", 2, 2, 0)
    assert (second.scope, second.restore_points, second.newest) == ("partial", 1, 1)
    assert [finding.file for finding in second.findings] == [SEGMENT]
    assert first.started_at <= first.ended_at <= second.started_at


def test_a_reader_is_told_that_nothing_was_recorded(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "verifications").write_text("in the way of the folder")
    assert cli.main(["verify", str(root), "--quick"]) == 0
    assert "note: the result was not recorded in the archive: " in capsys.readouterr().err


def test_a_full_verification_names_its_first_findings(root: Path) -> None:
    (root / SEGMENT).unlink()
    (root / OTHER).unlink()
    report = run(root)
    store = MemoryStore()
    record_verification(store, report, STARTED, partial=False)
    (entry,) = store.list()
    assert entry.key.startswith("verifications/2026-01-31T05-30-00-000Z-full-")
    record = load(Verification, store.get(entry.key), entry.key)
    assert record.finding_count == len(report.findings) == len(record.findings) <= STORED_FINDINGS
    assert record.read_records == report.read_records > 0


def found(store: Store) -> dict[str, str]:
    findings = Findings()
    check_verifications(store, [entry.key for entry in store.list()], findings)
    return {f.file: f.what for f in findings.entries} | {n.file: n.what for n in findings.notes}


def test_records_are_verified(root: Path) -> None:
    store = MemoryStore()
    record_verification(store, run(root, quick=True), STARTED, partial=False)
    (entry,) = store.list()
    assert found(store) == {}
    moved = layout.verification_key("2026-01-31T05-30-00-000Z-full-ab")
    store.put(moved, store.get(entry.key))
    store.put(layout.VERIFICATIONS + "more", b"")
    messages = found(store)
    assert "is of verification" in messages[moved]
    assert messages[layout.VERIFICATIONS + "more"] == "is no file of a verification"
    store.delete([moved, layout.VERIFICATIONS + "more"])
    store.put(entry.key, store.get(entry.key).replace(b"quick", b"fully"))
    assert [*found(store)] == [entry.key]


def test_a_java_folder_takes_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "java" / "orders"
    folder.mkdir(parents=True)
    (folder / "index_partition_000").write_bytes(b"\x01")
    assert cli.main(["verify", str(folder.parent), "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["archive_id"] == JAVA
    assert not (folder.parent / "verifications").exists()
