"""A cluster that loses brokers: a partition has no leader. Then its controllers have no majority, and its last broker
still names those that are gone."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError
from kbackup.jobs import capture
from kbackup.jobs.backup.job import BackupReport, backup
from kbackup.kafka.control import groups as group_admin
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.faults.conftest import Counting
from tests.support.following import Following
from tests.support.truth import in_archive, in_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GONE = (0, 1)
_PATIENCE = 4.0  # s


@pytest.fixture(scope="module")
def brokers() -> Iterator[Broker]:
    with Broker(nodes=3) as running:
        yield running


@pytest.fixture(scope="module")
def without_controller(brokers: Broker) -> Mapping[str, str]:
    Cluster(brokers.client(), "target").connect()
    for node in _GONE:
        brokers.kill(node)
    return brokers.client()


def test_a_partition_without_a_leader_is_named_and_the_others_are_backed_up(
    brokers: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first test: it takes one broker of three away."""
    admin, options, store = AdminClient(brokers.client()), Backup(topics=("orders",)), FileStore(tmp_path / "archive")
    admin.create_topics([NewTopic("orders", 2, replica_assignment=[[3], [2]])])["orders"].result(30)
    cluster, producer = Cluster(brokers.client(), "source"), Producer(brokers.client(log_level=0))

    def sell_and_back_up(*partitions: int) -> BackupReport:
        for partition in partitions:
            producer.produce("orders", b"value", partition=partition)
        assert producer.flush(30) == 0
        return backup(options, brokers.client(), store, lambda: spark, Counting())

    brokers.wait(0, lambda: "orders" in cluster.topics(["orders"]), "topic orders")
    assert sell_and_back_up(0, 1).offline == ()
    brokers.kill(1)
    brokers.wait(0, lambda: cluster.topics(["orders"])["orders"].offline == (1,), "the loss of a leader")
    monkeypatch.setattr(capture, "REQUEST_SECONDS", 0.0)
    for name in ("REQUEST_SECONDS", "_SHORT_SECONDS"):
        monkeypatch.setattr(group_admin, name, 1.0)  # the dead broker names no groups
    report = sell_and_back_up(0)
    assert report.offline == ("orders-1",)
    assert "partitions without a leader: orders-1" in report.warnings[0]
    assert [(p.partition, p.start, p.end, p.records) for p in report.topics[0].partitions] == [
        (0, 0, 2, 2),
        (1, 0, 1, 1),
    ]
    with Following(options, Follow(interval_seconds=0.3), brokers, store, spark) as following:
        following.until(lambda: bool(following.commits))
        assert following.commits[0].offline == ("orders-1",)
        brokers.start(1)
        producer.produce("orders", b"value", partition=1)
        assert producer.flush(30) == 0
        following.until(lambda: in_archive(store) == in_cluster(brokers.bootstrap, ["orders"]))
    assert (following.commits[-1].offline, following.errors) == ((), [])


def test_configs_are_read_from_the_broker_that_answers(without_controller: Mapping[str, str]) -> None:
    cluster = Cluster(without_controller, "target")
    assert cluster.broker_configs()["log.retention.ms"] == "-1", "the third broker answers"


def test_waiting_for_a_controller_takes_no_cpu(without_controller: Mapping[str, str]) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        cpu = alone.submit(_cpu_while_waiting, dict(without_controller)).result(timeout=60)
    assert cpu < _PATIENCE / 4, "the client pauses before it connects to a dead controller again"


def _cpu_while_waiting(properties: Mapping[str, str]) -> float:
    for ask in (
        lambda cluster: cluster.topics(["orders"]),
        lambda cluster: cluster.topic_admin.create([TopicToCreate("new", 1, 1)]),
        lambda cluster: cluster.topic_admin.add_partitions({"orders": 3}),
        lambda cluster: cluster.topic_configs(["orders"]),
        lambda cluster: cluster.security.users(),
    ):
        Thread(target=_ask, args=(ask, Cluster(properties, "target")), daemon=True).start()
    time.sleep(_PATIENCE)  # to connect takes some
    before = _cpu()
    time.sleep(_PATIENCE)
    return _cpu() - before


def _ask(ask: Callable[[Cluster], object], cluster: Cluster) -> None:
    with suppress(KbackupError):
        ask(cluster)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
