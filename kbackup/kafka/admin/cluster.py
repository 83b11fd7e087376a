"""A cluster as the admin API shows it: brokers, topics, partitions and their configs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions

from kbackup.errors import ClusterError, KbackupError
from kbackup.kafka.client import Connection, Properties, admin_properties
from kbackup.kafka.control.access import SecurityAdmin
from kbackup.kafka.control.dynamic_configs import DynamicConfigs
from kbackup.kafka.control.members import Members
from kbackup.kafka.control.router import Router
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.kafka.groups.admin import GroupAdmin
from kbackup.kafka.retry import (
    CONTROLLER_NOT_READY,
    LEADER_NOT_READY,
    TIMEOUT,
    Answers,
    NotReady,
    answered,
    ask_until_ready,
)
from kbackup.types import TopicPartition
from kbackup.util.system import attempts

_ONE_OF_MANY = 10.0  # s, for a broker that others can answer for
_PATIENCE = (2.0, 13.0)  # s, for the first answer; it is looked in between whether there will be any
_REFRESH = 10.0  # s
_BATCH = 2000
"""Names or partitions in one admin request; of a change, records of the metadata log: controllers refuse 10,000."""
_VISIBLE, _PAUSE = 30.0, 0.1  # s, until every broker shows what the controller has agreed to

_DESCRIBE_NOT_READY = {code: s for code, s in LEADER_NOT_READY.items() if code != KafkaError.UNKNOWN_TOPIC_OR_PART}


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
        self.connection = Connection(properties, role)
        self._members = Members(Router(self.connection))
        self._admin = self.connection.admin()

    def brokers(self) -> Brokers:
        """Return all of it by one request."""
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

    def fetch_version(self, broker: int) -> int | Unavailable:
        """Return the newest version of the Fetch request that a broker knows. It identifies the release."""
        return self._members.fetch_version(broker)

    def reassignments(self) -> list[str] | Unavailable:
        """Return the partitions that are on their way to other brokers, such as orders-0."""
        return self._members.reassignments()

    def configs(self, broker: int) -> dict[str, str]:
        """Return every config of a broker, static ones and defaults included, without those that are not
        set. A sensitive config that is set is "": brokers never return its value. They treat each unknown
        config as sensitive."""
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        (future,) = self._admin.describe_configs([resource], request_timeout=TIMEOUT).values()
        entries = self.connection.result(future, f"reading configs of broker {broker}")
        default = ConfigSource.DEFAULT_CONFIG.value
        return {
            entry.name: "" if entry.value is None else entry.value
            for entry in entries.values()
            if entry.value is not None or (entry.is_sensitive and entry.source != default)
        }


Item = TypeVar("Item", str, TopicPartition)
Request = Callable[[list[Item]], Mapping[Any, Future[Any]]]
"""Sends one admin request for some items, and returns the future of each by confluent-kafka's name for the item."""


def _ask(
    items: Iterable[Item],
    request: Request[Item],
    not_ready: NotReady,
    refresh: Callable[[], object] = lambda: None,
    weight: Callable[[Item], int] = lambda item: 1,
) -> tuple[dict[Item, Any], dict[Item, KafkaError]]:
    """Return each item's answer, and the error of each item that was refused. The items of one request weigh `_BATCH`
    at most, but for one that is heavier alone."""

    def ask(waiting: list[Item]) -> Answers[Any, Any]:
        for batch in _batches(sorted(waiting), weight):
            for key, future in request(batch).items():
                if isinstance(key, ConfigResource):
                    yield answered(key.name, future)
                elif isinstance(key, KafkaTopicPartition):
                    tp, answer = answered(TopicPartition(key.topic, key.partition), future)
                    if not isinstance(answer, KafkaError) and answer.offset == OFFSET_INVALID:
                        # librdkafka's answer, without an error, where a leader goes away meanwhile
                        answer = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                    yield tp, answer
                else:
                    yield answered(key, future)

    return ask_until_ready(items, ask, not_ready, refresh)


def _batches(items: Iterable[Item], weight: Callable[[Item], int]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    room = _BATCH
    for item in items:
        if batch and weight(item) > room:
            yield batch
            batch, room = [], _BATCH
        batch.append(item)
        room -= weight(item)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class RefusedConfigError(ClusterError):
    """The brokers don't know a config of a topic, or don't take its value. `reason` is in their own words."""

    def __init__(self, message: str, hint: str, reason: str) -> None:
        super().__init__(message, hint)
        self.reason = reason


class TopicAdmin:
    """Changes many topics at once. Each method maps the topics that the brokers refused to the error, and raises where
    no broker answers."""

    def __init__(self, connection: Connection, admin: AdminClient) -> None:
        self.connection = connection
        self._admin = admin

    def create(
        self, topics: Iterable[TopicToCreate], *, exist_ok: bool = False, dry_run: bool = False
    ) -> dict[str, KbackupError]:
        """Create topics. `exist_ok`: a topic that exists already counts as created, another process was faster.
        `dry_run`: the brokers only check whether they would."""
        named = {topic.name: topic for topic in topics}

        def request(names: list[str]) -> Mapping[str, Future[Any]]:
            asked = [named[name] for name in names]
            new = [NewTopic(t.name, t.partitions, t.replication_factor, config=dict(t.configs)) for t in asked]
            timeouts = {"operation_timeout": TIMEOUT, "request_timeout": TIMEOUT}
            return self._admin.create_topics(new, **timeouts, validate_only=dry_run)

        def records(name: str) -> int:
            return 1 + named[name].partitions + len(named[name].configs)

        harmless = KafkaError.TOPIC_ALREADY_EXISTS if exist_ok else None
        return self._refused("creating topic", named, request, records, harmless)

    def wait_visible(self, totals: Mapping[str, int]) -> dict[str, KbackupError]:
        """Wait until the brokers show so many partitions of each topic, with their leaders."""
        missing = dict(totals)
        for _ in attempts(_VISIBLE, _PAUSE) if totals else ():
            with self.connection.errors("listing topics"):
                shown = self._admin.list_topics(timeout=TIMEOUT).topics
            led = {name: sum(p.leader >= 0 for p in topic.partitions.values()) for name, topic in shown.items()}
            missing = {name: total for name, total in missing.items() if led.get(name, 0) < total}
            if not missing:
                break
        return {name: self.connection.silent(f"does not show the new partitions of topic {name}") for name in missing}

    def add_partitions(self, totals: Mapping[str, int], *, dry_run: bool = False) -> dict[str, KbackupError]:
        """Raise each topic's number of partitions to the total given. `dry_run`: the brokers only check whether they
        would."""

        def request(names: list[str]) -> Mapping[str, Future[Any]]:
            new = [NewPartitions(name, totals[name]) for name in names]
            timeouts = {"operation_timeout": TIMEOUT, "request_timeout": TIMEOUT}
            return self._admin.create_partitions(new, **timeouts, validate_only=dry_run)

        return self._refused("adding partitions to topic", totals, request, lambda name: totals[name])

    def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, dry_run: bool = False
    ) -> dict[str, KbackupError]:
        """Set configs of topics; None removes one, so that the default of the brokers holds. `dry_run`: the brokers
        only check whether they would."""

        def request(names: list[str]) -> Mapping[Any, Future[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
            for resource in resources:
                for config, value in changes[resource.name].items():
                    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                    resource.add_incremental_config(ConfigEntry(config, value, incremental_operation=operation))
            return self._admin.incremental_alter_configs(resources, request_timeout=TIMEOUT, validate_only=dry_run)

        return self._refused("setting configs of topic", changes, request, lambda name: len(changes[name]))

    def _refused(
        self,
        doing: str,
        names: Iterable[str],
        request: Request[str],
        records: Callable[[str], int],
        harmless: int | None = None,
    ) -> dict[str, KbackupError]:
        """`records` of the metadata log are what a topic's change takes."""
        _, refused = _ask(names, request, CONTROLLER_NOT_READY, weight=records)
        errors: dict[str, KbackupError] = {}
        for name, error in refused.items():
            explained = self.connection.error(error, f"{doing} {name}")
            if error.code() < 0:  # an error of the client library's own: no broker answered
                raise explained
            if error.code() == KafkaError.INVALID_CONFIG:
                errors[name] = RefusedConfigError(explained.message, explained.hint, error.str())
            elif error.code() != harmless:
                errors[name] = explained
        return errors


@dataclass(frozen=True, slots=True)
class Topic:
    """`id` is the broker's own (base64), '' for brokers before 2.8; `partitions` are the partition numbers. `replicas`
    has the ids of each one's brokers, the preferred leader first. `offline` are the partitions without a leader."""

    name: str
    id: str
    internal: bool
    partitions: tuple[int, ...]
    replication_factor: int
    replicas: tuple[tuple[int, ...], ...] = ()
    offline: tuple[int, ...] = ()


class Cluster:
    """The admin side of one cluster. Every method raises `UnreachableError` or `ClusterError` naming it.

    `groups` are its consumer groups, `security` its ACLs, users, tokens and quotas, `dynamic_configs` what was set at
    run time, `members` its brokers and controllers. `topic_admin` changes many topics at once.
    """

    def __init__(self, properties: Properties, role: str) -> None:
        self.connection = Connection(admin_properties(properties), role)
        self.router = Router(self.connection)
        self._admin = self.connection.admin()
        self.groups = GroupAdmin(self.connection, self._admin)
        self.security = SecurityAdmin(self.router)
        self.dynamic_configs = DynamicConfigs(self.router)
        self.members = Members(self.router)
        self.topic_admin = TopicAdmin(self.connection, self._admin)

    def connect(self) -> tuple[str, int]:
        """Return (cluster id, number of brokers), with the first request: a refused login shows at once."""
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

    def round_trip(self, topic: str) -> float:
        """Return the seconds until a broker answers a small request, about a topic that exists; 0 if none does."""
        began = time.monotonic()
        with suppress(KafkaException):
            self._admin.list_topics(topic, timeout=_REFRESH)
            return time.monotonic() - began
        return 0.0

    def topic_names(self) -> list[str]:
        with self.connection.errors("listing topics"):
            return sorted(self._admin.list_topics(timeout=TIMEOUT).topics)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """Descriptions of `names` (default: all that may be seen); a topic that is not there is left out."""
        topics, refused = self.described_topics(self.topic_names() if names is None else names)
        for error in refused.values():
            raise error
        return topics

    def described_topics(self, names: Iterable[str]) -> tuple[dict[str, Topic], dict[str, KbackupError]]:
        """Return the descriptions of `names`, and the error of each topic that the brokers don't describe to us; a
        topic that is not there is in neither."""

        def request(batch: list[str]) -> Mapping[Any, Future[Any]]:
            return self._admin.describe_topics(TopicCollection(batch), request_timeout=TIMEOUT)

        answers, refused = _ask(names, request, _DESCRIBE_NOT_READY, self._refresh)
        errors: dict[str, KbackupError] = {}
        for name, error in refused.items():
            explained = self.connection.error(error, f"describing topic {name}")
            if error.code() < 0:  # an error of the client library's own: no broker answered
                raise explained
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                errors[name] = explained
        topics = {}
        for name, described in sorted(answers.items()):
            partitions = sorted(described.partitions, key=lambda p: p.id)
            topics[name] = Topic(
                name=name,
                id=str(described.topic_id or ""),
                internal=bool(described.is_internal),
                partitions=tuple(p.id for p in partitions),
                replication_factor=max((len(p.replicas) for p in partitions), default=0),
                replicas=tuple(tuple(node.id for node in p.replicas) for p in partitions),
                offline=tuple(p.id for p in partitions if p.leader is None or p.leader.id < 0),
            )
        return topics, errors

    def missing_rights(self, names: Iterable[str], rights: Collection[str]) -> dict[str, list[str]]:
        """Return, by topic, those of the `rights` that our user lacks, such as WRITE. Topics that lack none are left
        out, and those of which the brokers don't tell."""

        def request(batch: list[str]) -> Mapping[Any, Future[Any]]:
            topics = TopicCollection(batch)
            return self._admin.describe_topics(topics, include_authorized_operations=True, request_timeout=TIMEOUT)

        answers, _ = _ask(names, request, _DESCRIBE_NOT_READY, self._refresh)
        missing: dict[str, list[str]] = {}
        for name, described in answers.items():
            granted = {right.name for right in described.authorized_operations or ()}
            lacking = [right for right in rights if right not in granted] if granted else []
            if lacking:
                missing[name] = lacking
        return missing

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the configs set on each topic itself, without sensitive values."""
        configs, unread = self.readable_topic_configs(names)
        for error in unread.values():
            raise error
        return configs

    def readable_topic_configs(self, names: Iterable[str]) -> tuple[dict[str, dict[str, str]], dict[str, KbackupError]]:
        """Return the configs set on each topic itself, without sensitive values, and the error of each topic whose
        configs can't be read."""
        entries_of, unread = self._readable_topic_entries(names)
        configs: dict[str, dict[str, str]] = {}
        for topic, entries in entries_of:
            configs[topic] = {
                entry.name: entry.value
                for entry in sorted(entries.values(), key=lambda e: e.name)
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
            }
        return configs, unread

    def one_config(self, names: Iterable[str], config: str) -> dict[str, str | None]:
        """Return each topic's value of a config, which may be a default; None if brokers don't know it."""
        return {
            topic: entries[config].value if config in entries else None for topic, entries in self._topic_entries(names)
        }

    def readable_config(self, names: Iterable[str], config: str) -> dict[str, str]:
        """Return the value of a config, which may be a default, of each topic whose configs can be read."""
        values: dict[str, str] = {}
        for topic, entries in self._readable_topic_entries(names)[0]:
            if config in entries and entries[config].value is not None:
                values[topic] = entries[config].value
        return values

    def _topic_entries(self, names: Iterable[str]) -> list[tuple[str, Any]]:
        entries, unread = self._readable_topic_entries(names)
        for error in unread.values():
            raise error
        return entries

    def _readable_topic_entries(self, names: Iterable[str]) -> tuple[list[tuple[str, Any]], dict[str, KbackupError]]:
        """Return the config entries of each topic, and the error of each topic whose configs can't be read."""

        def request(batch: list[str]) -> Mapping[Any, Future[Any]]:
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in batch]
            return self._admin.describe_configs(resources, request_timeout=TIMEOUT)

        answers, refused = _ask(names, request, LEADER_NOT_READY, self._refresh)
        errors: dict[str, KbackupError] = {}
        for name, error in refused.items():
            errors[name] = self.connection.error(error, f"reading configs of topic {name}")
            if error.code() < 0:  # an error of the client library's own: no broker answered
                raise errors[name]
        return sorted(answers.items(), key=lambda answer: answer[0]), errors

    def all_topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return every config of each topic, defaults included."""
        return {
            topic: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
            for topic, entries in self._topic_entries(names)
        }

    def broker_configs(self) -> dict[str, str]:
        """Return every config of the first broker that answers, defaults included, without those that are not set, or
        secret; what new topics will inherit."""

        def ask(items: list[str]) -> Answers[str, Any]:
            with self.connection.errors("listing brokers"):
                brokers = sorted(self._admin.list_topics(timeout=TIMEOUT).brokers)
            answer: Any = KafkaError(KafkaError._NOENT)
            for broker in brokers:
                resource = ConfigResource(ResourceType.BROKER, str(broker))
                (future,) = self._admin.describe_configs([resource], request_timeout=_ONE_OF_MANY).values()
                _, answer = answered("", future)
                if not isinstance(answer, KafkaError) or answer.code() not in LEADER_NOT_READY:
                    break  # no other broker would say anything else
            yield items[0], answer

        doing = "reading configs of brokers"
        answers, refused = ask_until_ready([doing], ask, LEADER_NOT_READY)
        for error in refused.values():
            raise self.connection.error(error, doing)
        return {entry.name: entry.value for entry in answers[doing].values() if entry.value is not None}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._offsets(partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        return {tp: result.offset for tp, result in found.items()}

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition for 'read_committed', else its high watermark."""
        level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
        found = self._offsets(partitions, OffsetSpec.latest(), level)
        return {tp: result.offset for tp, result in found.items()}

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int | None]]:
        """Return each partition's high watermark and current leader epoch; None if the broker doesn't return that."""
        found = self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return {tp: (result.offset, result.leader_epoch) for tp, result in found.items()}

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        return {tp: epoch for tp, (_, epoch) in self.high_watermarks(partitions).items()}

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, ListOffsetsResultInfo]:
        def request(batch: list[TopicPartition]) -> Mapping[Any, Future[Any]]:
            asked = {KafkaTopicPartition(tp.topic, tp.partition): spec for tp in batch}
            return self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=TIMEOUT)

        answers, refused = _ask(partitions, request, LEADER_NOT_READY, self._refresh)
        for tp, error in refused.items():
            raise self.connection.error(error, f"asking for offsets of {tp}")
        return answers

    def _refresh(self) -> None:
        """Have the client look up brokers, leaders and topic ids again: it would keep the old ones for minutes."""
        with self.connection.errors("listing topics"):
            self._admin.list_topics(timeout=_REFRESH)

    def delete_topics(self, names: Iterable[str]) -> dict[str, str]:
        """Delete topics and return, by topic, '' or why the broker refused. A missing topic counts as deleted, and
        brokers may list a deleted topic for some time yet."""
        request = partial(self._admin.delete_topics, operation_timeout=TIMEOUT, request_timeout=TIMEOUT)
        deleted, refused = _ask(names, request, CONTROLLER_NOT_READY)
        return dict.fromkeys(deleted, "") | {
            name: ""
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            else self.connection.error(error, f"deleting topic {name}").message
            for name, error in refused.items()
        }
