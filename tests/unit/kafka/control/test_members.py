"""Brokers, controllers, features, versions and reassignments of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.consumer import FetchRequest

from kbackup.kafka.control.members import Members, brokers_of, controllers_of
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import Feature, Listener, Registration
from tests.support.fake_broker import FakeCluster, fake_cluster
from tests.unit.kafka.control.wire import through


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster(nodes=2) as cluster:
        yield cluster


def members(cluster: FakeCluster) -> Members:
    return Members(cluster.router(role="source"))


def test_brokers_that_are_alive_are_listed(cluster: FakeCluster) -> None:
    cluster.hidden = {2}
    assert members(cluster).broker_ids() == [1]


def test_features_have_their_finalized_levels(cluster: FakeCluster) -> None:
    cluster.features = {"metadata.version": 25, "group.version": 1}
    assert members(cluster).features() == [
        Feature(name="group.version", level=1),
        Feature(name="metadata.version", level=25),
    ]


def test_brokers_that_tell_no_features_are_not_taken_for_brokers_without(cluster: FakeCluster) -> None:
    answer = members(cluster).features()
    assert isinstance(answer, Unavailable)
    assert answer.reason == "not supported"


# Registrations.


def described_cluster() -> Any:
    kind = DescribeClusterResponse
    broker = kind.DescribeClusterBroker(broker_id=7, host="h", port=1, rack="r", is_fenced=True)
    return kind(error_code=0, error_message=None, cluster_id="c", controller_id=7, brokers=[broker])


def described_quorum(error: int = 0) -> Any:
    kind = DescribeQuorumResponse
    partition = kind.TopicData.PartitionData
    voter = partition.ReplicaState(replica_id=3000, log_end_offset=1)
    quorum = partition(partition_index=0, current_voters=[voter], observers=[])
    topics = [kind.TopicData(topic_name="__cluster_metadata", partitions=[quorum])]
    node = kind.Node(node_id=3000, listeners=[kind.Node.Listener(name="CONTROLLER", host="h", port=9093)])
    return kind(error_code=error, topics=topics, nodes=[node])


@pytest.mark.parametrize(("version", "alive"), [(0, True), (2, False)])
def test_a_fenced_broker_is_told_from_one_that_is_alive_where_brokers_tell(version: int, alive: bool) -> None:
    assert brokers_of(through(described_cluster(), version), "SSL") == [
        Registration(
            id=7,
            role="broker",
            listeners=(Listener(name="", host="h", port=1, security_protocol="SSL"),),
            rack="r",
            alive=alive,
        )
    ]


@pytest.mark.parametrize("version", [0, 2])
def test_controllers_have_listeners_where_brokers_tell(version: int) -> None:
    (found,) = controllers_of(through(described_quorum(), version))
    listeners = (Listener(name="CONTROLLER", host="h", port=9093, security_protocol=""),)
    assert found == Registration(id=3000, role="controller", listeners=listeners if version == 2 else ())


@pytest.mark.parametrize(
    ("error", "roles"),
    [(0, ["broker", "controller"]), (KafkaError.CLUSTER_AUTHORIZATION_FAILED, ["broker"])],
    ids=["allowed", "denied"],
)
def test_controllers_are_registered_where_we_may_ask_for_them(
    error: int, roles: list[str], cluster: FakeCluster
) -> None:
    cluster.on(DescribeClusterRequest, lambda request: described_cluster())
    cluster.on(DescribeQuorumRequest, lambda request: described_quorum(error))
    found = members(cluster).registrations()
    assert isinstance(found, list)
    assert [each.role for each in found] == roles
    (asked,) = cluster.asked(DescribeClusterRequest)
    assert asked.include_fenced_brokers is True


def test_a_cluster_with_zookeeper_has_no_quorum(cluster: FakeCluster) -> None:
    cluster.on(DescribeClusterRequest, lambda request: described_cluster(), newest=0)
    found = members(cluster).registrations()
    assert isinstance(found, list)
    assert [each.role for each in found] == ["broker"]


# Versions and reassignments.


def test_the_version_of_fetch_is_that_of_the_broker_that_is_named(cluster: FakeCluster) -> None:
    cluster.on(FetchRequest, lambda request: None, node=1, newest=12)
    cluster.on(FetchRequest, lambda request: None, node=2, newest=13)
    both = members(cluster)
    assert [both.fetch_version(broker) for broker in (1, 2)] == [12, 13]


def test_a_broker_that_is_gone_tells_no_version(cluster: FakeCluster) -> None:
    answer = members(cluster).fetch_version(3)
    assert isinstance(answer, Unavailable)
    assert answer.reason == "failed"


def test_the_controller_lists_the_partitions_that_move(cluster: FakeCluster) -> None:
    kind = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    partitions = [kind.OngoingPartitionReassignment(partition_index=number) for number in (1, 0)]
    moving = ListPartitionReassignmentsResponse(
        error_code=0, error_message=None, topics=[kind(name="orders", partitions=partitions)]
    )
    cluster.controller = 2
    cluster.on(ListPartitionReassignmentsRequest, lambda request: moving)
    assert members(cluster).reassignments() == ["orders-0", "orders-1"]
    assert len(cluster.asked(ListPartitionReassignmentsRequest, node=2)) == 1


def test_old_brokers_list_no_reassignments(cluster: FakeCluster) -> None:
    answer = members(cluster).reassignments()
    assert isinstance(answer, Unavailable)
    assert answer.reason == "not supported"
