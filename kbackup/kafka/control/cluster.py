"""A cluster as everything but records is asked of it: brokers, topics, configs, offsets, and what is built on them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kbackup.errors import KbackupError
from kbackup.kafka.client import Connection, Properties, admin_properties
from kbackup.kafka.control.access import SecurityAdmin
from kbackup.kafka.control.configs import TopicConfigs, broker_configs, configs_of_some_broker
from kbackup.kafka.control.dynamic_configs import DynamicConfigs
from kbackup.kafka.control.errors import RequestError
from kbackup.kafka.control.groups import GroupAdmin
from kbackup.kafka.control.members import Members
from kbackup.kafka.control.offsets import EpochPosition, LogOffset, LogOffsets, Validation, validate_epochs
from kbackup.kafka.control.router import Router, explained, explaining
from kbackup.kafka.control.topics import Topic, TopicAdmin, describe_topics, missing_rights, topic_names
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.types import TopicPartition

_CONNECT_SECONDS = 15.0
"""How long a cluster may take for its first answer."""

_ROUND_TRIP_SECONDS = 10.0
"""How long a small request may take before it counts as not answered."""


@dataclass(frozen=True, slots=True)
class ClusterBrokers:
    """`addresses` maps the ids of the brokers that are alive to host:port. `assigned` are the ids of all brokers that
    hold replicas, `offline` the partitions without a leader, such as orders-0."""

    cluster_id: str
    addresses: Mapping[int, str]
    assigned: frozenset[int]
    offline: tuple[str, ...]


class BrokerAdmin:
    """Asks about the brokers of a cluster. Every method raises `UnreachableError` or `ClusterError` naming it."""

    def __init__(self, properties: Properties, role: str) -> None:
        self.connection = Connection(properties, role)
        self._router = Router(self.connection)
        self._members = Members(self._router)

    def brokers(self) -> ClusterBrokers:
        """Return all of it by one request."""
        with explaining(self.connection, "listing brokers"):
            metadata = self._router.metadata(None)
        addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
        # A broker that is down is in no list of brokers: only the replicas that it should have tell of it.
        assigned: set[int] = set()
        offline: list[str] = []
        for topic in metadata.topics:
            for partition in topic.partitions:
                assigned.update(partition.replica_nodes)
                if partition.leader_id < 0:
                    offline.append(f"{topic.name}-{partition.partition_index}")
        return ClusterBrokers(
            cluster_id=metadata.cluster_id or "",
            addresses=addresses,
            assigned=frozenset(assigned),
            offline=tuple(sorted(offline)),
        )

    def fetch_version(self, broker: int) -> int | Unavailable:
        """Return the newest version of the Fetch request that a broker knows. It identifies the release."""
        return self._members.fetch_version(broker)

    def reassignments(self) -> list[str] | Unavailable:
        """Return the partitions that are on their way to other brokers, such as orders-0."""
        return self._members.reassignments()

    def configs(self, broker: int) -> dict[str, str]:
        """Return every config of a broker that has a value, static configs and defaults included. A sensitive config
        that is set is "": brokers never return its value. They treat each unknown config as sensitive."""
        return broker_configs(self._router, broker)


class Cluster:
    """One cluster. Every method raises `UnreachableError` or `ClusterError` naming it.

    `groups` are its consumer groups, `security` its ACLs, users, tokens and quotas, `dynamic_configs` what was set at
    run time, `members` its brokers and controllers. `topic_admin` changes many topics at once.
    """

    def __init__(self, properties: Properties, role: str) -> None:
        self.connection = Connection(admin_properties(properties), role)
        self.router = Router(self.connection)
        self.groups = GroupAdmin(self.router)
        self.security = SecurityAdmin(self.router)
        self.dynamic_configs = DynamicConfigs(self.router)
        self.members = Members(self.router)
        self.topic_admin = TopicAdmin(self.router)
        self._configs = TopicConfigs(self.router)
        self._offsets = LogOffsets(self.router)

    # The whole.

    def connect(self) -> tuple[str, int]:
        """Return (cluster id, number of brokers), with the first request: a refused login shows at once."""
        try:
            metadata = self.router.metadata([], seconds=_CONNECT_SECONDS)
        except RequestError as error:
            raise explained(self.connection, error, "") from error
        return metadata.cluster_id or "", len(metadata.brokers)

    def round_trip(self, topic: str) -> float:
        """Return the seconds until a broker answers a small request, about a topic that exists; 0 if none does."""
        try:
            # What it takes to connect does not count.
            self.router.any_broker(_ROUND_TRIP_SECONDS)
            began = time.monotonic()
            self.router.metadata([topic], seconds=_ROUND_TRIP_SECONDS)
        except RequestError:
            return 0.0
        return time.monotonic() - began

    def broker_configs(self) -> dict[str, str]:
        """Return what new topics will inherit: every config of the first broker that answers, defaults included.
        Configs that are secret or have no value are left out."""
        return configs_of_some_broker(self.router)

    # Topics.

    def topic_names(self) -> list[str]:
        return topic_names(self.router)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """Return the descriptions of `names`, by default of all topics that our user may see; a topic that does not
        exist is left out."""
        topics, refused = self.described_topics(self.topic_names() if names is None else names)
        _raise_first(refused)
        return topics

    def described_topics(self, names: Iterable[str]) -> tuple[dict[str, Topic], dict[str, KbackupError]]:
        """Return the descriptions of `names`, and the error of each topic that the brokers don't describe to us; a
        topic that is not there is in neither."""
        return describe_topics(self.router, names)

    def missing_rights(self, names: Iterable[str], rights: Collection[str]) -> dict[str, list[str]]:
        """Return, by topic, which of the `rights` our user lacks, such as WRITE. Topics on which no right is lacking,
        or of which the brokers return no rights, are left out."""
        return missing_rights(self.router, names, rights)

    def delete_topics(self, names: Iterable[str]) -> dict[str, str]:
        """Delete topics and return, by topic, '' or why the broker refused. A missing topic counts as deleted, and
        brokers may list a deleted topic for some time yet."""
        return self.topic_admin.delete(names)

    # Configs of topics.

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the configs set on each topic itself, without sensitive values."""
        configs, unread = self._configs.own(names)
        _raise_first(unread)
        return configs

    def readable_topic_configs(self, names: Iterable[str]) -> tuple[dict[str, dict[str, str]], dict[str, KbackupError]]:
        """Return the configs set on each topic itself, without sensitive values, and the error of each topic whose
        configs can't be read."""
        return self._configs.own(names)

    def one_config(self, names: Iterable[str], config: str) -> dict[str, str | None]:
        """Return each topic's value of a config, which may be a default; None if brokers don't know it."""
        values, unread = self._configs.one(names, config)
        _raise_first(unread)
        return values

    def readable_config(self, names: Iterable[str], config: str) -> dict[str, str]:
        """Return the value of a config, which may be a default, of each topic whose configs can be read."""
        values, _ = self._configs.one(names, config)
        return {topic: value for topic, value in values.items() if value is not None}

    def all_topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return every config of each topic, defaults included."""
        return self._configs.all(names)

    # Offsets.

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets.log_starts(partitions)

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition for 'read_committed', else its high watermark."""
        return self._offsets.log_ends(partitions, isolation)

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffset]:
        """Return each partition's high watermark and current leader epoch; None if the broker doesn't return that."""
        return self._offsets.high_watermarks(partitions)

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        found = self.high_watermarks(partitions)
        return {tp: at.leader_epoch for tp, at in found.items()}

    def validate_epochs(self, positions: Mapping[TopicPartition, EpochPosition], seconds: float) -> Validation:
        """Return which logs were truncated below their position, and which did not answer in so many seconds."""
        return validate_epochs(self.router, positions, seconds)


def _raise_first(errors: Mapping[str, KbackupError]) -> None:
    for error in errors.values():
        raise error
