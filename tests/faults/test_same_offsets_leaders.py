"""Leaders are killed while logs are filled with the same offsets: the logs become what they were to become."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.kafka.control.append import new_producer
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.support.same_offsets import MadeLog, MadeUnit
from tests.support.truth import read_topic

_PATIENCE = 180.0  # s

LOG = MadeLog([*range(6_000_000, 6_000_200), *range(6_000_500, 6_003_000)], 6_000_000, 6_003_050)
REPLICATED = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
}

PHASES = {"head": 2_000_000, "records": 6_000_100, "markers": 6_000_300}
"""Where the log is when its leader is killed."""


@pytest.fixture(scope="module")
def three() -> Iterator[Broker]:
    with Broker(REPLICATED, nodes=3) as running:
        yield running


@pytest.mark.parametrize("phase", ["head", pytest.param("records", marks=pytest.mark.soak), "markers"])
def test_a_log_is_filled_though_its_leader_is_killed(phase: str, three: Broker, tmp_path: Path) -> None:
    cluster = Cluster({"bootstrap.servers": three.bootstrap}, "target")
    target = f"leaders-{secrets.token_hex(4)}"
    configs = {"retention.ms": "-1", "min.insync.replicas": "2"}
    assert cluster.topic_admin.create([TopicToCreate(target, 1, 3, configs)]) == {}
    assert cluster.topic_admin.wait_visible({target: 1}) == {}
    producer = new_producer(cluster.router)
    unit = MadeUnit(str(tmp_path), three.bootstrap, target, [LOG], producer.id, producer.epoch)
    unit.describe()
    tp = TopicPartition(target, 0)
    until = time.monotonic() + _PATIENCE
    filling = subprocess.Popen([sys.executable, "-m", "tests.support.same_offsets", str(tmp_path)])
    try:
        while cluster.log_ends([tp], "read_uncommitted")[tp] < PHASES[phase]:
            assert filling.poll() is None, "the logs were filled before a leader could be killed"
            assert time.monotonic() < until
        leader = cluster.router.metadata([target]).topics[0].partitions[0].leader_id
        three.kill(leader - 1)
        assert filling.wait(_PATIENCE) == 0
    finally:
        filling.kill()
        filling.wait()
        three.start(*(node for node in range(3) if not three.running(node)))
    assert read_topic(three.bootstrap, target, "read_uncommitted")[0] == unit.records(0)
    assert cluster.log_starts([tp])[tp] == LOG.start
    assert cluster.log_ends([tp], "read_uncommitted")[tp] == LOG.end
