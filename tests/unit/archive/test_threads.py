"""Many threads read an archive's documents, in a process that has read none yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbackup.store import open_store
from tests.support.archives import make_archive

_FIRST_READS = """
import sys, threading
from kbackup.archive.models import Manifest, load
data = open(sys.argv[1], "rb").read()
start = threading.Barrier(8)
def read():
    start.wait()
    load(Manifest, data, "it")
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.exhaustive
def test_first_reads_at_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    archive = make_archive(store)
    manifest = tmp_path / "archive" / archive.restore_points[-1].documents[0]
    for _ in range(5):
        run = subprocess.run(
            [sys.executable, "-c", _FIRST_READS, str(manifest)], capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stderr) == (0, "")
