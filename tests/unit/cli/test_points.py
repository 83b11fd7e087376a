"""`keep`, `release`, `label`, `log` and `promote`, and labels wherever a command takes a restore point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing
from kbackup.cli import main
from kbackup.store import open_store
from tests.support.archives import make_archive

Said = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path) -> str:
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    return store.url


def told(capsys: Said, *args: str) -> Any:
    capsys.readouterr()
    assert main([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Said, *args: str, code: int = 2) -> str:
    capsys.readouterr()
    assert main([*args]) == code
    return capsys.readouterr().err


def test_keep_and_release(root: str, capsys: Said) -> None:
    assert main(["keep", "1", "-a", root]) == 0
    assert capsys.readouterr().out == "restore point 1 is pinned\n"
    assert main(["keep", "1", "-a", root]) == 0
    assert capsys.readouterr().out == "restore point 1 was pinned already\n"
    document = told(capsys, "keep", "latest", "-a", root)
    assert (document["restore_point"], document["changed"], document["pinned"]) == (2, True, [1, 2])
    assert main(["release", "1", "-a", root]) == 0
    assert capsys.readouterr().out == "restore point 1 is no longer pinned\n"
    assert "restore point 1 is not pinned" in refused(capsys, "release", "1", "-a", root)
    assert told(capsys, "release", "2", "-a", root)["pinned"] == []


def test_a_pinned_point_does_not_expire(root: str, capsys: Said) -> None:
    assert main(["keep", "1", "-a", root]) == 0
    assert main(["expire", root, "--keep-last", "1", "--confirm"]) == 0
    assert [p["number"] for p in told(capsys, "list", root)["restore_points"]] == [1, 2]
    assert main(["release", "1", "-a", root]) == 0
    assert main(["expire", root, "--keep-last", "1", "--confirm"]) == 0
    assert [p["number"] for p in told(capsys, "list", root)["restore_points"]] == [2]


def test_labels(root: str, capsys: Said) -> None:
    assert main(["label", "latest", "before-migration", "-a", root]) == 0
    assert capsys.readouterr().out == "restore point 2 has label before-migration\n"
    document = told(capsys, "label", "1", "first", "-a", root)
    assert document["labels"] == {"before-migration": 2, "first": 1}
    moved = told(capsys, "label", "first", "before-migration", "-a", root)
    assert (moved["restore_point"], moved["labels"]) == (1, {"before-migration": 1, "first": 1})
    assert main(["label", "--remove", "first", "-a", root]) == 0
    assert capsys.readouterr().out == "label first is removed\n"
    assert told(capsys, "label", "2", "x", "-a", root)["labels"] == {"before-migration": 1, "x": 2}


@pytest.mark.parametrize(
    "label", ["7", "latest", "all", "source", "target", "-x", "a b", "a/b", "", "x" * 101, "ünder"]
)
def test_texts_that_can_be_no_label(root: str, label: str, capsys: Said) -> None:
    assert "can't be used" in refused(capsys, "label", "-a", root, "--", "1", label)
    assert open_archive(open_store(root)).state.labels == {}


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
        (["keep"], "Missing argument"),
    ],
)
def test_refusals(root: str, args: list[str], message: str, capsys: Said) -> None:
    before = open_archive(open_store(root)).state.number
    assert message in refused(capsys, *args, "-a", root)
    assert open_archive(open_store(root)).state.number == before, "nothing was committed"


def test_keep_and_label_work_beside_a_writing_run(root: str, capsys: Said) -> None:
    """They need no lease, and the run commits after them."""
    store = open_store(root)
    with HeldLease(store, "kbackup backup", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        assert main(["keep", "1", "-a", root]) == 0
        assert main(["label", "2", "before", "-a", root]) == 0
        writing.end()
    state = open_archive(store).state
    assert ({*state.pins}, state.labels, state.open_run) == ({1}, {"before": 2}, None)


def test_a_label_stands_for_its_point(root: str, capsys: Said) -> None:
    """A wrong label names the one that was probably meant."""
    assert main(["label", "1", "before-migration", "-a", root]) == 0
    by_label = told(capsys, "info", "-a", root, "--restore-point", "before-migration")
    assert by_label == told(capsys, "info", "-a", root, "--restore-point", "1")
    assert by_label["restore_point"] == 1
    shown = told(capsys, "ls", "-a", root, "--restore-point", "before-migration")
    assert shown["restore_point"] == 1
    assert told(capsys, "groups", "show", "-a", root, "--restore-point", "before-migration")["restore_point"] == 1
    assert told(capsys, "diff", "before-migration", "latest", "-a", root)["a"] == "restore point 1"
    copied = Path(root).parent / "copy"
    assert main(["copy", str(copied), "-a", root, "--restore-point", "before-migration"]) == 0
    assert [p.number for p in open_archive(open_store(str(copied))).restore_points] == [1]
    assert "did you mean 'before-migration'?" in refused(
        capsys, "info", "-a", root, "--restore-point", "before-migratoin"
    )


def test_the_label_of_a_backup_is_looked_at_first(tmp_path: Path, capsys: Said) -> None:
    """Before a cluster is asked, or anything is written."""
    archive = str(tmp_path / "archive")
    backup = ["backup", "-a", archive, "--set", "source.bootstrap.servers=127.0.0.1:1"]
    assert "label '7' can't be used" in refused(capsys, *backup, "--label", "7")
    assert "--label excludes --follow" in refused(capsys, *backup, "--label", "x", "--follow")
    assert not Path(archive).exists()


def test_the_history(root: str, capsys: Said) -> None:
    assert main(["keep", "1", "-a", root]) == 0
    assert main(["label", "2", "before", "-a", root]) == 0
    capsys.readouterr()
    rows = told(capsys, "log", root)["history"]
    assert [row["kind"] for row in rows] == ["begin", "backup", "begin", "backup", "keep", "label"]
    assert [row["catalog"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["summary"] for row in rows[-2:]] == ["restore point 1 pinned", "restore point 2 is before"]
    assert all(" pid " in row["by"] for row in rows)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert told(capsys, "log", root, "--limit", "2")["history"] == rows[-2:]
    assert main(["log", root, "--limit", "1"]) == 0
    (_, line) = capsys.readouterr().out.splitlines()
    assert line.split()[0] == "6"
    assert "restore point 2 is before" in line
    assert main(["log", str(Path(root).parent / "nothing")]) == 10


def test_promote(root: str, tmp_path: Path, capsys: Said) -> None:
    copy = str(tmp_path / "copy")
    assert main(["copy", copy, "-a", root]) == 0
    assert "this archive is not a copy" in refused(capsys, "promote", root, code=1)
    document = told(capsys, "promote", copy)
    assert document["origin"] == root
    assert open_archive(open_store(copy)).state.origin is None
    assert "this archive is not a copy" in refused(capsys, "promote", copy, code=1)
    assert [row["kind"] for row in told(capsys, "log", copy)["history"]][-1] == "promote"
    assert "is an archive of its own" in refused(capsys, "copy", copy, "-a", root, code=1)
