"""A store that runs full in the middle of a backup. A file system of its own, in a name space of the run's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.store.file import FileStore
from tests.faults.conftest import backup_arguments
from tests.faults.shop import Shop, check_archive

ROOT = Path(__file__).parents[2]
_SCRIPT = """
set -eu
mount -t tmpfs -o size=96k tmpfs "$PLACE"
"$@" >"$OUT/full.out" 2>"$OUT/full.err" && exit 99
echo $? >"$OUT/full.code"
cp -a "$PLACE/archive" "$OUT/full"
mount -o remount,size=64m "$PLACE"
rm -f "$PLACE/archive/$LOCK"
"$@" >"$OUT/again.out" 2>"$OUT/again.err"
cp -a "$PLACE/archive" "$OUT/again"
"""


def test_a_file_system_that_runs_full(shop: Shop, tmp_path: Path) -> None:
    small_disk, out = tmp_path / "place", tmp_path / "out"
    for folder in (small_disk, out):
        folder.mkdir()
    command = [sys.executable, "-m", "kbackup", *backup_arguments(shop, str(small_disk / "archive"))]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _SCRIPT, "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PLACE": str(small_disk), "OUT": str(out), "LOCK": layout.LOCK, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    output = (out / "full.err").read_text()
    assert done.returncode == 0, done.stderr + output
    assert int((out / "full.code").read_text()) == 1
    assert "the store is full" in output
    assert "hint: " in output
    assert "Traceback" not in output
    full = FileStore(out / "full")
    assert not open_archive(full).restore_points
    check_archive(FileStore(out / "again"), shop)
