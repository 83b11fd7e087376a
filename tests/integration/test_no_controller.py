"""A cluster whose controllers have no majority: its last broker still names those that are gone."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Connection
from scripts.dev.kafka import Broker

_GONE = (0, 1)
_PATIENCE = 4.0  # s


@pytest.fixture(scope="module")
def without_controller() -> Iterator[Mapping[str, str]]:
    with Broker(nodes=3) as brokers:
        Cluster(brokers.client(), "target").connect()
        for node in _GONE:
            brokers.kill(node)
        yield brokers.client()


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
