"""Ctrl-C and SIGTERM in the middle of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.lease import read_lease
from kbackup.archive.reader import open_archive
from kbackup.store.file import FileStore
from tests.faults.conftest import BackUp, backup_arguments
from tests.faults.dying import Act, Wish
from tests.faults.process import run
from tests.faults.shop import Shop, check_archive


@pytest.mark.parametrize("act", ["interrupt", "terminate", "terminate all"])
@pytest.mark.parametrize("event", ["phase discover", "write topics/*_index"])
def test_an_interrupted_backup_cleans_up(
    act: Act, event: str, archive: Path, tmp_path: Path, shop: Shop, back_up: BackUp
) -> None:
    store = FileStore(archive)
    wish = Wish(act, "after", event)
    ended = run(tmp_path / "run", backup_arguments(shop, str(archive), lease_seconds=600), wish)
    assert ended.code == 130, ended.err
    assert "kbackup: interrupted" in ended.err
    assert "Traceback" not in ended.err
    assert ended.document["error"]["exit_code"] == 130
    assert read_lease(store)[0].released, "the lease is given back"
    assert [m.number for m in open_archive(store).restore_points] == [1]
    back_up(store)
    check_archive(store, shop)
