"""Two writers of one archive, a writer that sleeps past its lease, and one whose worker dies."""

from __future__ import annotations

import signal
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import LockedError
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.file import FileStore
from tests.faults.conftest import SHORT_LEASE, BackUp, backup_arguments, free_lease, outwait_lease
from tests.faults.dying import Wish
from tests.faults.process import Kbackup, run
from tests.faults.shop import Shop, check_archive
from tests.support.truth import in_archive

if TYPE_CHECKING:
    from tests.conftest import Bucket


def _bytes_of(store: FileStore) -> dict[str, bytes]:
    """Every object but the lease."""
    return {e.key: store.get(e.key) for e in store.list() if e.key != layout.LOCK}


def test_the_second_writer_is_told_who_holds_the_archive(
    archive: Path, tmp_path: Path, shop: Shop, back_up: BackUp
) -> None:
    store = FileStore(archive)
    first_step = Wish("pause", "before", "phase discover")
    with Kbackup(tmp_path / "first", backup_arguments(shop, str(archive), lease_seconds=600), first_step) as first:
        first.wait_paused()
        second = run(tmp_path / "second", backup_arguments(shop, str(archive)))
        assert second.code == 11
        assert "is locked by kbackup backup on " in second.err
        assert f"{socket.gethostname()} (pid {first.pid}, since " in second.err
        assert second.document["error"]["type"] == "LockedError"
        with pytest.raises(LockedError):
            back_up(store)
        first.signal(signal.SIGCONT)
        assert first.wait().code == 0
    assert [m.number for m in check_archive(store, shop).restore_points] == [1, 2]
    back_up(store)  # a lease that was given back needs no waiting


@pytest.mark.parametrize(
    "asleep",
    [
        pytest.param(Wish("pause", "before", "phase plan"), marks=pytest.mark.soak),
        pytest.param(Wish("pause", "before", "write topics/*_records*", 2), marks=pytest.mark.soak),
        Wish("pause", "before", "write topics/*_index", 3),
        pytest.param(Wish("pause", "before", "phase commit"), marks=pytest.mark.soak),
        Wish("pause", "before", "write points/*/manifest.json"),
    ],
    ids=lambda wish: wish.name,
)
def test_a_sleeper_changes_nothing(asleep: Wish, archive: Path, tmp_path: Path, shop: Shop, back_up: BackUp) -> None:
    store, arguments = FileStore(archive), backup_arguments(shop, str(archive), lease_seconds=SHORT_LEASE)
    with Kbackup(tmp_path / "run", arguments, asleep) as sleeper:
        sleeper.wait_paused()
        outwait_lease(store)
        report, _ = back_up(store)
        check_archive(store, shop)
        archived, before = in_archive(store), _bytes_of(store)

        sleeper.signal(signal.SIGCONT)
        ended = sleeper.wait()

    assert ended.code == 11, ended.err
    assert open_archive(store).restore_point("latest").number == report.restore_point
    assert in_archive(store) == archived
    after = _bytes_of(store)
    assert {key: after[key] for key in before} == before, "the sleeper changed what was there"
    back_up(store)
    # what it wrote below the archived ends belongs to the sweep
    expire(store, Expiry(Policy(), None, timedelta(0)), 60, Silent(), confirm=True)
    check_archive(store, shop)


def test_a_sleeper_leaves_newer_derived_files_alone(archive: Path, tmp_path: Path, shop: Shop, back_up: BackUp) -> None:
    """A paused run has committed; derived files that it would write after the pause are outdated."""
    store = FileStore(archive)
    asleep = Wish("pause", "before", "write topics/*/consumer_offsets_*")
    arguments = backup_arguments(shop, str(archive), lease_seconds=SHORT_LEASE)
    with Kbackup(tmp_path / "run", arguments, asleep) as sleeper:
        sleeper.wait_paused()
        outwait_lease(store)
        back_up(store)
        before = _bytes_of(store)
        sleeper.signal(signal.SIGCONT)
        ended = sleeper.wait()
    assert ended.code == 11, ended.err
    assert "restore point 2" in ended.err
    written = {key for key, data in _bytes_of(store).items() if before.get(key) != data}
    assert len(written) <= 1, "at most the one write that it slept in"
    check_archive(store, shop)


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param(Wish("kill worker", "before", "write topics/*_index", 2), marks=pytest.mark.soak),
        Wish("kill worker", "after", "write topics/*_index", 1),
    ],
    ids=lambda wish: wish.name,
)
def test_spark_tries_a_task_again_whose_worker_died(wish: Wish, archive: Path, tmp_path: Path, shop: Shop) -> None:
    ended = run(tmp_path / "run", backup_arguments(shop, str(archive)), wish)
    assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "moments").stat().st_size >= wish.nth, "nothing was killed"
    assert [m.number for m in check_archive(FileStore(archive), shop).restore_points] == [1, 2]


def test_killed_and_run_again_in_a_bucket(bucket: Bucket, tmp_path: Path, shop: Shop) -> None:
    """With the real store: no restore point of the dead run, its segments in that of the next."""
    url = f"{bucket.url}/nightly"
    store = open_store(url, {"s3": bucket.options})
    wish = Wish("kill job", "before", "write topics/*_index", 5)
    assert run(tmp_path / "dead", backup_arguments(shop, url), wish, bucket.env).code == -9
    assert not open_archive(store).restore_points
    written = {e.key: e.etag for e in store.list(layout.TOPICS)}
    assert len(written) >= 9
    free_lease(store)

    ended = run(tmp_path / "next", backup_arguments(shop, url), None, bucket.env)

    assert ended.code == 0, ended.err
    assert ended.document["restore_point"] == 1, "an interrupted run takes no number"
    check_archive(store, shop)
    assert {key: store.stat(key).etag for key in written} == written
    uploads = bucket.client().list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    assert not uploads
