"""Verification of a folder of the Java tool."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbackup import cli
from tests.golden.java_archive import ROOT as JAVA
from tests.support.java_sink import FLAWS, LAST, torn_folder
from tests.support.verifications import cut, findings_of, flip, run, swap

pytestmark = pytest.mark.exhaustive(keep=2)


@pytest.fixture
def java(tmp_path: Path) -> Path:
    return Path(shutil.copytree(JAVA / "archive", tmp_path / "java"))


def test_a_folder_of_the_java_tool(java: Path) -> None:
    report = run(java)
    assert (report.findings, report.notes, report.read_records) == ((), (), 385)
    assert run(java, quick=True).findings == ()


def test_damage_in_a_folder_of_the_java_tool(java: Path) -> None:
    orders = java / "orders.v1"
    stem = "segment_partition_000_from_offset_00000000"
    cut(orders / f"{stem}11_records")
    (orders / f"{stem}35_index").unlink()
    (orders / f"{stem}57_records").unlink()
    flip(orders / f"{stem}79_index", 16)
    swap(orders / "index_partition_000", orders / "index_partition_001")
    flip(java / "audit_log" / "consumer_offsets_partition_000", 0)
    (java / "audit_log" / "notes").write_bytes(b"x")
    report = run(java)
    messages = findings_of(report)
    assert {f"orders.v1/{stem}{name}" for name in ("11_records", "57_records", "79_index")} | {
        "orders.v1/index_partition_000",
        "orders.v1/index_partition_001",
        "audit_log/consumer_offsets_partition_000",
    } == set(messages)
    named = {n.file for n in report.notes}
    assert {"audit_log/notes", f"orders.v1/{stem}35_index"} <= named
    assert not named & {key for key in messages if "/index_" not in key}


def test_flaws_of_a_killed_sink_are_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = torn_folder(tmp_path / "java")
    for quick in (True, False):
        report = run(root, quick=quick)
        assert report.findings == ()
        due = FLAWS | {"audit_log/index_partition_001": "ends within an entry"}
        assert {n.file: n.what[: len(due[n.file])] for n in report.notes} == due
    assert report.read_records == 385
    assert cli.main(["verify", str(root), "--quick"]) == 0
    assert f"note: {LAST}_records: has 13 bytes behind offset 130" in capsys.readouterr().err


def test_records_against_their_index_in_a_folder_of_the_java_tool(java: Path) -> None:
    stem = "segment_partition_000_from_offset_0000000101"
    flip(java / "orders.v1" / f"{stem}_records", 8)
    assert findings_of(run(java, quick=True)) == {}
    assert findings_of(run(java)) == {
        f"orders.v1/{stem}_records": ["at byte 1: another record offset than in the index"]
    }
