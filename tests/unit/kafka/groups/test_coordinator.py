"""Questions about groups while their coordinator moves: they are asked again, and end nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from kbackup.kafka.client import Connection
from kbackup.kafka.groups.admin import GroupAdmin
from kbackup.kafka.groups.calls import Committed
from kbackup.types import TopicPartition
from tests.support.mock_cluster import OFFSET_COMMIT, OFFSET_FETCH, MockCluster, mock_cluster

MOVED = KafkaError.NOT_COORDINATOR


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as made:
        yield made


@pytest.fixture
def groups(cluster: MockCluster) -> GroupAdmin:
    connection = Connection({"bootstrap.servers": cluster.bootstrap}, "source")
    return GroupAdmin(connection, connection.admin())


def test_offsets_are_read_once_the_coordinator_is_known(cluster: MockCluster, groups: GroupAdmin) -> None:
    cluster.fail(OFFSET_FETCH, MOVED, MOVED)
    found, failed = groups.committed(["billing"])
    assert (found, failed) == ({"billing": []}, {})


def test_offsets_are_set_once_the_coordinator_is_known(cluster: MockCluster, groups: GroupAdmin) -> None:
    cluster.create_topic("orders")
    cluster.fail(OFFSET_COMMIT, MOVED, MOVED)
    assert groups.commit("billing", [Committed(TopicPartition("orders", 0), 7, None, "")]) == ""
