"""Every kind of damage is found and named, and what is no damage is not called so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

import kbackup.jobs.verify as verify_job
from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.models import Intent, Manifest, dump, file_sum, load
from kbackup.archive.segments import decode_segments, encode_segments
from kbackup.errors import NoArchiveError, UsageError
from kbackup.jobs.listen import Silent
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.verify import VerifyReport, verify
from kbackup.store import open_store
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import make_archive
from tests.support.exhaustive import sample
from tests.support.java_sink import FLAWS, LAST, torn_folder

ORDERS = "topics/orders/"
SEGMENT = f"{ORDERS}segment_partition_000_from_offset_0000000000_records"
INDEX = f"{ORDERS}segment_partition_000_from_offset_0000000000_index"
OTHER = f"{ORDERS}segment_partition_001_from_offset_0000000000_records"
PACKED = "topics/clicks/segment_partition_000_from_offset_0000000000_records.zst"
ONE, TWO = "backups/0000000001/", "backups/0000000002/"


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr(verify_job, "run_tasks", run_here)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))


def run(root: Path, wanted: str = "all", quick: bool = False) -> VerifyReport:
    session: Callable[[], Any] = no_spark if quick else lambda: None
    return verify(open_store(str(root)), wanted, quick, session, Silent())


def found(report: VerifyReport) -> dict[str, list[str]]:
    """What is said of each file."""
    said: dict[str, list[str]] = {}
    for finding in report.findings:
        assert finding.hint
        said.setdefault(finding.file, []).append(finding.what)
    return said


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path, at: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[max(at, -len(data))] ^= 0x10
    path.write_bytes(data)


def swap(a: Path, b: Path) -> None:
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def test_a_whole_archive(root: Path) -> None:
    report = run(root)
    assert (report.findings, report.notes, report.restore_points) == ((), (), (1, 2))
    assert (report.read_records, report.deep) == (10 + 12 + 20 + 24, True)
    quick = run(root, quick=True)
    assert (quick.findings, quick.read_records) == ((), 0)
    assert [n.what for n in quick.notes] == ["was compared by sizes alone: the store keeps no checksums"]


def files_of(root: Path) -> list[str]:
    names = {"archive.json", "lock.json", "refreshed.json", "intent.json"}
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and ".tmp" not in path.parts and path.name not in names
    )


@pytest.mark.exhaustive(keep=1)
def test_every_file_when_it_is_missing_cut_or_flipped(root: Path, made: Path) -> None:
    """All files that a restore point stands on, one after the other."""
    every = files_of(root)
    assert len(every) > 25
    for name in sample(every):
        for damage in (Path.unlink, cut, flip):
            damage(root / name)
            assert name in found(run(root)), (name, damage)
            if damage is not flip:
                assert name in found(run(root, quick=True)), (name, damage)
            shutil.copy(made / name, root / name)
    assert run(root).findings == ()


@pytest.mark.parametrize("name", ["archive.json", f"{ONE}intent.json", f"{TWO}refreshed.json"])
@pytest.mark.parametrize("damage", [cut, flip])
def test_files_that_are_checked_by_their_own_sum(
    root: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(root / name)
    assert list(found(run(root, quick=True))) == [name]


def test_all_findings_are_listed(root: Path) -> None:
    flip(root / SEGMENT)
    cut(root / INDEX)
    (root / PACKED).unlink()
    flip(root / ONE / "groups.json")
    (root / ORDERS / "index_partition_001").unlink()
    said = found(run(root))
    assert set(said) == {SEGMENT, INDEX, PACKED, f"{ONE}groups.json"}, "derived files need groups.json"
    assert said[PACKED] == ["is missing"]
    assert said[SEGMENT] == ["is not what its manifest says (checksum)"]
    assert "bytes, not" in said[INDEX][0]


def test_a_record_cut_short_is_named_by_its_position(root: Path) -> None:
    flip(root / SEGMENT, 30)
    (text,) = found(run(root))[SEGMENT]
    assert text.startswith("at byte ")


def test_segments_swapped_between_partitions(root: Path) -> None:
    swap(root / SEGMENT, root / OTHER)
    swap(root / INDEX, root / OTHER.replace("_records", "_index"))
    said = found(run(root))
    assert {SEGMENT, OTHER} <= set(said)


def test_a_replayed_manifest(root: Path) -> None:
    shutil.copy(root / ONE / "manifest.json", root / TWO / "manifest.json")
    said = found(run(root, quick=True))
    assert said == {f"{TWO}manifest.json": ["is the manifest of restore point 1, not of the folder it is in"]}


def test_a_manifest_of_another_archive(root: Path, tmp_path: Path) -> None:
    make_archive(open_store(str(tmp_path / "other")))
    shutil.copy(tmp_path / "other" / TWO / "manifest.json", root / TWO / "manifest.json")
    (text,) = found(run(root, quick=True))[f"{TWO}manifest.json"]
    assert text.startswith("belongs to archive ")


def test_a_missing_manifest_in_the_chain_and_at_its_end(root: Path, made: Path) -> None:
    (root / ONE / "manifest.json").unlink()
    assert found(run(root, quick=True)) == {f"{ONE}manifest.json": ["is missing"]}
    shutil.copy(made / ONE / "manifest.json", root / ONE / "manifest.json")
    (root / TWO / "manifest.json").unlink()
    report = run(root, quick=True)
    assert found(report) == {f"{TWO}manifest.json": ["is missing"]}
    assert {n.what for n in report.notes if n.bytes} == {"is in no restore point that can be read"}


def rewrite(root: Path, seq: int, **changed: Any) -> None:
    """A manifest with other values and a sum of its own that is right."""
    path = root / layout.backup_key(seq, layout.MANIFEST)
    manifest = load(Manifest, path.read_bytes(), path.name)
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    path.write_bytes(dump(Manifest(**fields | changed)))


def test_a_chain_that_skips_a_restore_point(root: Path) -> None:
    rewrite(root, 2, parent=None)
    (text,) = found(run(root, quick=True))[f"{TWO}manifest.json"]
    assert text == "names restore point None as its predecessor, but that is 1"


def test_a_committed_run_that_is_called_abandoned(root: Path) -> None:
    rewrite(root, 2, status="abandoned")
    (text,) = found(run(root, quick=True))[f"{TWO}manifest.json"]
    assert text.startswith("says that the run was abandoned")


def table_with(root: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """Restore point 2 with another segment table, its sum right in the manifest."""
    path = root / TWO / "segments.parquet"
    path.write_bytes(encode_segments(change(decode_segments(path.read_bytes(), "it"))))
    manifest = load(Manifest, (root / TWO / "manifest.json").read_bytes(), "it")
    rewrite(root, 2, files=manifest.files | {"segments.parquet": file_sum(path.read_bytes())})


def test_segments_that_overlap_lie_outside_or_do_not_add_up(root: Path, made: Path) -> None:
    first = decode_segments((root / ONE / "segments.parquet").read_bytes(), "it")
    again = next(s for s in first if s.topic == "orders" and s.partition == 0)
    table_with(root, lambda table: [*table, again])
    said = found(run(root, quick=True))
    assert any("begins at offset" in text for text in said[SEGMENT])
    assert any("its segments have" in text for text in said[f"{TWO}manifest.json"])
    shutil.copytree(made, root, dirs_exist_ok=True)
    table_with(root, lambda table: [*table[:-1], replace(table[-1], last=99)])
    said = found(run(root))
    (key,) = [name for name in said if name.endswith("_records")]
    assert any("outside of 0 to 40" in text for text in said[key])
    assert any("has last 39, its restore point says 99" in text for text in said[key])


def test_timestamps_and_the_largest_record(root: Path) -> None:
    table_with(root, lambda t: [*t[:-1], replace(t[-1], min_timestamp=1, max_timestamp=2, largest=3)])
    (said,) = found(run(root)).values()
    assert len(said) == 3
    assert found(run(root, quick=True)) == {}


def test_what_nothing_promises_is_noted(root: Path) -> None:
    (root / ORDERS / "segment_partition_000_from_offset_0000000099_records").write_bytes(b"12345")
    (root / "notes.txt").write_bytes(b"123")
    (root / TWO / "copy of manifest.json").write_bytes(b"")
    report = run(root, quick=True)
    assert report.findings == ()
    assert report.orphan_bytes == 8
    assert {n.file for n in report.notes if n.bytes} == {
        f"{ORDERS}segment_partition_000_from_offset_0000000099_records",
        "notes.txt",
    }
    assert f"{TWO}copy of manifest.json" in {n.file for n in report.notes}


def test_a_run_under_way_is_no_damage(root: Path) -> None:
    (root / "backups" / "0000000003").mkdir()
    intent = load(Intent, (root / TWO / "intent.json").read_bytes(), "it")
    begun = dump(msgspec.structs.replace(intent, seq=3, parent=2))
    (root / "backups" / "0000000003" / "intent.json").write_bytes(begun)
    report = run(root)
    assert report.findings == ()
    assert "backups/0000000003/intent.json" in {n.file for n in report.notes}


def test_derived_files_that_a_crash_left_behind_are_not_judged(root: Path) -> None:
    (root / TWO / "refreshed.json").unlink()
    (root / ORDERS / "index_partition_000").unlink()
    report = run(root)
    assert report.findings == ()
    assert [n.what for n in report.notes] == ["has derived files that could not be judged now"]


def test_one_restore_point_stands_on_those_before_it(root: Path) -> None:
    later = f"{ORDERS}segment_partition_000_from_offset_0000000015_records"
    (root / later).unlink()
    assert run(root, "1").findings == ()
    assert list(found(run(root, "2"))) == list(found(run(root, "latest"))) == [later]
    (root / SEGMENT).unlink()
    assert list(found(run(root, "2"))) == [SEGMENT, later]
    with pytest.raises(UsageError, match="there is no restore point 9"):
        run(root, "9")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NoArchiveError):
        run(tmp_path / "nothing")


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
    said = found(report)
    assert {f"orders.v1/{stem}{name}" for name in ("11_records", "57_records", "79_index")} | {
        "orders.v1/index_partition_000",
        "orders.v1/index_partition_001",
        "audit_log/consumer_offsets_partition_000",
    } == set(said)
    named = {n.file for n in report.notes}
    assert {"audit_log/notes", f"orders.v1/{stem}35_index"} <= named
    assert not named & {key for key in said if "/index_" not in key}


def test_what_a_killed_sink_leaves_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert found(run(java, quick=True)) == {}
    assert found(run(java)) == {
        f"orders.v1/{stem}_records": ["at byte 1: another record offset than in the index"]
    }


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 0
    assert "0 findings; 2 restore points" in capsys.readouterr().out
    (root / SEGMENT).unlink()
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 13
    out, _ = capsys.readouterr()
    assert f"{SEGMENT}: is missing\n  hint: take it from a bucket version" in out
    assert cli.main(["verify", "-a", str(root), "--quick", "--json"]) == 13
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == [
        {
            "file": SEGMENT,
            "what": "is missing",
            "hint": "take it from a bucket version or another copy of the archive",
        }
    ]


def test_the_commands_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path / "nothing"), "--quick"]) == 10
    assert "hint: check the address" in capsys.readouterr().err
    assert cli.main(["verify", str(tmp_path), "--backup", "first"]) == 2
    assert "number of a restore point" in capsys.readouterr().err
    closed = ["--s3-endpoint-url", "http://127.0.0.1:9", "--set", "s3.max_attempts=1", "--s3-region", "x"]
    keys = ["--set", "s3.access_key_id=a", "--set", "s3.secret_access_key=b"]
    assert cli.main(["verify", "s3://bucket/x", "--quick", *closed, *keys]) == 14
    assert "hint: " in capsys.readouterr().err
