"""A cluster as the admin API shows it: topics, offsets, configs; and the changes a restore makes.

Its consumer groups: `group_admin`; its ACLs, users and dynamic configs: `security_admin`, and `admin_protocol` for what
confluent-kafka has no call for; changes to many topics: `topic_admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    TopicDescription,
)

from kbackup.kafka.admin.brokers import any_broker_configs
from kbackup.kafka.admin.properties import admin_properties
from kbackup.kafka.admin.security import SecurityAdmin
from kbackup.kafka.admin.security_types import Untold
from kbackup.kafka.admin.topics import TopicAdmin
from kbackup.kafka.admin_protocol.session import Session, admin_session
from kbackup.kafka.client.client import Connection, Properties
from kbackup.kafka.client.retry import (
    CONTROLLER_NOT_READY,
    LEADER_NOT_READY,
    TIMEOUT,
    Answers,
    answered,
    ask_until_ready,
)
from kbackup.kafka.groups.admin import GroupAdmin
from kbackup.types import TopicPartition

_PATIENCE = (2.0, 13.0)  # s, for the first answer; it is looked in between whether there will be any
_REFRESH = 10.0  # s
_BATCH = 2000  # names or partitions in one admin request

_DESCRIBE_NOT_READY = {
    code: s for code, s in LEADER_NOT_READY.items() if code != KafkaError.UNKNOWN_TOPIC_OR_PART
}

Item = TypeVar("Item", str, TopicPartition)


@dataclass(frozen=True, slots=True)
class Topic:
    """`id` is the broker's own (base64), '' for brokers before 2.8; `partitions` are the partition numbers. `replicas`
    has the ids of each one's brokers, the preferred leader first."""

    name: str
    id: str
    internal: bool
    partitions: tuple[int, ...]
    replication_factor: int
    replicas: tuple[tuple[int, ...], ...] = ()


class Cluster:
    """The admin side of one cluster. Every method raises `UnreachableError` or `ClusterError` naming it.

    `groups` are its consumer groups, `security` its ACLs, users and dynamic configs, `topic_admin` changes many topics
    at once."""

    def __init__(self, properties: Properties, role: str) -> None:
        self.connection = Connection(admin_properties(properties), role)
        self._admin = self.connection.admin()
        self.groups = GroupAdmin(self.connection, self._admin)
        self.security = SecurityAdmin(self.connection, self._admin)
        self.topic_admin = TopicAdmin(self.connection, self._admin)

    def admin_session(self) -> AbstractContextManager[Session | Untold]:
        """A connection for admin requests that confluent-kafka has no call for; `Untold` where there can be none."""
        return admin_session(self.connection)

    def connect(self) -> tuple[str, int]:
        """(cluster id, number of brokers); the first thing to ask. Who is not let in is told so at once."""
        for patience in _PATIENCE:
            try:
                metadata = self._admin.list_topics(timeout=patience)
            except KafkaException as raised:
                self._admin.poll(0)  # lets librdkafka say why
                if self.connection.locked_out or patience == _PATIENCE[-1]:
                    raise self.connection.error(raised.args[0], "") from raised
            else:
                return metadata.cluster_id or "", len(metadata.brokers)
        raise AssertionError

    def topic_names(self) -> list[str]:
        with self.connection.errors("listing topics"):
            return sorted(self._admin.list_topics(timeout=TIMEOUT).topics)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """Descriptions of `names` (default: all that may be seen); a topic that is not there is left out."""
        names = self.topic_names() if names is None else names
        answers, refused = ask_until_ready(names, self._describe, _DESCRIBE_NOT_READY, self._refresh)
        for name, error in refused.items():
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self.connection.error(error, f"describing topic {name}")
        return {
            name: Topic(
                name=name,
                id=str(described.topic_id or ""),
                internal=bool(described.is_internal),
                partitions=tuple(sorted(p.id for p in described.partitions)),
                replication_factor=max((len(p.replicas) for p in described.partitions), default=0),
                replicas=tuple(
                    tuple(node.id for node in p.replicas)
                    for p in sorted(described.partitions, key=lambda p: p.id)
                ),
            )
            for name, described in sorted(answers.items())
        }

    def _describe(self, names: list[str]) -> Answers[str, TopicDescription]:
        for batch in _batched(names):
            futures = self._admin.describe_topics(TopicCollection(batch), request_timeout=TIMEOUT)
            yield from (answered(*asked) for asked in futures.items())

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The configs set on each topic itself, without sensitive values."""
        return {
            topic: {
                entry.name: entry.value
                for entry in sorted(entries.values(), key=lambda e: e.name)
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
            }
            for topic, entries in self._topic_entries(names)
        }

    def one_config(self, names: Iterable[str], config: str) -> dict[str, str | None]:
        """Each topic's value of a config, which may be a default; None where brokers don't know it."""
        return {
            topic: entries[config].value if config in entries else None
            for topic, entries in self._topic_entries(names)
        }

    def _topic_entries(self, names: Iterable[str]) -> list[tuple[str, Any]]:
        answers, refused = ask_until_ready(names, self._describe_configs, LEADER_NOT_READY, self._refresh)
        for name, error in refused.items():
            raise self.connection.error(error, f"reading configs of topic {name}")
        return sorted(answers.items(), key=lambda answer: answer[0])

    def _describe_configs(self, topics: list[str]) -> Answers[str, Any]:
        for batch in _batched(topics):
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in batch]
            futures = self._admin.describe_configs(resources, request_timeout=TIMEOUT)
            yield from (answered(resource.name, future) for resource, future in futures.items())

    def all_topic_configs(self, name: str) -> dict[str, str]:
        """Every config of a topic, defaults included."""
        ((_, entries),) = self._topic_entries([name])
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}

    def broker_configs(self) -> dict[str, str]:
        """Every config of the first broker that answers, defaults included; what new topics will inherit."""
        return any_broker_configs(self.connection, self._admin)

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        return {tp: result.offset for tp, result in found.items()}

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        """The last stable offset of each partition for 'read_committed', else its high watermark."""
        level = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        found = self._offsets(partitions, OffsetSpec.latest(), level)
        return {tp: result.offset for tp, result in found.items()}

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Each partition's current one; None where the broker doesn't say."""
        found = self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return {tp: result.leader_epoch for tp, result in found.items()}

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, ListOffsetsResultInfo]:
        def ask(asked: list[TopicPartition]) -> Answers[TopicPartition, ListOffsetsResultInfo]:
            for batch in _batched(asked):
                request = {KafkaTopicPartition(tp.topic, tp.partition): spec for tp in batch}
                futures = self._admin.list_offsets(
                    request, isolation_level=isolation, request_timeout=TIMEOUT
                )
                for of, future in futures.items():
                    yield answered(TopicPartition(of.topic, of.partition), future)

        answers, refused = ask_until_ready(partitions, ask, LEADER_NOT_READY, self._refresh)
        for tp, error in refused.items():
            raise self.connection.error(error, f"asking for offsets of {tp}")
        return answers

    def _refresh(self) -> None:
        """Have the client look up brokers, leaders and topic ids again: it would keep the old ones for minutes."""
        with self.connection.errors("listing topics"):
            self._admin.list_topics(timeout=_REFRESH)

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        dry_run: bool = False,
    ) -> None:
        def ask(names: list[str]) -> Answers[str, None]:
            topics = [NewTopic(n, partitions, replication_factor, config=dict(configs)) for n in names]
            futures = self._admin.create_topics(
                topics, operation_timeout=TIMEOUT, request_timeout=TIMEOUT, validate_only=dry_run
            )
            yield from (answered(*asked) for asked in futures.items())

        _, refused = ask_until_ready([name], ask, CONTROLLER_NOT_READY)
        for error in refused.values():
            raise self.connection.error(error, f"creating topic {name}")

    def delete_topics(self, names: Iterable[str]) -> dict[str, str]:
        """Delete topics and return, by topic, '' or why the broker refused. A missing topic counts as deleted, and
        brokers may list a deleted topic for some time yet."""

        def ask(topics: list[str]) -> Answers[str, None]:
            for batch in _batched(topics):
                futures = self._admin.delete_topics(batch, operation_timeout=TIMEOUT, request_timeout=TIMEOUT)
                yield from (answered(*asked) for asked in futures.items())

        deleted, refused = ask_until_ready(names, ask, CONTROLLER_NOT_READY)
        return dict.fromkeys(deleted, "") | {
            name: ""
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            else self.connection.error(error, f"deleting topic {name}").message
            for name, error in refused.items()
        }


def _batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    ordered = sorted(items)
    for at in range(0, len(ordered), _BATCH):
        yield ordered[at : at + _BATCH]
