"""The Java tool's folder becomes an archive with the same records, groups and partitions, and the folder untouched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.errors import LockedError, NoArchiveError, RefusedError, UsageError
from kbackup.jobs.adopt import adopt
from kbackup.jobs.backup.job import check_identity
from kbackup.jobs.capture import LiveTopic
from kbackup.jobs.repair import RepairReport
from kbackup.jobs.verify import verify
from kbackup.library.reading import ArchiveReader
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.support.archives import make_archive
from tests.support.faulty_store import crashed
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.key_files import encrypted
from tests.support.memory_store import MemoryStore
from tests.support.repairs import no_spark
from tests.support.truth import archive_records


@pytest.fixture
def folder(tmp_path: Path) -> FileStore:
    shutil.copytree(ROOT / "archive", tmp_path / "java")
    return FileStore(tmp_path / "java")


def run(store: Store, confirm: bool = True) -> RepairReport:
    return adopt(store, confirm, 60, no_spark, Silent())


def objects(store: Store) -> dict[str, bytes]:
    return {entry.key: store.get(entry.key) for entry in store.list()}


def check_truth(store: Store) -> None:
    for partition in PARTITIONS:
        held = archive_records(store, partition.topic)
        assert held[partition.number] == partition.truth(), str(partition)


def test_every_record_and_group_is_in_the_archive(folder: FileStore) -> None:
    java, before = objects(folder), ArchiveReader(folder, "latest").overview()
    report = run(folder)
    assert (report.records, report.losses) == (385, ())
    check_truth(folder)
    after = ArchiveReader(folder, "latest").overview()
    assert after.groups == before.groups
    for old, new in zip(before.topics, after.topics, strict=True):
        assert (old.name, old.groups) == (new.name, new.groups)
        assert [(p.partition, p.sums.records) for p in old.partitions] == [
            (p.partition, p.sums.records) for p in new.partitions
        ]
    assert any("configs" in line for line in after.not_known)
    assert after.newest is not None
    assert after.newest.origin == "folder"
    assert {key: data for key, data in objects(folder).items() if key in java} == java
    assert verify(folder, "all", True, no_spark, Silent()).findings == ()
    with pytest.raises(RefusedError, match="is an archive already"):
        run(folder)


def test_the_topics_folders_are_such_folders_again(folder: FileStore) -> None:
    """The Java tool may go on with them: the same names and bytes, but for partitions without a record."""
    run(folder)
    for key, data in objects(folder).items():
        if key.startswith(layout.TOPICS) and ("_records" in key or key.endswith("_index")):
            assert folder.get(key.removeprefix(layout.TOPICS)) == data


def test_a_dry_run_writes_nothing(folder: FileStore) -> None:
    before = objects(folder)
    report = run(folder, confirm=False)
    assert (report.new_point, report.records) == (1, 385)
    assert objects(folder) == before


def test_damaged_segments_are_skipped_and_reported(folder: FileStore) -> None:
    name = "payments/segment_partition_000_from_offset_00000000{}_records"
    data = folder.get(name.format("66"))
    folder.put(name.format("66"), data[:-1])
    folder.delete([name.format("00")])
    report = run(folder)
    left_out = [line.partition(":")[0] for line in report.warnings if line.endswith("; left out")]
    assert left_out == [name.format("00"), name.format("66")]
    assert [loss.partition(" of ")[0] for loss in report.losses] == ["offsets 0 to 132", "offsets 66 to 132"]
    assert report.is_loss
    held = archive_records(folder, "payments")[0]
    assert held == [r for p in PARTITIONS if p.topic == "payments" for r in p.truth() if r.offset >= 133]
    assert verify(folder, "all", True, no_spark, Silent()).findings == ()


def test_folder_of_a_killed_sink_is_adopted(tmp_path: Path) -> None:
    folder = FileStore(torn_folder(tmp_path / "java"))
    torn = objects(folder)
    report = run(folder)
    assert (report.records, report.losses, report.is_loss) == (385, (), False)
    for file, what in FLAWS.items():
        assert [text for text in report.warnings if text.startswith(f"file {file} {what}")], file
    assert len(report.warnings) == len(FLAWS)
    assert open_archive(folder).restore_point("latest").warnings == report.warnings
    check_truth(folder)
    assert verify(folder, "all", True, no_spark, Silent()).findings == ()
    assert {key: data for key, data in objects(folder).items() if key in torn} == torn


def test_an_adoption_that_was_cut_off_is_done_again(folder: FileStore) -> None:
    """At any write: what it had copied counts, and there is one restore point then."""
    before = MemoryStore()
    for entry in folder.list():
        before.put(entry.key, folder.get(entry.key))
    for store in crashed(before, run, step=7):
        if open_or_create(store).restore_points:
            continue
        report = run(store)
        assert report.records == 385
        check_truth(store)
        assert [p.number for p in open_archive(store).restore_points] == [report.new_point]
        assert verify(store, "all", True, no_spark, Silent()).findings == ()


def test_a_folder_that_can_not_be_adopted_is_refused(folder: FileStore, tmp_path: Path) -> None:
    with pytest.raises(NoArchiveError):
        run(FileStore(tmp_path / "nothing"))
    make_archive(FileStore(tmp_path / "archive"))
    with pytest.raises(RefusedError, match="is an archive already"):
        run(FileStore(tmp_path / "archive"))
    with pytest.raises(UsageError, match="is not encrypted"):
        run(encrypted(folder, tmp_path))
    with HeldLease(folder, "kbackup backup", 60), pytest.raises(LockedError):
        run(folder)


def test_a_backup_asks_whether_topics_are_the_same(folder: FileStore) -> None:
    run(folder)
    head = open_archive(folder).head
    live = [LiveTopic("payments", "an id", {}), LiveTopic("new", "another", {})]
    with pytest.raises(RefusedError, match="no id of topic payments") as raised:
        check_identity(head, live, adopt=False)
    assert "--adopt-topics" in raised.value.hint
    check_identity(head, live, adopt=True)
    check_identity(head, live[1:], adopt=False)
    check_identity(head, [LiveTopic("payments", "", {})], adopt=False)
    check_identity(None, live, adopt=False)


def test_commands_say_what_they_did(folder: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder.url
    assert cli.main(["repair", root]) == 10
    assert "kbackup adopt" in capsys.readouterr().err
    assert cli.main(["adopt", root]) == 0
    out, err = capsys.readouterr()
    assert "restore point 1 to be made of 385 records in 14 whole segments" in out
    assert f"nothing was written; to do so: kbackup adopt {root} --confirm" in err
    assert cli.main(["adopt", root, "--confirm"]) == 0
    capsys.readouterr()
    folder.delete(["topics/payments/index_partition_000"])
    assert cli.main(["repair", root]) == 0
    out, err = capsys.readouterr()
    assert "topics/payments/index_partition_000: is to be written anew" in out
    assert "1 file to be mended" in out
    assert cli.main(["repair", root, "--confirm"]) == 0
    capsys.readouterr()
    assert cli.main(["repair", root]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    folder.delete([e.key for e in folder.list() if e.key.startswith((layout.CATALOG, layout.POINTS))])
    assert cli.main(["repair", root, "--confirm"]) == 3
    assert "restore point 1 made of 385 records" in capsys.readouterr().out


def test_an_archive_that_lost_its_restore_points_is_no_folder_to_adopt(folder: FileStore) -> None:
    """The folder was adopted once and its archive grew since: adopted anew, it would lack the later records."""
    run(folder)
    folder.delete([e.key for e in folder.list() if e.key.startswith((layout.CATALOG, layout.POINTS))])
    for gone in ([], [layout.DERIVED], [e.key for e in folder.list(layout.TABLES)], [layout.ARCHIVE]):
        folder.delete(gone)
        for confirm in (False, True):
            with pytest.raises(RefusedError, match="lost its restore points") as raised:
                run(folder, confirm)
            assert "kbackup repair" in raised.value.hint
