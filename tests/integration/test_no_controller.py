"""A cluster that loses brokers: a partition has no leader. Then its controllers have no majority, and its last broker
still names those that are gone."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kbackup.config.models import Backup, Follow
from kbackup.jobs import capture
from kbackup.jobs.backup.job import BackupReport, backup
from kbackup.kafka.client import Connection
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.groups import admin as group_admin
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
    monkeypatch.setattr(capture, "TIMEOUT", 0.0)
    for name in ("TIMEOUT", "_SHORT_TIMEOUT"):
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
    admin = Connection(properties, "target").admin()
    while admin.list_topics(timeout=10).controller_id - 1 not in _GONE:
        time.sleep(0.1)  # a broker without a controller names any one
    before = _cpu()
    topic = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    asked = (
        admin.describe_topics(TopicCollection(["orders"]), request_timeout=_PATIENCE),
        admin.create_topics([NewTopic("new", 1, 1)], request_timeout=_PATIENCE),
        admin.create_partitions([NewPartitions("orders", 3)], request_timeout=_PATIENCE),
        admin.describe_configs([topic], request_timeout=_PATIENCE),
        admin.describe_user_scram_credentials(request_timeout=_PATIENCE),
    )
    futures = [f for answer in asked for f in (answer.values() if isinstance(answer, dict) else [answer])]
    wait(futures, timeout=_PATIENCE * 2)
    return _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
