"""Run the line of restore.md that makes files of the Java tool of compressed segments."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kbackup.store.file import FileStore
from tests.project.docs.documents import ROOT
from tests.support.archives import make_archive
from tests.support.truth import plain_records


def test_the_line_makes_plain_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    make_archive(store)
    keys = [entry.key for entry in store.list("topics/") if "_records" in entry.key]
    plain = {key.removesuffix(".zst"): plain_records(store, key) for key in keys}
    assert plain.keys() != {*keys}
    (line,) = re.findall(r"`(find topics .*?)`", (ROOT / "infra/docs/restore.md").read_text("utf-8"))
    subprocess.run(["sh", "-ec", line], cwd=tmp_path, check=True, capture_output=True)
    there = [entry.key for entry in store.list("topics/") if "_records" in entry.key]
    assert {key: store.get(key) for key in there} == plain
