"""A cluster as the admin API shows it: topics, offsets, configs, consumer groups; and the changes a restore makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import ConfigResource, ConfigSource, NewTopic, OffsetSpec

from kbackup.kafka.client import COORDINATOR_NOT_READY, Connection, Properties
from kbackup.types import TopicPartition

_BATCH = 2000  # names or partitions in one admin request
_TIMEOUT = 30.0
_PAUSE = 0.3  # s, before a coordinator that is not ready is asked again

Item = TypeVar("Item", str, TopicPartition)


@dataclass(frozen=True, slots=True)
class Topic:
    """`id` is the broker's own (base64), '' for brokers before 2.8; `partitions` are the partition numbers."""

    name: str
    id: str
    internal: bool
    partitions: tuple[int, ...]
    replication_factor: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of a partition: the next to read."""

    tp: TopicPartition
    offset: int
    leader_epoch: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group: str
    type: str
    state: str


class Cluster:
    """The admin side of one cluster. Every method raises `UnreachableError` or `ClusterError` naming it."""

    def __init__(self, properties: Properties, role: str) -> None:
        self.connection = Connection(properties, role)
        self._admin = self.connection.admin()

    def connect(self) -> tuple[str, int]:
        """(cluster id, number of brokers); the first thing to ask."""
        try:
            metadata = self._admin.list_topics(timeout=15)
        except KafkaException as raised:
            self._admin.poll(0)  # lets librdkafka say why
            raise self.connection.error(raised.args[0], "") from raised
        return metadata.cluster_id or "", len(metadata.brokers)

    def topic_names(self) -> list[str]:
        with self.connection.errors("listing topics"):
            return sorted(self._admin.list_topics(timeout=_TIMEOUT).topics)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """Descriptions of `names` (default: all that may be seen); a topic that is not there is left out."""
        wanted = self.topic_names() if names is None else sorted(names)
        found: dict[str, Topic] = {}
        for some in _batched(wanted):
            futures = self._admin.describe_topics(TopicCollection(list(some)), request_timeout=_TIMEOUT)
            for name, future in futures.items():
                described = self._result(future, f"describing topic {name}", missing=_no_topic)
                if described is None:
                    continue
                found[name] = Topic(
                    name=name,
                    id=str(described.topic_id or ""),
                    internal=bool(described.is_internal),
                    partitions=tuple(sorted(p.id for p in described.partitions)),
                    replication_factor=max((len(p.replicas) for p in described.partitions), default=0),
                )
        return found

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The configs set on each topic itself, without sensitive values."""
        found: dict[str, dict[str, str]] = {}
        for some in _batched(names):
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in some]
            for resource, future in self._admin.describe_configs(resources, request_timeout=_TIMEOUT).items():
                entries = self._result(future, f"reading configs of topic {resource.name}")
                found[resource.name] = {
                    entry.name: entry.value
                    for entry in sorted(entries.values(), key=lambda e: e.name)
                    if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
                }
        return found

    def all_topic_configs(self, name: str) -> dict[str, str]:
        """Every config of a topic, defaults included."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        future = self._admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource]
        entries = self._result(future, f"reading configs of topic {name}")
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}

    def broker_configs(self) -> dict[str, str]:
        """Every config of one broker, defaults included; what new topics will inherit."""
        with self.connection.errors("listing brokers"):
            broker = min(self._admin.list_topics(timeout=_TIMEOUT).brokers)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        future = self._admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource]
        entries = self._result(future, f"reading configs of broker {broker}")
        return {entry.name: entry.value for entry in entries.values() if entry.value is not None}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        """The last stable offset of each partition for 'read_committed', else its high watermark."""
        level = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        return self._offsets(partitions, OffsetSpec.latest(), level)

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for some in _batched(partitions):
            request = {KafkaTopicPartition(tp.topic, tp.partition): spec for tp in some}
            futures = self._admin.list_offsets(request, isolation_level=isolation, request_timeout=_TIMEOUT)
            for asked, future in futures.items():
                tp = TopicPartition(asked.topic, asked.partition)
                found[tp] = self._result(future, f"asking for offsets of {tp}").offset
        return found

    def groups(self) -> tuple[list[GroupInfo], list[str]]:
        """The consumer groups, and what brokers said that could not list theirs."""
        listing = self._result(
            self._admin.list_consumer_groups(request_timeout=_TIMEOUT), "listing consumer groups"
        )
        found = [
            GroupInfo(g.group_id, _name(getattr(g, "type", None)), _name(getattr(g, "state", None)))
            for g in listing.valid
        ]
        return sorted(found, key=lambda g: g.group), [str(error) for error in listing.errors or []]

    def committed(self, groups: Sequence[str]) -> tuple[dict[str, list[Committed]], dict[str, str]]:
        """Every committed offset of each group; and, for groups that could not be read, why.

        All groups are asked at once; those whose coordinator is just loading are asked again for a while.
        """
        found: dict[str, list[Committed]] = {}
        failed: dict[str, str] = {}
        waiting = list(groups)
        until = time.monotonic() + _TIMEOUT
        while waiting:
            answers = [(group, self._ask_committed(group)) for group in waiting]
            failed = {group: why for group, why in failed.items() if group not in waiting}
            again: list[str] = []
            for group, future in answers:
                try:
                    found[group] = _offsets_of(future.result(timeout=_TIMEOUT * 2).topic_partitions)
                except KafkaException as raised:
                    failed[group] = self.connection.error(
                        raised.args[0], f"reading offsets of group {group}"
                    ).message
                    if raised.args[0].code() in COORDINATOR_NOT_READY and time.monotonic() < until:
                        again.append(group)
            waiting = again
            if waiting:
                time.sleep(_PAUSE)
        return found, failed

    def _ask_committed(self, group: str) -> Future[Any]:
        request = [ConsumerGroupTopicPartitions(group)]
        (future,) = self._admin.list_consumer_group_offsets(request, request_timeout=_TIMEOUT).values()
        return future

    def members(self, groups: Sequence[str]) -> dict[str, int]:
        """How many live members each group has; 0 for a group that is not there."""
        if not groups:
            return {}
        futures = self._admin.describe_consumer_groups(list(groups), request_timeout=_TIMEOUT)
        found: dict[str, int] = {}
        for group, future in futures.items():
            described = self._result(future, f"describing group {group}", missing=_no_group)
            found[group] = len(described.members) if described is not None else 0
        return found

    def commit(self, group: str, offsets: Sequence[Committed]) -> str:
        """Set a group's offsets; returns '' or why the broker refused (a live member, for instance)."""
        partitions = [
            KafkaTopicPartition(c.tp.topic, c.tp.partition, c.offset, metadata=c.metadata) for c in offsets
        ]
        until = time.monotonic() + _TIMEOUT
        while True:
            request = [ConsumerGroupTopicPartitions(group, partitions)]
            (future,) = self._admin.alter_consumer_group_offsets(request, request_timeout=_TIMEOUT).values()
            try:
                _offsets_of(future.result(timeout=_TIMEOUT * 2).topic_partitions)
            except KafkaException as raised:
                if raised.args[0].code() in COORDINATOR_NOT_READY and time.monotonic() < until:
                    time.sleep(_PAUSE)
                    continue
                return self.connection.error(raised.args[0], f"setting offsets of group {group}").message
            return ""

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        dry_run: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replication_factor, config=dict(configs))
        futures = self._admin.create_topics([topic], operation_timeout=_TIMEOUT, validate_only=dry_run)
        self._result(futures[name], f"creating topic {name}")

    def delete_groups(self, groups: Sequence[str]) -> None:
        """Delete groups; one that is not there counts as deleted."""
        for group, future in self._admin.delete_consumer_groups(
            list(groups), request_timeout=_TIMEOUT
        ).items():
            self._result(future, f"deleting group {group}", missing=_no_group)

    def _result(
        self, future: Future[Any], doing: str, missing: Callable[[KafkaError], bool] | None = None
    ) -> Any:
        try:
            return future.result(timeout=_TIMEOUT * 2)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if missing is not None and missing(error):
                return None
            raise self.connection.error(error, doing) from raised


def _offsets_of(partitions: Sequence[KafkaTopicPartition]) -> list[Committed]:
    """What the broker says of each partition of a group; raises the first error among them."""
    for p in partitions:
        if p.error is not None:
            raise KafkaException(p.error)
    return [
        Committed(TopicPartition(p.topic, p.partition), p.offset, p.leader_epoch, p.metadata or "")
        for p in sorted(partitions, key=lambda p: (p.topic, p.partition))
        if p.offset >= 0
    ]


def _batched(items: Iterable[Item]) -> Iterator[list[Item]]:
    ordered = sorted(items)
    for at in range(0, len(ordered), _BATCH):
        yield ordered[at : at + _BATCH]


def _no_topic(error: KafkaError) -> bool:
    return error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _no_group(error: KafkaError) -> bool:
    return error.code() == KafkaError.GROUP_ID_NOT_FOUND


def _name(value: Any) -> str:
    return "" if value is None else str(value.name).lower()
