"""Verification of archives with differences that are no damage, and of derived files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive.lease import HeldLease
from kbackup.archive.run import begin_writing
from kbackup.errors import NoArchiveError, UsageError
from kbackup.store import open_store
from tests.support.verifications import ORDERS, SEGMENT, findings_of, point_folder, run, table_with

pytestmark = pytest.mark.exhaustive(keep=2)


def test_unlisted_files_are_notes(root: Path) -> None:
    (root / ORDERS / "segment_partition_000_from_offset_0000000099_records").write_bytes(b"12345")
    (root / "notes.txt").write_bytes(b"123")
    (root / f"{point_folder(root, 2)}copy of manifest.json").write_bytes(b"")
    report = run(root, quick=True)
    assert report.findings == ()
    assert report.orphan_bytes == 8
    assert {n.file for n in report.notes if n.bytes} == {
        f"{ORDERS}segment_partition_000_from_offset_0000000099_records",
        "notes.txt",
    }
    assert f"{point_folder(root, 2)}copy of manifest.json" in {n.file for n in report.notes}


def test_a_run_under_way_is_no_damage(root: Path) -> None:
    store = open_store(str(root))
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup")
        report = run(root)
    assert (report.findings, report.notes) == ((), ())


@pytest.mark.parametrize("kept", [False, True])
def test_derived_files_that_a_crash_left_behind_are_not_judged(root: Path, kept: bool) -> None:
    """No derived.json says for which catalog they were written, or it names a catalog with other segments."""
    if kept:
        table_with(root, lambda table: table)
    else:
        (root / "derived.json").unlink()
    (root / ORDERS / "index_partition_000").unlink()
    report = run(root)
    assert report.findings == ()
    assert [n.what for n in report.notes] == ["has derived files that could not be judged now"]


def test_derived_files_are_judged_after_a_commit_that_does_not_touch_them(root: Path) -> None:
    assert cli.main(["keep", "1", "--archive", str(root)]) == 0
    key = f"{ORDERS}index_partition_000"
    (root / key).unlink()
    assert findings_of(run(root)) == {key: ["is missing"]}


def test_one_restore_point_stands_on_those_before_it(root: Path) -> None:
    later = f"{ORDERS}segment_partition_000_from_offset_0000000015_records"
    (root / later).unlink()
    assert run(root, "1").findings == ()
    assert list(findings_of(run(root, "2"))) == list(findings_of(run(root, "latest"))) == [later]
    (root / SEGMENT).unlink()
    assert list(findings_of(run(root, "2"))) == [SEGMENT, later]
    with pytest.raises(UsageError, match="there is no restore point 9"):
        run(root, "9")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NoArchiveError):
        run(tmp_path / "nothing")
