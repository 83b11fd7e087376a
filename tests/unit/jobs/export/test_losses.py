"""Records that expired before Parquet files had them: told once, by exit code 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import lose_segments
from kbackup.cli import main
from kbackup.jobs.export import tables as parquet_export
from tests.support.archives import make_archive
from tests.support.growing_archive import expired, grow
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.usefixtures("addressed")


def test_records_that_expired_before_they_were_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parquet_export, "_write", lambda *_: [])
    store = MemoryStore()
    make_archive(store)
    command = ["export", "--archive", store.url, "--parquet", f"{tmp_path}/lake"]
    assert main(command) == 0
    for seq in range(3, 7):
        grow(store, seq, seq * 10, seq * 10 + 10)
    expired(store, before=45)
    capsys.readouterr()
    assert main(command) == 3
    said = capsys.readouterr()
    assert "warning: loss: records of orders-1 below offset 4" in said.err
    assert "lake was at restore point 2" in said.err
    assert main(command) == 0
    assert "warning" not in capsys.readouterr().err


def test_all_that_was_new_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_export, "_write", lambda *_: [])
    store = MemoryStore()
    make_archive(store)
    command = ["export", "--archive", store.url, "--parquet", f"{tmp_path}/lake", "--topic", "orders"]
    assert main(command) == 0
    grow(store, 3, 12, 15)
    expired(store, before=16)
    assert main(command) == 3
    assert main(command) == 0, "told once"


def test_damaged_records_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, by the export that they would have come with."""
    monkeypatch.setattr(parquet_export, "_write", lambda *_: [])
    store = MemoryStore()
    archive = make_archive(store)
    lost = {s.key: "its object is missing" for s in archive.added(1, 2)[:1]}
    commit(store, archive.committed, lambda s: lose_segments(s, lost), Author("repair", "", "test"))
    command = ["export", "--archive", store.url, "--parquet", f"{tmp_path}/lake"]
    assert main([*command[:-1], f"{tmp_path}/clicks", "--topic", "clicks"]) == 0
    capsys.readouterr()
    assert main(command) == 3
    assert "warning: loss: offsets 15 to 23 of orders-0: its object is missing" in capsys.readouterr().err
    assert main(command) == 0, "told once"
