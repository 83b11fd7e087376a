"""The brokers of a cluster as the admin API shows them: which there are, their configs, partitions without a leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from kbackup.kafka.admin.security_types import Untold
from kbackup.kafka.admin_protocol.session import admin_session
from kbackup.kafka.client.client import Connection, Properties
from kbackup.kafka.client.retry import LEADER_NOT_READY, TIMEOUT, Answers, answered, ask_until_ready

_ONE_OF_MANY = 10.0  # s, for a broker that others can answer for


@dataclass(frozen=True, slots=True)
class Brokers:
    """`addresses` maps the ids of the brokers that are alive to host:port. `assigned` are the ids of all brokers that
    hold replicas, `offline` the partitions without a leader, such as orders-0."""

    cluster_id: str
    addresses: Mapping[int, str]
    assigned: frozenset[int]
    offline: tuple[str, ...]


class BrokerAdmin:
    """Every method raises `UnreachableError` or `ClusterError` naming the cluster."""

    def __init__(self, properties: Properties, role: str) -> None:
        self._properties = properties
        self.connection = Connection(properties, role)
        self._admin = self.connection.admin()

    def brokers(self) -> Brokers:
        """All of it by one request."""
        with self.connection.errors("listing brokers"):
            metadata = self._admin.list_topics(timeout=TIMEOUT)
        partitions = [
            (f"{topic.topic}-{partition.id}", partition)
            for topic in metadata.topics.values()
            for partition in topic.partitions.values()
        ]
        return Brokers(
            metadata.cluster_id or "",
            {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()},
            frozenset(broker for _, partition in partitions for broker in partition.replicas),
            tuple(sorted(name for name, partition in partitions if partition.leader < 0)),
        )

    def fetch_version(self, address: str) -> int | Untold:
        """The newest version of the Fetch request that the broker at host:port knows, which tells its release."""
        connection = Connection({**self._properties, "bootstrap.servers": address}, self.connection.role)
        with admin_session(connection) as session:
            return session if isinstance(session, Untold) else session.read.fetch_version()

    def reassignments(self) -> list[str] | Untold:
        """The partitions that are on their way to other brokers, such as orders-0."""
        with admin_session(self.connection) as session:
            return session if isinstance(session, Untold) else session.read.reassignments()

    def configs(self, broker: int) -> dict[str, str]:
        """Every config of a broker, static ones and defaults included, without those that are not set. A sensitive one
        that is set is "": brokers never tell its value. To them, each config that they don't know is sensitive."""
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        (future,) = self._admin.describe_configs([resource], request_timeout=TIMEOUT).values()
        entries = self.connection.result(future, f"reading configs of broker {broker}")
        default = ConfigSource.DEFAULT_CONFIG.value
        return {
            entry.name: "" if entry.value is None else entry.value
            for entry in entries.values()
            if entry.value is not None or (entry.is_sensitive and entry.source != default)
        }


def any_broker_configs(connection: Connection, admin: AdminClient) -> dict[str, str]:
    """Return every config of the first broker that answers, without those that are not set, or secret."""

    def ask(items: list[str]) -> Answers[str, Any]:
        with connection.errors("listing brokers"):
            brokers = sorted(admin.list_topics(timeout=TIMEOUT).brokers)
        answer: Any = KafkaError(KafkaError._NOENT)
        for broker in brokers:
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            (future,) = admin.describe_configs([resource], request_timeout=_ONE_OF_MANY).values()
            _, answer = answered("", future)
            if not isinstance(answer, KafkaError) or answer.code() not in LEADER_NOT_READY:
                break  # no other broker would say anything else
        yield items[0], answer

    doing = "reading configs of brokers"
    answers, refused = ask_until_ready([doing], ask, LEADER_NOT_READY)
    for error in refused.values():
        raise connection.error(error, doing)
    return {entry.name: entry.value for entry in answers[doing].values() if entry.value is not None}
