"""The brokers and controllers that make up a cluster, what they have agreed on, and what moves between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbackup.kafka.control.errors import REQUEST_SECONDS, RefusedRequestError, RequestError
from kbackup.kafka.control.messages import admin
from kbackup.kafka.control.router import Router
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import Feature, Listener, Registration

_CLIENTS_LISTENER = 1
"""`endpoint_type` of DescribeCluster: the addresses that clients connect to."""

_FETCH = 1
"""The apiKey of Fetch."""

_METADATA_LOG = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class Members:
    """Every broker answers for the whole cluster."""

    router: Router

    def broker_ids(self) -> list[int] | Unavailable:
        """Return the ids of the brokers that are alive."""
        try:
            metadata = self.router.metadata([])
        except RequestError as error:
            return self._unavailable(error, "listing brokers")
        return sorted(broker.node_id for broker in metadata.brokers)

    def features(self) -> list[Feature] | Unavailable:
        """Return the finalized features, by name."""
        try:
            levels = self.router.any_broker().features
        except RequestError as error:
            return self._unavailable(error, "describing features")
        if levels is None:
            return Unavailable("not supported", f"{self.router.connection.address} does not tell its features")
        by_name = sorted(levels.items())
        return [Feature(name=name, level=level) for name, level in by_name]

    def registrations(self) -> list[Registration] | Unavailable:
        """Return brokers, by the listener that we use, and the controllers where there is a quorum that we may ask
        for."""
        request = admin.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=_CLIENTS_LISTENER, include_fenced_brokers=True
        )
        protocol = self.router.connection.properties.get("security.protocol", "plaintext").upper()
        try:
            response = self.router.ask(request)
            controllers = self._controllers()
        except RequestError as error:
            return self._unavailable(error, "describing the cluster")
        return [*brokers_of(response, protocol), *controllers]

    def _controllers(self) -> list[Registration]:
        topic = admin.DescribeQuorumRequest.TopicData
        quorum = topic(topic_name=_METADATA_LOG, partitions=[topic.PartitionData(partition_index=0)])
        request = admin.DescribeQuorumRequest(topics=[quorum])
        try:
            response = self.router.ask(request)
        except RefusedRequestError:
            # A cluster with ZooKeeper, or a right that we don't have: the brokers are worth having without controllers.
            return []
        return list(controllers_of(response))

    def reassignments(self) -> list[str] | Unavailable:
        """Return the partitions that are on their way to other brokers, such as orders-0."""
        milliseconds = int(REQUEST_SECONDS * 1000)
        request = admin.ListPartitionReassignmentsRequest(timeout_ms=milliseconds, topics=None)
        try:
            # With ZooKeeper, no other broker knows them.
            topics = self.router.ask_controller(request).topics
        except RequestError as error:
            return self._unavailable(error, "listing reassignments")
        moving: list[str] = []
        for topic in topics:
            for partition in topic.partitions:
                moving.append(f"{topic.name}-{partition.partition_index}")
        return sorted(moving)

    def fetch_version(self, broker: int) -> int | Unavailable:
        """Return the newest version of Fetch that a broker knows, -1 for none. It identifies the release."""
        try:
            versions = self.router.broker(broker).versions
        except RequestError as error:
            return self._unavailable(error, f"asking broker {broker} for its versions")
        _, newest = versions.get(_FETCH, (0, -1))
        return newest

    def _unavailable(self, error: RequestError, doing: str) -> Unavailable:
        return Unavailable.of(error.kafka_error(), doing, self.router.connection)


def brokers_of(response: Any, protocol: str) -> list[Registration]:
    """Return the brokers of Kafka's response to DescribeCluster, by id. `protocol` is the protocol of the
    listener that was asked: brokers don't name the others."""
    brokers = []
    for broker in sorted(response.brokers, key=_broker_id):
        listener = Listener(name="", host=broker.host, port=broker.port, security_protocol=protocol)
        registration = Registration(
            id=broker.broker_id, role="broker", listeners=(listener,), rack=broker.rack, alive=not broker.is_fenced
        )
        brokers.append(registration)
    return brokers


def _broker_id(broker: Any) -> int:
    return int(broker.broker_id)


def controllers_of(response: Any) -> Iterator[Registration]:
    """Yield the voters of Kafka's response to DescribeQuorum, by id. Older brokers leave their listeners out."""
    listeners = {node.node_id: node.listeners for node in response.nodes or ()}
    voters: set[int] = set()
    for topic in response.topics:
        for partition in topic.partitions:
            voters.update(voter.replica_id for voter in partition.current_voters)
    for voter in sorted(voters):
        own: list[Listener] = []
        for each in listeners.get(voter, ()):
            # Brokers name a controller's listeners without their protocols.
            own.append(Listener(name=each.name, host=each.host, port=each.port, security_protocol=""))
        yield Registration(id=voter, role="controller", listeners=tuple(own))
