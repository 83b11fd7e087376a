"""A backup that dies at each of its steps and writes, and is run again; at some of them by SIGKILL to the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import NoArchiveError
from kbackup.jobs.backup.job import backup
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.faults.conftest import BackUp, Counting, backup_arguments, options
from tests.faults.dying import Wish
from tests.faults.mortal import LONG, die
from tests.faults.process import run
from tests.faults.shop import Shop, check_archive
from tests.support.truth import PartitionRecords, in_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEPS = ("connect", "discover", "capture groups", "resolve ranges", "plan", "run", "commit", "refresh derived files")
UNBORN = [Wish("kill job", "before", "write archive.json"), Wish("kill job", "after", "write archive.json")]
UNCOMMITTED = [
    *(Wish("kill job", "before", f"phase {step}") for step in _STEPS[:-1]),  # and so after the phase before it
    Wish("kill job", "after", "phase connect"),  # without the lease yet
    Wish("kill job", "after", "phase connect", 2),
    Wish("kill job", "before", "write catalog/0*"),  # of the fence
    Wish("kill job", "after", "write catalog/0*"),
    Wish("kill job", "after", "write catalog/latest.json"),
    pytest.param(Wish("kill job", "before", "write topics/*_records*"), marks=pytest.mark.soak),
    Wish("kill job", "before", "write topics/*_index"),
    pytest.param(Wish("kill job", "before", "write topics/*_index", 4), marks=pytest.mark.soak),
    Wish("kill job", "after", "write topics/*_index", 9),
    Wish("kill job", "before", "write points/*/groups.json"),
    Wish("kill job", "before", "write points/*/manifest.json"),
    Wish("kill job", "after", "write points/*/manifest.json"),
    Wish("kill job", "before", "write tables/*"),
    Wish("kill job", "after", "write tables/*", 2),
    Wish("kill job", "before", "write catalog/0*", 2),
]
COMMITTED = [
    Wish("kill job", "after", "write catalog/0*", 2),
    Wish("kill job", "before", "write catalog/latest.json", 2),
    Wish("kill job", "after", "phase commit"),
    Wish("kill job", "before", "phase refresh derived files"),
    Wish("kill job", "before", "write topics/*/index_partition_*"),
    Wish("kill job", "after", "write topics/*/index_partition_*", 2),
    Wish("kill job", "before", "write topics/*/consumer_offsets_*", 3),
    Wish("kill job", "before", "write derived.json", 2),  # the fence writes the first
    Wish("kill job", "after", "phase refresh derived files"),
]


KILLED = (
    Wish("kill job", "before", "write topics/*_index", 4),
    Wish("kill job", "before", "write catalog/0*", 2),
    Wish("kill job", "before", "write topics/*/index_partition_*"),
)
"""Here the command dies, with all its processes; elsewhere the job of this process, so far as its store can tell."""


Dead = Callable[[Wish], FileStore]


@pytest.fixture
def dead(books: tuple[Shop, Path], tmp_path: Path, spark: SparkSession) -> Dead:
    """The archive that a run left which died so."""
    shop, half = books

    def die_so(wish: Wish) -> FileStore:
        archive = tmp_path / "archive"
        if wish not in UNBORN:
            shutil.copytree(half, archive)
        store = FileStore(archive)
        if wish in KILLED:
            ended = run(tmp_path / "run", backup_arguments(shop, str(archive)), wish)
            assert ended.code == -9, ended.err  # the next run takes its lease over
        else:
            die(store, wish, tmp_path / "life", work)
        return store

    def work(store: Store) -> None:
        backup(options(shop, lease_seconds=LONG), shop.broker.client(), store, lambda: spark, Counting())

    return die_so


def _strays(store: Store) -> dict[str, str]:
    """The records objects that no restore point names, with their etags."""
    archive = open_archive(store)
    named = archive.keys()
    return {e.key: e.etag for e in store.list(layout.TOPICS) if "_records" in e.key and e.key not in named}


def _count(rows: PartitionRecords) -> int:
    return sum(map(len, rows.values()))


@pytest.mark.parametrize("wish", UNBORN, ids=lambda wish: wish.name)
def test_killed_while_the_archive_is_made(wish: Wish, dead: Dead, shop: Shop, back_up: BackUp) -> None:
    store = dead(wish)
    if wish.when == "before":
        with pytest.raises(NoArchiveError):
            open_archive(store)
    report, _ = back_up(store)
    assert (report.restore_point, report.parent) == (1, None)
    check_archive(store, shop)


@pytest.mark.parametrize("wish", UNCOMMITTED, ids=lambda wish: wish.name)
def test_killed_before_the_commit(wish: Wish, dead: Dead, shop: Shop, back_up: BackUp) -> None:
    store = dead(wish)
    archive = open_archive(store)
    assert [m.number for m in archive.restore_points] == [1], "an unfinished run must not show"
    archived = in_archive(store)
    strays = _strays(store)
    report, read = back_up(store)

    archive = check_archive(store, shop)
    assert report.parent == 1
    assert [m.number for m in archive.restore_points] == [1, report.restore_point]
    assert in_archive(store, archive.restore_point(1)) == archived, "the first restore point must not change"
    assert report.restore_point == 2, "an interrupted run takes no number"
    added = {s.key: s for s in archive.added(1, 2)}
    assert {key: store.stat(key).etag for key in strays} == strays, "whole segments are taken over as they are"
    assert strays.keys() <= added.keys()
    taken_over = sum(added[key].count for key in strays)
    assert read == _count(in_archive(store)) - _count(archived) - taken_over, "and not read again"


@pytest.mark.parametrize("wish", COMMITTED, ids=lambda wish: wish.name)
def test_killed_after_the_commit(wish: Wish, dead: Dead, shop: Shop, back_up: BackUp) -> None:
    store = dead(wish)
    archive = open_archive(store)
    assert [m.number for m in archive.restore_points] == [1, 2]
    archived = in_archive(store)

    report, read = back_up(store)

    archive = check_archive(store, shop)
    assert (report.restore_point, report.parent, read) == (3, 2, 0)
    assert in_archive(store, archive.restore_point(2)) == archived
    assert [m.number for m in archive.restore_points] == [1, 2, 3]
