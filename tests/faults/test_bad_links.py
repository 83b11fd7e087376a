"""A whole backup, its verification and a restore over links that fail all the time."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.errors import ClusterError, StoreError, UnreachableError
from kbackup.jobs.backup.job import backup
from kbackup.jobs.verify import verify
from kbackup.store import Store, open_store
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.faults.conftest import Counting, free_lease, options
from tests.faults.shop import Shop, check_archive, open_shop, sell
from tests.faults.trip import Trip
from tests.faults.trouble import S3_FAULTS, KafkaTrouble, S3Trouble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 5
_GAVE_UP = (StoreError, UnreachableError, ClusterError)
"""A run may give up on a link as bad as these; then the next one goes on where it was."""


def _until_done(work: Callable[[], object], store: Store) -> None:
    for _ in range(_TRIES - 1):
        try:
            work()
        except _GAVE_UP:
            free_lease(store)
        else:
            return
    work()


def _back_up(shop: Shop, store: Store, spark: SparkSession) -> None:
    backup(options(shop), shop.broker.client(), store, lambda: spark, Counting())


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_store_that_fails_in_every_way(seed: int, bucket: Bucket, shop: Shop, spark: SparkSession) -> None:
    straight = open_store(bucket.url, {"s3": bucket.options})
    with S3Trouble(bucket.server.endpoint_url, seed, 0.15) as trouble:
        bad = open_store(bucket.url, {"s3": replace(bucket.options, endpoint_url=trouble.url)})
        _until_done(lambda: _back_up(shop, bad, spark), straight)
        trip = Trip(shop, bad)
        _until_done(lambda: trip.resume(spark), straight)
        report = verify(bad, "latest", False, lambda: spark, Counting())
    assert set(trouble.happened) == set(S3_FAULTS), f"the link was not that bad: {trouble.happened}"
    assert not report.findings
    check_archive(straight, shop)
    trip.store = straight
    trip.check()


@pytest.fixture(scope="module")
def far() -> Iterator[tuple[Shop, KafkaTrouble]]:
    with KafkaTrouble(3, 0.0) as link, Broker(via=link.to) as broker:
        shop = open_shop(broker, f"far-{secrets.token_hex(4)}")
        sell(shop, 900)
        yield shop, link


def test_a_broker_behind_a_bad_link(far: tuple[Shop, KafkaTrouble], tmp_path: Path, spark: SparkSession) -> None:
    shop, link = far
    store = FileStore(tmp_path / "archive")
    link.trouble(0.02)
    _until_done(lambda: _back_up(shop, store, spark), store)
    trip = Trip(shop, store)
    _until_done(lambda: trip.resume(spark), store)
    link.trouble(0.0)
    assert link.happened["reset"] > 0
    assert link.happened["delay"] > 0
    check_archive(store, shop)
    trip.check()


def test_a_source_that_restarts_in_the_middle_of_a_backup(
    far: tuple[Shop, KafkaTrouble], tmp_path: Path, spark: SparkSession
) -> None:
    """In the middle: when the first records of the run have been counted. Nobody has to run it again."""
    shop, _ = far
    store, listener = FileStore(tmp_path / "archive"), _Restarting(shop.broker)
    backup(options(shop, poll_timeout_seconds=60), shop.broker.client(), store, lambda: spark, listener)
    listener.thread.join()
    assert listener.restarted.is_set()
    check_archive(store, shop)


class _Restarting(Counting):
    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.restarted = threading.Event()
        self.thread = threading.Thread(target=self._restart, args=(broker,))

    def _restart(self, broker: Broker) -> None:
        broker.kill()
        time.sleep(0.5)
        broker.start()
        self.restarted.set()

    def phase(self, name: str) -> None:
        if name == "run":
            self.thread.start()
