"""Every kind of damage is found and named, and what is no damage is not called so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from kbackup import cli
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import Catalog, Derived, Latest
from kbackup.archive.catalog.run import begin_writing
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.models import dump, load
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.table import Segment, to_batch
from kbackup.errors import NoArchiveError, UsageError
from kbackup.jobs.verify.job import VerifyReport, verify
from kbackup.metrics.events import Silent
from kbackup.spark.progress import ProgressSender
from kbackup.store import open_store
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import make_archive
from tests.support.exhaustive import sample
from tests.support.java_sink import FLAWS, LAST, torn_folder

pytestmark = pytest.mark.exhaustive(keep=2)

ORDERS = "topics/orders/"
SEGMENT = f"{ORDERS}segment_partition_000_from_offset_0000000000_records"
INDEX = f"{ORDERS}segment_partition_000_from_offset_0000000000_index"
OTHER = f"{ORDERS}segment_partition_001_from_offset_0000000000_records"
PACKED = "topics/clicks/segment_partition_000_from_offset_0000000000_records.zst"


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_here)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))


def run(root: Path, selection: str = "all", quick: bool = False) -> VerifyReport:
    session: Callable[[], Any] = no_spark if quick else lambda: None
    return verify(open_store(str(root)), selection, quick, session, Silent())


def found(report: VerifyReport) -> dict[str, list[str]]:
    """Return the findings of each file."""
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


def beside(root: Path, number: int) -> str:
    """The folder of a restore point's documents, as a prefix of keys."""
    (found,) = (root / "points").glob(f"{number:010d}-*")
    return f"points/{found.name}/"


def catalogs(root: Path) -> list[str]:
    """The keys of all catalogs, the newest last."""
    return sorted(f"catalog/{path.name}" for path in (root / "catalog").glob("0*.json"))


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
    names = {"archive.json", "lock.json", "derived.json", "latest.json"}
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and ".tmp" not in path.parts and path.name not in names
    )


@pytest.mark.exhaustive(keep=1)
def test_every_file_when_it_is_missing_cut_or_flipped(root: Path, made: Path) -> None:
    """All files that the catalogs of the history and their restore points stand on, one after the other."""
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


@pytest.mark.parametrize("name", ["archive.json", "catalog/latest.json", "derived.json"])
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
    groups = f"{beside(root, 1)}groups.json"
    flip(root / groups)
    (root / ORDERS / "index_partition_001").unlink()
    said = found(run(root))
    assert set(said) == {SEGMENT, INDEX, PACKED, groups}, "derived files need groups.json"
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
    one, two = (f"{beside(root, number)}manifest.json" for number in (1, 2))
    shutil.copy(root / one, root / two)
    assert found(run(root, quick=True)) == {two: ["is not the manifest that the catalog names"]}


def test_a_manifest_of_another_archive(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_archive(open_store(str(other)))
    key = f"{beside(root, 2)}manifest.json"
    shutil.copy(other / beside(other, 2) / "manifest.json", root / key)
    (text,) = found(run(root, quick=True))[key]
    assert text.startswith("belongs to archive ")


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_manifest(root: Path, number: int) -> None:
    key = f"{beside(root, number)}manifest.json"
    (root / key).unlink()
    assert found(run(root, quick=True)) == {key: ["is missing"]}


def test_a_missing_catalog_in_the_history_and_at_its_end(root: Path, made: Path) -> None:
    for key in catalogs(root):
        (root / key).unlink()
        report = run(root, quick=True)
        assert found(report) == {key: ["is missing"]}
        shutil.copy(made / key, root / key)
    (root / catalogs(root)[-1]).unlink()
    (root / "catalog" / "latest.json").unlink()
    assert list(found(run(root, quick=True))) == catalogs(made)[-1:], "derived.json names it as well"


def test_what_a_lost_catalog_refers_to(root: Path) -> None:
    (root / catalogs(root)[-1]).unlink()
    report = run(root, quick=True)
    assert report.restore_points == (1,)
    assert {n.what for n in report.notes if n.bytes} == {
        "is an orphan: no catalog that can be read refers to it"
    }


def test_a_replayed_catalog(root: Path) -> None:
    """Each says its own number, and the checksum of the one before it."""
    *_, before, newest = catalogs(root)
    shutil.copy(root / before, root / newest)
    (text,) = found(run(root, quick=True))[newest]
    assert text.startswith("is of catalog ")


def test_a_catalog_of_another_archive(root: Path, tmp_path: Path) -> None:
    make_archive(open_store(str(tmp_path / "other")))
    for key in catalogs(root)[1:3]:
        shutil.copy(tmp_path / "other" / key, root / key)
    said = found(run(root, quick=True))
    assert list(said) == catalogs(root)[1:3]
    assert all(text.startswith("belongs to archive ") for (text,) in said.values())


def rewrite(root: Path, key: str, **changed: Any) -> None:
    """A catalog with other values and a checksum of its own that is right."""
    catalog = load(Catalog, (root / key).read_bytes(), key)
    fields = {name: getattr(catalog, name) for name in catalog.__struct_fields__}
    (root / key).write_bytes(dump(Catalog(**fields | {"checksum": ""} | changed)))


def test_a_catalog_that_the_next_one_does_not_follow(root: Path) -> None:
    key = catalogs(root)[1]
    rewrite(root, key, next_point=77)
    assert found(run(root, quick=True)) == {key: ["is not the catalog that the next one follows"]}


def test_a_table_of_an_earlier_catalog(root: Path) -> None:
    """An undo needs it."""
    store = open_store(str(root))
    newest = open_archive(store).committed.catalog
    assert newest is not None
    now = {ref.key for name in newest.tables.__struct_fields__ for ref in getattr(newest.tables, name)}
    key = min(f"tables/{path.name}" for path in (root / "tables").iterdir())
    assert key not in now
    flip(root / key)
    assert found(run(root, quick=True)) == {key: ["is not what its catalog says"]}
    (root / key).unlink()
    assert found(run(root, quick=True)) == {key: ["is missing, a catalog refers to it"]}


def test_a_repair_goes_on_from_an_earlier_catalog(root: Path) -> None:
    """Records that an adoption passed over are no damage any more."""
    key = catalogs(root)[-1]
    flip(root / key)
    assert key in found(run(root, quick=True))
    assert cli.main(["repair", "--confirm", str(root)]) in (0, 13)
    assert run(root).findings == ()
    assert (root / key).exists()


def test_archive_json_of_another_archive(root: Path, made: Path, tmp_path: Path) -> None:
    other = make_archive(open_store(str(tmp_path / "other"))).info.id
    here = open_archive(open_store(str(root))).info.id
    shutil.copy(tmp_path / "other" / "archive.json", root / "archive.json")
    assert found(run(root)) == {"archive.json": [f"is of archive {other}, every catalog of {here}"]}
    assert cli.main(["repair", "--confirm", str(root)]) == 0
    assert run(root).findings == ()
    assert open_archive(open_store(str(root))).info.id == here


def test_marks_of_another_archive(root: Path) -> None:
    (root / "catalog" / "latest.json").write_bytes(dump(Latest(archive_id="another", number=1)))
    (root / "derived.json").write_bytes(dump(Derived(archive_id="another", catalog=1)))
    said = found(run(root, quick=True))
    assert list(said) == ["catalog/latest.json", "derived.json"]
    assert all(text.startswith("belongs to archive another") for (text,) in said.values())


def table_with(root: Path, change: Callable[[list[Segment]], list[Segment]], point: int = 2) -> None:
    """A catalog with other segments of restore point 2, or of another; all checksums are right."""
    store = open_store(str(root))
    archive = open_archive(store)
    here = [s for number, s in archive.added_by(0, 2) if number == point]
    rows = [(number, s) for number, s in archive.added_by(0, 2) if number != point]
    rows += [(point, s) for s in change(here)]
    table = pa.Table.from_batches([to_batch([s for _, s in rows])])
    column = pa.array([number for number, _ in rows], pa.int64())
    segments = archive.state.segments
    table = table.append_column(segments.schema.field("point"), column)
    commit(
        store,
        archive.committed,
        lambda state: replace(state, segments=segments.replace(table)),
        Author("repair", "another", "other segments"),
    )


def test_segments_that_overlap_lie_outside_or_do_not_add_up(root: Path, made: Path) -> None:
    archive = open_archive(open_store(str(root)))
    again = next(s for s in archive.added(0, 1) if s.topic == "orders" and s.partition == 0)
    table_with(root, lambda table: [*table, again])
    said = found(run(root, quick=True))
    assert any("begins at offset" in text for text in said[SEGMENT])
    assert any("its segments have" in text for text in said[f"{beside(root, 2)}manifest.json"])
    shutil.rmtree(root)
    shutil.copytree(made, root)
    table_with(root, lambda table: [*table[:-1], replace(table[-1], last=99)])
    said = found(run(root))
    (key,) = [name for name in said if name.endswith("_records")]
    assert any("outside of 0 to 40" in text for text in said[key])
    assert any("has last 39, its restore point says 99" in text for text in said[key])


def test_a_segment_that_is_named_elsewhere(root: Path) -> None:
    table_with(root, lambda table: [*table[:-1], replace(table[-1], key=OTHER)])
    said = found(run(root, quick=True))
    assert any("is named by the catalog where" in text for text in said[OTHER])


def test_timestamps_and_the_largest_record(root: Path) -> None:
    table_with(root, lambda t: [*t[:-1], replace(t[-1], min_timestamp=1, max_timestamp=2, largest=3)])
    (said,) = found(run(root)).values()
    assert len(said) == 3
    assert found(run(root, quick=True)) == {}


def test_what_nothing_promises_is_noted(root: Path) -> None:
    (root / ORDERS / "segment_partition_000_from_offset_0000000099_records").write_bytes(b"12345")
    (root / "notes.txt").write_bytes(b"123")
    (root / f"{beside(root, 2)}copy of manifest.json").write_bytes(b"")
    report = run(root, quick=True)
    assert report.findings == ()
    assert report.orphan_bytes == 8
    assert {n.file for n in report.notes if n.bytes} == {
        f"{ORDERS}segment_partition_000_from_offset_0000000099_records",
        "notes.txt",
    }
    assert f"{beside(root, 2)}copy of manifest.json" in {n.file for n in report.notes}


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
    assert found(run(root)) == {key: ["is missing"]}


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


def test_the_commands_refusals(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path / "nothing"), "--quick"]) == 10
    assert "hint: check the address" in capsys.readouterr().err
    assert cli.main(["verify", str(root), "--quick", "--backup", "first"]) == 2
    assert "there is no restore point first" in capsys.readouterr().err
    closed = ["--s3-endpoint-url", "http://127.0.0.1:9", "--set", "s3.max_attempts=1", "--s3-region", "x"]
    keys = ["--set", "s3.access_key_id=a", "--set", "s3.secret_access_key=b"]
    assert cli.main(["verify", "s3://bucket/x", "--quick", *closed, *keys]) == 14
    assert "hint: " in capsys.readouterr().err
