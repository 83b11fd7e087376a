"""Folders below TMPDIR that live no longer than their process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kbackup.util import scratch
from kbackup.util.scratch import ScratchFolder, remove_abandoned

_MAKE_AND_WAIT = """
from kbackup.util.scratch import ScratchFolder
folder = ScratchFolder("test")
(folder.path / "key.pem").write_text("secret")
print(folder.path, flush=True)
input()
"""


@pytest.fixture
def tmpdir_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_in_another_process(tmpdir: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that makes a scratch folder and waits; return it and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAKE_AND_WAIT],
        env={**os.environ, "TMPDIR": str(tmpdir)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def make_older(folder: Path) -> None:
    """Let the lock of a folder look as if it had been made an hour ago."""
    hour_ago = time.time() - 3600
    os.utime(folder / scratch._LOCK, (hour_ago, hour_ago))


def test_only_this_user_can_read_a_scratch_folder(tmpdir_of_ours: Path) -> None:
    with ScratchFolder("test") as made:
        assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
        assert made.path.parent == tmpdir_of_ours


def test_a_scratch_folder_goes_with_all_that_it_holds(tmpdir_of_ours: Path) -> None:
    with ScratchFolder("test") as made:
        (made.path / "below").mkdir()
        (made.path / "below" / "file").write_text("text")
    made.remove()
    assert list(tmpdir_of_ours.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed(tmpdir_of_ours: Path) -> None:
    process, folder = make_in_another_process(tmpdir_of_ours)
    make_older(folder)
    process.kill()
    process.communicate()
    assert (folder / "key.pem").exists()
    remove_abandoned()
    assert not folder.exists()


def test_the_first_scratch_folder_of_a_process_removes_those_of_killed_ones(
    tmpdir_of_ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, folder = make_in_another_process(tmpdir_of_ours)
    make_older(folder)
    process.kill()
    process.communicate()
    scratch._swept.clear()
    with ScratchFolder("test"):
        assert not folder.exists()


def test_the_folder_of_a_running_process_stays(tmpdir_of_ours: Path) -> None:
    process, folder = make_in_another_process(tmpdir_of_ours)
    make_older(folder)
    remove_abandoned()
    assert (folder / "key.pem").exists()
    process.communicate("\n")


def test_a_folder_that_is_being_made_stays(tmpdir_of_ours: Path) -> None:
    folder = tmpdir_of_ours / "kbackup-test-new"
    folder.mkdir()
    (folder / scratch._LOCK).touch()
    remove_abandoned()
    assert folder.exists()


def test_a_folder_of_a_stopped_broker_stays(tmpdir_of_ours: Path) -> None:
    logs = tmpdir_of_ours / "kbackup-kafka-logs"
    logs.mkdir()
    (logs / ".lock").touch()
    (logs / "orders-0").mkdir()
    hour_ago = time.time() - 3600
    os.utime(logs / ".lock", (hour_ago, hour_ago))
    remove_abandoned()
    assert (logs / "orders-0").exists()


def test_folders_without_a_lock_and_links_stay(tmpdir_of_ours: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / scratch._LOCK).touch()
    make_older(elsewhere)
    (tmpdir_of_ours / "kbackup-test-link").symlink_to(elsewhere)
    older_version = tmpdir_of_ours / "kbackup-spark-of-an-older-version"
    older_version.mkdir()
    remove_abandoned()
    assert older_version.exists()
    assert elsewhere.exists()
