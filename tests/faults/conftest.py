"""A shop's topics, an archive with a first restore point of them, and what a run of ours is told."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbackup.archive import layout
from kbackup.archive.lease import read_lease
from kbackup.config.models import Backup
from kbackup.errors import NotFoundError
from kbackup.jobs.backup.job import BackupReport, backup
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.faults.shop import Shop, open_shop, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scripts.dev.kafka import Broker
    from tests.faults.mirrored import Mirror

SHORT_LEASE = 10
"""s, for tests where a lease runs out; elsewhere it holds, however busy the machine is."""
_SETTINGS: dict[str, Any] = {"segment_bytes": 8 << 10, "split_records": 150, "pack_records": 60, "lease_seconds": 120}
"""Partitions are cut, the small one is alone, each has several segments."""


class Counting:
    """A listener: the last count of the step 'run'."""

    def __init__(self) -> None:
        self.records = 0

    def phase(self, name: str) -> None: ...

    def progress(self, records: int, size: int, expected: int) -> None:
        self.records = max(self.records, records)


def options(shop: Shop, **other: Any) -> Backup:
    return Backup(topics=tuple(shop.topics), groups=(shop.group,), **(_SETTINGS | other))


def backup_arguments(shop: Shop, archive: str, **other: int | str) -> list[str]:
    """Return the command line of a backup with the same settings."""
    named = [f"--topic={t}" for t in shop.topics] + [f"--group={shop.group}"]
    settings = [f"--set=backup.{name}={value}" for name, value in {**_SETTINGS, **other}.items()]
    server = f"--bootstrap-server={shop.broker.bootstrap}"
    return ["backup", "--json", f"--archive={archive}", server, "--set=spark.master=local[2]", *named, *settings]


def outwait_lease(store: Store) -> None:
    """Wait until the lease of a dead process has run out."""
    try:
        lease, _ = read_lease(store)
    except NotFoundError:
        return
    if not lease.released:
        remaining = datetime.fromisoformat(lease.expires_at) - datetime.now(UTC)
        time.sleep(max(0.0, remaining.total_seconds()) + 0.05)


def free_lease(store: Store) -> None:
    """Delete the lease of a dead holder, so that a test of something else need not wait until it runs out."""
    store.delete([layout.LOCK])


@pytest.fixture(scope="session")
def books(broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, Path]:
    """The shop, and the archive (a directory: copy it) with a restore point of half of it."""
    shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
    sell(shop, 600)
    archive = tmp_path_factory.mktemp("books") / "archive"
    backup(options(shop), broker.client(), FileStore(archive), lambda: spark, Counting())
    sell(shop, 900)
    return shop, archive


@pytest.fixture(scope="session")
def shop(books: tuple[Shop, Path]) -> Shop:
    return books[0]


@pytest.fixture
def archive(books: tuple[Shop, Path], tmp_path: Path) -> Path:
    """A copy of the archive of one restore point."""
    shutil.copytree(books[1], tmp_path / "archive")
    return tmp_path / "archive"


BackUp = Callable[[Store], tuple[BackupReport, int]]


@pytest.fixture
def back_up(shop: Shop, spark: SparkSession) -> BackUp:
    """Another run, in this process: its report, and how many records it read from the cluster."""

    def run(store: Store) -> tuple[BackupReport, int]:
        counting = Counting()
        report = backup(options(shop), shop.broker.client(), store, lambda: spark, counting)
        return report, counting.records

    return run


@pytest.fixture
def mirror(shop: Shop, archive: Path) -> Mirror:
    """A flow from a copy of the archive of one restore point."""
    from tests.faults.mirrored import Mirror

    return Mirror(FileStore(archive), shop.broker.bootstrap)


@pytest.fixture
def own_shop(broker: Broker) -> Shop:
    """A shop of one test, whose topics the test may change."""
    shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
    sell(shop, 120)
    return shop


@pytest.fixture
def own(own_shop: Shop, tmp_path: Path) -> Mirror:
    """A flow from an archive of `own_shop`, which `take` begins."""
    from tests.faults.mirrored import Mirror

    return Mirror(FileStore(tmp_path / "own"), own_shop.broker.bootstrap)


Take = Callable[[], None]


@pytest.fixture
def take(own_shop: Shop, own: Mirror, spark: SparkSession) -> Take:
    """Take a restore point of `own_shop`."""

    def run() -> None:
        backup(options(own_shop), own.client, own.store, lambda: spark, Counting())

    return run
