"""`keep`, `release`, `label`, `log` and `promote`, and labels wherever a command takes a restore point."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing
from kbackup.store import open_store
from tests.support.printed import Kbackup


def test_a_point_is_kept_and_released(mine: str, kbackup: Kbackup) -> None:
    assert kbackup("keep", "1", "-a", mine).out == "restore point 1 is pinned\n"
    assert kbackup("keep", "1", "-a", mine).out == "restore point 1 was pinned already\n"
    document = kbackup("keep", "latest", "-a", mine, "--json").json
    assert (document["restore_point"], document["changed"], document["pinned"]) == (2, True, [1, 2])
    assert kbackup("release", "1", "-a", mine).out == "restore point 1 is no longer pinned\n"
    assert "restore point 1 is not pinned" in kbackup("release", "1", "-a", mine, code=2).err
    assert kbackup("release", "2", "-a", mine, "--json").json["pinned"] == []


def test_a_pinned_point_does_not_expire(mine: str, kbackup: Kbackup) -> None:
    for command, remaining in (("keep", [1, 2]), ("release", [2])):
        kbackup(command, "1", "-a", mine)
        kbackup("expire", mine, "--keep-last", "1", "--confirm")
        assert [p["number"] for p in kbackup("list", mine, "--json").json["restore_points"]] == remaining


def test_a_label_is_set_moved_and_removed(mine: str, kbackup: Kbackup) -> None:
    out = kbackup("label", "latest", "before-migration", "-a", mine).out
    assert out == "restore point 2 has label before-migration\n"
    document = kbackup("label", "1", "first", "-a", mine, "--json").json
    assert document["labels"] == {"before-migration": 2, "first": 1}
    moved = kbackup("label", "first", "before-migration", "-a", mine, "--json").json
    assert (moved["restore_point"], moved["labels"]) == (1, {"before-migration": 1, "first": 1})
    assert kbackup("label", "--remove", "first", "-a", mine).out == "label first is removed\n"
    assert kbackup("label", "2", "x", "-a", mine, "--json").json["labels"] == {"before-migration": 1, "x": 2}


@pytest.mark.parametrize(
    "label", ["7", "latest", "all", "source", "target", "-x", "a b", "a/b", "", "x" * 101, "ünder"]
)
def test_texts_that_can_be_no_label(mine: str, label: str, kbackup: Kbackup) -> None:
    assert "can't be used" in kbackup("label", "-a", mine, "--", "1", label, code=2).err
    assert open_archive(open_store(mine)).state.labels == {}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["label"], "a restore point or a label is missing"),
        (["label", "1"], "a restore point or a label is missing"),
        (["label", "1", "--remove", "x"], "exclude each other"),
        (["label", "--remove", "x"], "no restore point has label 'x'"),
        (["label", "9", "x"], "there is no restore point 9"),
        (["keep", "9"], "there is no restore point 9"),
        (["keep", "before"], "there is no restore point before"),
        (["release", "9"], "there is no restore point 9"),
        (["keep"], "missing argument"),
    ],
)
def test_a_restore_point_or_label_that_is_not_there_is_refused(
    mine: str, args: list[str], message: str, kbackup: Kbackup
) -> None:
    before = open_archive(open_store(mine)).state.number
    assert message in kbackup(*args, "-a", mine, code=2).err
    assert open_archive(open_store(mine)).state.number == before, "nothing was committed"


def test_keep_and_label_work_beside_a_writing_run(mine: str, kbackup: Kbackup) -> None:
    """They need no lease, and the run commits after them."""
    store = open_store(mine)
    with HeldLease(store, "kbackup backup", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        kbackup("keep", "1", "-a", mine)
        kbackup("label", "2", "before", "-a", mine)
        writing.end()
    state = open_archive(store).state
    assert ({*state.pins}, state.labels, state.open_run) == ({1}, {"before": 2}, None)


def test_a_label_stands_for_its_point(mine: str, kbackup: Kbackup, tmp_path: Path) -> None:
    """A wrong label names the one that was probably meant."""
    kbackup("label", "1", "before-migration", "-a", mine)
    chosen = ("-a", mine, "--restore-point", "before-migration")
    by_label = kbackup("info", *chosen, "--json").json
    assert by_label == kbackup("info", "-a", mine, "--restore-point", "1", "--json").json
    for command in (["info"], ["ls"], ["groups", "show"]):
        assert kbackup(*command, *chosen, "--json").json["restore_point"] == 1
    assert kbackup("diff", "before-migration", "latest", "-a", mine, "--json").json["a"] == "restore point 1"
    kbackup("copy", str(tmp_path / "copy"), *chosen)
    assert [p.number for p in open_archive(open_store(str(tmp_path / "copy"))).restore_points] == [1]
    wrong = kbackup("info", "-a", mine, "--restore-point", "before-migratoin", code=2)
    assert "did you mean 'before-migration'?" in wrong.err


def test_the_label_of_a_backup_is_looked_at_first(tmp_path: Path, kbackup: Kbackup) -> None:
    """Before a cluster is asked, or anything is written."""
    archive = str(tmp_path / "archive")
    backup = ["backup", "-a", archive, "--set", "source.bootstrap.servers=127.0.0.1:1"]
    assert "label '7' can't be used" in kbackup(*backup, "--label", "7", code=2).err
    assert "--label excludes --follow" in kbackup(*backup, "--label", "x", "--follow", code=2).err
    assert not Path(archive).exists()


def test_log_lists_every_catalog_with_what_it_did(mine: str, kbackup: Kbackup) -> None:
    kbackup("keep", "1", "-a", mine)
    kbackup("label", "2", "before", "-a", mine)
    rows = kbackup("log", mine, "--json").json["history"]
    assert [row["kind"] for row in rows] == ["begin", "backup", "begin", "backup", "keep", "label"]
    assert [row["catalog"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["summary"] for row in rows[-2:]] == ["restore point 1 pinned", "restore point 2 is before"]
    assert all(" pid " in row["by"] for row in rows)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert kbackup("log", mine, "--limit", "2", "--json").json["history"] == rows[-2:]
    (_, line) = kbackup("log", mine, "--limit", "1").lines
    assert line.split()[0] == "6"
    assert "restore point 2 is before" in line
    kbackup("log", str(Path(mine).parent / "nothing"), code=10)


def test_promote_makes_a_copy_an_archive_of_its_own(mine: str, tmp_path: Path, kbackup: Kbackup) -> None:
    copy = str(tmp_path / "copy")
    kbackup("copy", copy, "-a", mine)
    assert "this archive is not a copy" in kbackup("promote", mine, code=1).err
    assert kbackup("promote", copy, "--json").json["origin"] == mine
    assert open_archive(open_store(copy)).state.origin is None
    assert "this archive is not a copy" in kbackup("promote", copy, code=1).err
    assert kbackup("log", copy, "--json").json["history"][-1]["kind"] == "promote"
    assert "is an archive of its own" in kbackup("copy", copy, "-a", mine, code=1).err
