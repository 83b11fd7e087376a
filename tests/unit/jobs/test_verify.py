"""Verification: which file, restore point or report each damage is found in, and what is no damage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Derived, Latest
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump, load
from kbackup.archive.query.java import JAVA as VERIFICATIONS_JAVA
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import write_plan
from kbackup.archive.run import begin_writing
from kbackup.archive.verify.findings import Findings, Verification
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from kbackup.jobs.drill.report import store_report
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.verify import STORED_FINDINGS, check_drills, check_verifications, record_verification
from kbackup.store import open_store
from kbackup.store.base import Store
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import make_archive
from tests.support.drill_reports import report
from tests.support.exhaustive import sample
from tests.support.java_sink import FLAWS, LAST, torn_folder
from tests.support.memory_store import MemoryStore
from tests.support.schemas import put_restored_schemas
from tests.support.target_topics import note_topics, target_topic
from tests.support.verifications import (
    ORDERS,
    OTHER,
    SEGMENT,
    cut,
    findings_of,
    flip,
    point_folder,
    run,
    swap,
    table_with,
)

pytestmark = [pytest.mark.exhaustive(keep=2), pytest.mark.usefixtures("tasks_run_here")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))


# Verification names each damaged file of an archive.


def test_the_schemas_that_a_restore_registered(root: Path) -> None:
    put_restored_schemas(open_store(str(root)), "mirror-7")
    report = run(root)
    assert (report.findings, report.notes) == ((), ())
    before, done = (f"restores/mirror-7/{name}" for name in (layout.SCHEMAS_BEFORE, layout.SCHEMAS))
    flip(root / done)
    (root / before).unlink()
    assert findings_of(run(root, quick=True)).keys() == {before, done}


INDEX = f"{ORDERS}segment_partition_000_from_offset_0000000000_index"
PACKED = "topics/clicks/segment_partition_000_from_offset_0000000000_records.zst"


def test_a_whole_archive_has_no_finding(root: Path) -> None:
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


def test_every_file_when_it_is_missing_cut_or_flipped(root: Path, made: Path) -> None:
    """All files that the catalogs of the history and their restore points stand on, one after the other."""
    every = files_of(root)
    assert len(every) > 25
    for name in sample(every):
        for damage in (Path.unlink, cut, flip):
            damage(root / name)
            assert name in findings_of(run(root)), (name, damage)
            if damage is not flip:
                assert name in findings_of(run(root, quick=True)), (name, damage)
            shutil.copy(made / name, root / name)
    assert run(root).findings == ()


@pytest.mark.parametrize("name", ["archive.json", "catalog/latest.json", "derived.json"])
@pytest.mark.parametrize("damage", [cut, flip])
def test_files_that_are_checked_by_their_own_sum(root: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(root / name)
    assert list(findings_of(run(root, quick=True))) == [name]


def test_all_findings_are_listed(root: Path) -> None:
    flip(root / SEGMENT)
    cut(root / INDEX)
    (root / PACKED).unlink()
    groups = f"{point_folder(root, 1)}groups.json"
    flip(root / groups)
    (root / ORDERS / "index_partition_001").unlink()
    messages = findings_of(run(root))
    assert set(messages) == {SEGMENT, INDEX, PACKED, groups}, "derived files need groups.json"
    assert messages[PACKED] == ["is missing"]
    assert messages[SEGMENT] == ["is not what its manifest says (checksum)"]
    assert "bytes, not" in messages[INDEX][0]


def test_a_record_cut_short_is_named_by_its_position(root: Path) -> None:
    flip(root / SEGMENT, 30)
    (text,) = findings_of(run(root))[SEGMENT]
    assert text.startswith("at byte ")


def test_segments_swapped_between_partitions(root: Path) -> None:
    swap(root / SEGMENT, root / OTHER)
    swap(root / INDEX, root / OTHER.replace("_records", "_index"))
    messages = findings_of(run(root))
    assert {SEGMENT, OTHER} <= set(messages)


def test_a_manifest_in_place_of_another_is_found(root: Path) -> None:
    one, two = (f"{point_folder(root, number)}manifest.json" for number in (1, 2))
    shutil.copy(root / one, root / two)
    assert findings_of(run(root, quick=True)) == {two: ["is not the manifest that the catalog names"]}


def test_a_manifest_of_another_archive(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_archive(open_store(str(other)), copied=False)
    key = f"{point_folder(root, 2)}manifest.json"
    shutil.copy(other / point_folder(other, 2) / "manifest.json", root / key)
    (text,) = findings_of(run(root, quick=True))[key]
    assert text.startswith("belongs to archive ")


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_manifest_is_found(root: Path, number: int) -> None:
    key = f"{point_folder(root, number)}manifest.json"
    (root / key).unlink()
    assert findings_of(run(root, quick=True)) == {key: ["is missing"]}


# Verification of catalogs and their tables: lost, replayed, or of another archive.


def catalogs(root: Path) -> list[str]:
    """The keys of all catalogs, the newest last."""
    return sorted(f"catalog/{path.name}" for path in (root / "catalog").glob("0*.json"))


def test_a_missing_catalog_in_the_history_and_at_its_end(root: Path, made: Path) -> None:
    for key in catalogs(root):
        (root / key).unlink()
        report = run(root, quick=True)
        assert findings_of(report) == {key: ["is missing"]}
        shutil.copy(made / key, root / key)
    (root / catalogs(root)[-1]).unlink()
    (root / "catalog" / "latest.json").unlink()
    assert list(findings_of(run(root, quick=True))) == catalogs(made)[-1:], "derived.json names it as well"


def test_objects_of_a_lost_catalog_are_orphans(root: Path) -> None:
    (root / catalogs(root)[-1]).unlink()
    report = run(root, quick=True)
    assert report.restore_points == (1,)
    assert {n.what for n in report.notes if n.bytes} == {"is an orphan: no catalog that can be read refers to it"}


def test_a_catalog_in_place_of_another_is_found(root: Path) -> None:
    """Each says its own number, and the checksum of the one before it."""
    *_, before, newest = catalogs(root)
    shutil.copy(root / before, root / newest)
    (text,) = findings_of(run(root, quick=True))[newest]
    assert text.startswith("is of catalog ")


def test_a_catalog_of_another_archive(root: Path, tmp_path: Path) -> None:
    make_archive(open_store(str(tmp_path / "other")), copied=False)
    for key in catalogs(root)[1:3]:
        shutil.copy(tmp_path / "other" / key, root / key)
    messages = findings_of(run(root, quick=True))
    assert list(messages) == catalogs(root)[1:3]
    assert all(text.startswith("belongs to archive ") for (text,) in messages.values())


def rewrite(root: Path, key: str, **changed: Any) -> None:
    """A catalog with other values and a checksum of its own that is right."""
    catalog = load(Catalog, (root / key).read_bytes(), key)
    fields = {name: getattr(catalog, name) for name in catalog.__struct_fields__}
    (root / key).write_bytes(dump(Catalog(**fields | {"checksum": ""} | changed)))


def test_a_catalog_that_the_next_one_does_not_follow(root: Path) -> None:
    key = catalogs(root)[1]
    rewrite(root, key, next_point=77)
    assert findings_of(run(root, quick=True)) == {key: ["is not the catalog that the next one follows"]}


def test_a_table_of_an_earlier_catalog(root: Path) -> None:
    """An undo needs it."""
    store = open_store(str(root))
    newest = open_archive(store).committed.catalog
    assert newest is not None
    now = {ref.key for name in newest.tables.__struct_fields__ for ref in getattr(newest.tables, name)}
    key = min(f"tables/{path.name}" for path in (root / "tables").iterdir())
    assert key not in now
    flip(root / key)
    assert findings_of(run(root, quick=True)) == {key: ["is not what its catalog says"]}
    (root / key).unlink()
    assert findings_of(run(root, quick=True)) == {key: ["is missing, its catalog refers to it"]}


def test_the_table_of_a_restores_plan(root: Path) -> None:
    store = open_store(str(root))
    archive = open_archive(store)
    content = select_content(RestoreRequest.of(Restore()), store, archive)
    write_plan(store, plan_restore(RestoreRequest.of(Restore(restore_id="r")), content, "c"), inline=0)
    (key,) = [entry.key for entry in store.list("restores/r/segments-")]
    assert findings_of(run(root, quick=True)) == {}
    assert key not in str(run(root, quick=True).notes)
    flip(root / key)
    assert findings_of(run(root, quick=True)) == {key: ["is not what the plan of restore r says"]}
    (root / key).unlink()
    assert findings_of(run(root, quick=True)) == {key: ["is missing, the plan of restore r refers to it"]}


def test_the_topics_of_a_restore_are_of_its_archive_its_folder_and_their_number(root: Path) -> None:
    store = open_store(str(root))
    archive_id = open_archive(store).info.id
    note_topics(store, "r", [target_topic()], cluster_id="c", archive_id=archive_id)
    report = run(root, quick=True)
    assert (findings_of(report), "restores/" in str(report.notes)) == ({}, False)
    (root / "restores/r/topics-1.json").rename(root / "restores/r/topics-2.json")
    assert findings_of(run(root, quick=True)) == {"restores/r/topics-2.json": ["is number 1 of its kind"]}
    (root / "restores/r").rename(root / "restores/s")
    (root / "restores/s/topics-2.json").rename(root / "restores/s/topics-1.json")
    assert findings_of(run(root, quick=True)) == {
        "restores/s/topics-1.json": ["is of restore r, not of the folder it is in"]
    }
    shutil.rmtree(root / "restores/s")
    other = "0" * len(archive_id)
    note_topics(store, "r", [target_topic()], cluster_id="c", archive_id=other)
    assert findings_of(run(root, quick=True)) == {
        "restores/r/topics-1.json": [f"is of a restore from archive {other}, this is {archive_id}"]
    }


def test_the_lease_of_a_mirrors_apply_half(root: Path) -> None:
    store, key = open_store(str(root)), layout.mirror_key("A", "B", layout.LOCK)
    with HeldLease(store, "mirror", 60, key=key):
        report = run(root, quick=True)
        assert (findings_of(report), key in str(report.notes)) == ({}, False)
    cut(root / key)
    assert [*findings_of(run(root, quick=True))] == [key]


def test_a_repair_goes_on_from_an_earlier_catalog(root: Path) -> None:
    """Records that an adoption passed over are no damage any more."""
    key = catalogs(root)[-1]
    flip(root / key)
    assert key in findings_of(run(root, quick=True))
    assert cli.main(["repair", "--confirm", str(root)]) in (0, 13)
    assert run(root).findings == ()
    assert (root / key).exists()


def test_archive_json_of_another_archive(root: Path, made: Path, tmp_path: Path) -> None:
    other = make_archive(open_store(str(tmp_path / "other")), copied=False).info.id
    here = open_archive(open_store(str(root))).info.id
    shutil.copy(tmp_path / "other" / "archive.json", root / "archive.json")
    assert findings_of(run(root)) == {"archive.json": [f"is of archive {other}, every catalog of {here}"]}
    assert cli.main(["repair", "--confirm", str(root)]) == 0
    assert run(root).findings == ()
    assert open_archive(open_store(str(root))).info.id == here


def test_marks_of_another_archive(root: Path) -> None:
    (root / "catalog" / "latest.json").write_bytes(dump(Latest(archive_id="0" * 32, number=1)))
    (root / "derived.json").write_bytes(dump(Derived(archive_id="0" * 32, catalog=1)))
    messages = findings_of(run(root, quick=True))
    assert list(messages) == ["catalog/latest.json", "derived.json"]
    assert all(text.startswith("belongs to archive 0000") for (text,) in messages.values())


def test_segments_that_overlap_lie_outside_or_do_not_add_up(root: Path, made: Path) -> None:
    archive = open_archive(open_store(str(root)))
    again = next(s for s in archive.added(0, 1) if s.topic == "orders" and s.partition == 0)
    table_with(root, lambda table: [*table, again])
    messages = findings_of(run(root, quick=True))
    assert any("begins at offset" in text for text in messages[SEGMENT])
    assert any("its segments have" in text for text in messages[f"{point_folder(root, 2)}manifest.json"])
    shutil.rmtree(root)
    shutil.copytree(made, root)
    table_with(root, lambda table: [*table[:-1], replace(table[-1], last=99)])
    messages = findings_of(run(root))
    (key,) = [name for name in messages if name.endswith("_records")]
    assert any("outside of 0 to 40" in text for text in messages[key])
    assert any("has last 39, its restore point says 99" in text for text in messages[key])


def test_a_segment_that_is_named_elsewhere(root: Path) -> None:
    table_with(root, lambda table: [*table[:-1], replace(table[-1], key=OTHER)])
    messages = findings_of(run(root, quick=True))
    assert any("is named by the catalog where" in text for text in messages[OTHER])


def test_timestamps_and_the_largest_record(root: Path) -> None:
    table_with(root, lambda t: [*t[:-1], replace(t[-1], min_timestamp=1, max_timestamp=2, largest=3)])
    (messages,) = findings_of(run(root)).values()
    assert len(messages) == 3
    assert findings_of(run(root, quick=True)) == {}


# The command `kbackup verify`.


def test_verify_ends_with_13_and_names_what_is_missing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 0
    assert "0 findings; 2 restore points" in capsys.readouterr().out
    (root / SEGMENT).unlink()
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 13
    out, _ = capsys.readouterr()
    assert f"{SEGMENT}: is missing\n  hint: take it from a bucket version" in out
    assert "1 finding;" in out
    assert cli.main(["verify", "-a", str(root), "--quick", "--json"]) == 13
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == [
        {"file": SEGMENT, "what": "is missing", "hint": "take it from a bucket version or another copy of the archive"}
    ]


def test_verify_refuses_with_a_hint(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path / "nothing"), "--quick"]) == 10
    assert "hint: check the address" in capsys.readouterr().err
    assert cli.main(["verify", str(root), "--quick", "--restore-point", "first"]) == 2
    assert "there is no restore point first" in capsys.readouterr().err
    closed = ["--s3-endpoint-url", "http://127.0.0.1:9", "--set", "s3.max_attempts=1", "--s3-region", "x"]
    keys = ["--set", "s3.access_key_id=a", "--set", "s3.secret_access_key=b"]
    assert cli.main(["verify", "s3://bucket/x", "--quick", *closed, *keys]) == 14
    assert "hint: " in capsys.readouterr().err


# The reports of drills in an archive are verified with it.


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


@pytest.mark.exhaustive(keep=6)
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
def test_damage_of_a_drill_is_named(store: Store, change: Callable[[Store], object], key: str, message: str) -> None:
    change(store)
    assert [(k, w) for k, w in found(store).items() if message in w and k == key]
    assert len(found(store)) == 1


def test_a_page_alone_is_of_a_drill_that_was_cut_off(store: Store) -> None:
    store.delete([REPORT])
    assert found(store) == {}


# Verification of a folder of the Java tool.


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


# Verification of archives with differences that are no damage, and of derived files.


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


# Each verification is recorded in its archive, and the records are verified with it.


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


def found_verifications(store: Store) -> dict[str, str]:
    findings = Findings()
    check_verifications(store, [entry.key for entry in store.list()], findings)
    return {f.file: f.what for f in findings.entries} | {n.file: n.what for n in findings.notes}


def test_a_recorded_verification_that_was_moved_is_refused(root: Path) -> None:
    store = MemoryStore()
    record_verification(store, run(root, quick=True), STARTED, partial=False)
    (entry,) = store.list()
    assert found_verifications(store) == {}
    moved = layout.verification_key("2026-01-31T05-30-00-000Z-full-ab")
    store.put(moved, store.get(entry.key))
    store.put(layout.VERIFICATIONS + "more", b"")
    messages = found_verifications(store)
    assert "is of verification" in messages[moved]
    assert messages[layout.VERIFICATIONS + "more"] == "is no file of a verification"
    store.delete([moved, layout.VERIFICATIONS + "more"])
    store.put(entry.key, store.get(entry.key).replace(b"quick", b"fully"))
    assert [*found_verifications(store)] == [entry.key]


def test_a_java_folder_takes_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "java" / "orders"
    folder.mkdir(parents=True)
    (folder / "index_partition_000").write_bytes(b"\x01")
    assert cli.main(["verify", str(folder.parent), "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["archive_id"] == VERIFICATIONS_JAVA
    assert not (folder.parent / "verifications").exists()


def test_verification_does_without_the_libraries_of_a_cluster() -> None:
    """It looks at stored documents alone, and these libraries take longer to load than a small archive to verify."""
    code = "import sys, kbackup.jobs.verify; print('kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
