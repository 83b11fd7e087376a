"""Changes to many topics at once: create them, add partitions, set configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kbackup.kafka.client.client import Connection
from kbackup.kafka.client.retry import CONTROLLER_NOT_READY, TIMEOUT, Answers, answered, ask_until_ready

_BATCH = 500  # topics in one request


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicAdmin:
    """Each method maps the topics that the brokers refused to the reason, and raises where no broker answers."""

    def __init__(self, connection: Connection, admin: AdminClient) -> None:
        self.connection = connection
        self._admin = admin

    def create(self, topics: Sequence[TopicToCreate]) -> dict[str, str]:
        """Create topics. A topic that exists already counts as created: another process was faster."""
        named = {topic.name: topic for topic in topics}

        def ask(names: list[str]) -> Mapping[str, Future[Any]]:
            new = [_new_topic(named[name]) for name in names]
            return self._admin.create_topics(new, operation_timeout=TIMEOUT, request_timeout=TIMEOUT)

        return self._change(named, ask, "creating topic", KafkaError.TOPIC_ALREADY_EXISTS)

    def add_partitions(self, totals: Mapping[str, int]) -> dict[str, str]:
        """Raise each topic's number of partitions to the total given."""

        def ask(names: list[str]) -> Mapping[str, Future[Any]]:
            new = [NewPartitions(name, totals[name]) for name in names]
            return self._admin.create_partitions(new, operation_timeout=TIMEOUT, request_timeout=TIMEOUT)

        return self._change(totals, ask, "adding partitions to topic")

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
        """Set configs of topics; None removes one, so that the default of the brokers holds."""

        def ask(names: list[str]) -> Mapping[str, Future[Any]]:
            resources = [_alteration(name, changes[name]) for name in names]
            futures = self._admin.incremental_alter_configs(resources, request_timeout=TIMEOUT)
            return {resource.name: future for resource, future in futures.items()}

        return self._change(changes, ask, "setting configs of topic")

    def _change(
        self,
        names: Iterable[str],
        ask: Callable[[list[str]], Mapping[str, Future[Any]]],
        doing: str,
        harmless: int | None = None,
    ) -> dict[str, str]:
        def ask_in_batches(waiting: list[str]) -> Answers[str, None]:
            for at in range(0, len(waiting), _BATCH):
                futures = ask(waiting[at : at + _BATCH])
                yield from (answered(*asked) for asked in futures.items())

        _, refused = ask_until_ready(names, ask_in_batches, CONTROLLER_NOT_READY)
        reasons: dict[str, str] = {}
        for name, error in refused.items():
            explained = self.connection.error(error, f"{doing} {name}")
            if error.code() < 0:  # an error of the client library's own: no broker answered
                raise explained
            if error.code() != harmless:
                reasons[name] = explained.message
        return reasons


def _new_topic(topic: TopicToCreate) -> NewTopic:
    return NewTopic(topic.name, topic.partitions, topic.replication_factor, config=dict(topic.configs))


def _alteration(name: str, configs: Mapping[str, str | None]) -> ConfigResource:
    resource = ConfigResource(ResourceType.TOPIC, name)
    for config, value in configs.items():
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(config, value, incremental_operation=operation))
    return resource
