"""Changes to many topics at once: create them, add partitions, set configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT

_BATCH = 500  # topics in one request

T = TypeVar("T")


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
        refused: dict[str, str] = {}
        for batch in _batches(topics):
            new = [
                NewTopic(t.name, t.partitions, t.replication_factor, config=dict(t.configs)) for t in batch
            ]
            futures = self._admin.create_topics(new, operation_timeout=TIMEOUT, request_timeout=TIMEOUT)
            refused |= self._refusals(futures, "creating topic", KafkaError.TOPIC_ALREADY_EXISTS)
        return refused

    def add_partitions(self, totals: Mapping[str, int]) -> dict[str, str]:
        """Raise each topic's number of partitions to the total given."""
        refused: dict[str, str] = {}
        for batch in _batches(list(totals.items())):
            new = [NewPartitions(name, total) for name, total in batch]
            futures = self._admin.create_partitions(new, operation_timeout=TIMEOUT, request_timeout=TIMEOUT)
            refused |= self._refusals(futures, "adding partitions to topic")
        return refused

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
        """Set configs of topics; None removes one, so that the default of the brokers holds."""
        refused: dict[str, str] = {}
        for batch in _batches(list(changes.items())):
            resources = [_alteration(name, configs) for name, configs in batch]
            futures = self._admin.incremental_alter_configs(resources, request_timeout=TIMEOUT)
            named = {resource.name: future for resource, future in futures.items()}
            refused |= self._refusals(named, "setting configs of topic")
        return refused

    def _refusals(
        self, futures: Mapping[str, Future[Any]], doing: str, harmless: int | None = None
    ) -> dict[str, str]:
        refused: dict[str, str] = {}
        for name, future in futures.items():
            try:
                future.result(timeout=TIMEOUT * 2)
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                explained = self.connection.error(error, f"{doing} {name}")
                if error.code() < 0:  # an error of the client library's own: no broker answered
                    raise explained from raised
                if error.code() != harmless:
                    refused[name] = explained.message
        return refused


def _alteration(name: str, configs: Mapping[str, str | None]) -> ConfigResource:
    resource = ConfigResource(ResourceType.TOPIC, name)
    for config, value in configs.items():
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(config, value, incremental_operation=operation))
    return resource


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), _BATCH):
        yield items[at : at + _BATCH]
