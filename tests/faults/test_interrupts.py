"""Ctrl-C and SIGTERM in the middle of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kbackup.archive import layout
from kbackup.archive.lease import read_lease
from kbackup.archive.models import load
from kbackup.archive.reader import open_archive
from kbackup.jobs.drill.report import DrillReport
from kbackup.store.file import FileStore
from tests.faults.conftest import BackUp, backup_arguments
from tests.faults.dying import Act, Wish
from tests.faults.process import run
from tests.faults.shop import Shop, check_archive
from tests.support.truth import group_names


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


PREFIX = "interrupted."


def arguments(shop: Shop, archive: Path) -> list[str]:
    return [
        "drill",
        "--json",
        f"--archive={archive}",
        f"--bootstrap-server={shop.broker.bootstrap}",
        "--set=spark.master=local[2]",
        "--set=restore.transaction_bytes=4KiB",
        "--on-source",
        f"--prefix={PREFIX}",
    ]


def names(shop: Shop) -> set[str]:
    """Of all topics and groups that there are."""
    admin = AdminClient(shop.broker.client())
    topics = {name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")}  # the broker's own
    return topics | group_names(admin)


@pytest.mark.parametrize(("act", "event", "nth"), [("interrupt", "transaction", 2), ("terminate", "phase groups", 1)])
def test_an_interrupted_drill_leaves_nothing(
    act: Act, event: str, nth: int, archive: Path, tmp_path: Path, shop: Shop
) -> None:
    before = names(shop)
    ended = run(tmp_path / "run", arguments(shop, archive), Wish(act, "after", event, nth))
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert ended.document["error"]["exit_code"] == 130
    assert names(shop) <= before
    store = FileStore(archive)
    (key,) = [e.key for e in store.list(layout.DRILLS) if e.key.endswith(layout.REPORT)]
    report = load(DrillReport, store.get(key), key)
    assert (report.result, report.left, report.prefix) == ("interrupted", (), PREFIX)
