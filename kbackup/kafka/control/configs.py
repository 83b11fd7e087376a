"""Configs of topics and of brokers, as brokers describe them; and the requests for configs of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kbackup.errors import KbackupError
from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.deadline import Deadline
from kbackup.kafka.control.errors import (
    REQUEST_SECONDS,
    NoConnectionError,
    RefusedRequestError,
    RequestError,
    broker_error,
    remedy_for,
)
from kbackup.kafka.control.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kbackup.kafka.control.router import Answers, AnyBroker, Question, Router, explained, explaining

TOPIC, BROKER = 2, 4
"""Types of config resources."""

_SET_ON_TOPIC = 1
_DEFAULT = 5
"""Where a value comes from: it is set on the topic itself, or it is Kafka's own default."""

_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

_FIRST_WITH_SOURCE = 1
"""The first version of DescribeConfigs that says where a value comes from (brokers since 1.1)."""

_ONE_OF_MANY = 10.0  # s, for a broker that others can answer for


class ConfigEntry(NamedTuple):
    """A config of a topic or of a broker. `value` is None if none is set, or if it is sensitive: brokers never return
    such a value, and treat each unknown config as sensitive."""

    name: str
    value: str | None
    source: int
    sensitive: bool


Entries = dict[str, ConfigEntry]
"""Configs by name."""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Reads configs of topics; what it returns is sorted by topic. Every method raises `UnreachableError` or
    `ClusterError` where no broker answers."""

    router: Router

    def own(self, names: Iterable[str]) -> tuple[dict[str, dict[str, str]], dict[str, KbackupError]]:
        """Return the configs set on each topic itself, without sensitive values, and the error of each topic whose
        configs can't be read."""
        entries, unread = self._entries(names)
        configs: dict[str, dict[str, str]] = {}
        for topic, described in entries.items():
            own: dict[str, str] = {}
            for name, entry in sorted(described.items()):
                if entry.source == _SET_ON_TOPIC and entry.value is not None:
                    own[name] = entry.value
            configs[topic] = own
        return configs, unread

    def all(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return every config of each topic, defaults included. Raise the error of a topic whose configs can't be
        read."""
        entries, unread = self._entries(names)
        for error in unread.values():
            raise error
        return {topic: values_of(described) for topic, described in entries.items()}

    def one(self, names: Iterable[str], config: str) -> tuple[dict[str, str | None], dict[str, KbackupError]]:
        """Return the value of one config of each topic, which may be a default, None if brokers don't know it; and the
        error of each topic whose configs can't be read."""
        entries, unread = self._entries(names, [config])
        values: dict[str, str | None] = {}
        for topic, described in entries.items():
            entry = described.get(config)
            values[topic] = None if entry is None else entry.value
        return values, unread

    def _entries(
        self, names: Iterable[str], configs: Sequence[str] | None = None
    ) -> tuple[dict[str, Entries], dict[str, KbackupError]]:
        """Return the configs of each topic, by default all of them, and the error of each topic that is not
        described."""

        def request(broker: BrokerConnection, batch: list[str]) -> Any:
            return describe_request(TOPIC, batch, configs)

        question = Question[str, Entries](request, _described, oldest=_FIRST_WITH_SOURCE)
        topics = sorted({*names})
        answers, refused = self.router.ask_each(topics, question, AnyBroker())
        errors: dict[str, KbackupError] = {}
        for name, error in refused.items():
            errors[name] = self.router.connection.error(error, f"reading configs of topic {name}")
            if error.code() < 0:
                # No broker answered: that is not about this topic.
                raise errors[name]
        by_topic = sorted(answers.items())
        return dict(by_topic), errors


def values_of(entries: Entries) -> dict[str, str]:
    """Return the configs that have a value."""
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def broker_configs(router: Router, broker: int) -> dict[str, str]:
    """Return every config of a broker that has a value, static configs and defaults included. A sensitive config that
    is set is "": brokers never return its value."""
    with explaining(router.connection, f"reading configs of broker {broker}"):
        entries = _entries_of_broker(router, broker, REQUEST_SECONDS)
    configs = values_of(entries)
    for name, entry in entries.items():
        if entry.value is None and entry.sensitive and entry.source != _DEFAULT:
            configs[name] = ""
    return configs


def configs_of_some_broker(router: Router) -> dict[str, str]:
    """Return every config of the first broker that answers, defaults included. Configs that are secret or have no
    value are left out."""
    with explaining(router.connection, "listing brokers"):
        brokers = sorted(broker.node_id for broker in router.metadata([]).brokers)
    call = Deadline(REQUEST_SECONDS)
    error: RequestError = NoConnectionError("the cluster names no brokers", KafkaError._NOENT)
    for broker in cycle(brokers):
        try:
            return values_of(_entries_of_broker(router, broker, _ONE_OF_MANY))
        except RequestError as raised:
            error = raised
        if remedy_for(error.kafka_error(), change=False) is None:
            # No other broker would say anything else.
            break
        if not call.remaining():
            break
    raise explained(router.connection, error, "reading configs of brokers") from error


def _entries_of_broker(router: Router, broker: int, seconds: float) -> Entries:
    """Return the configs that a broker describes of itself: others don't know them."""
    response = router.ask(describe_request(BROKER, [str(broker)]), broker=broker, seconds=seconds)
    # One resource was asked about, so there is one answer.
    ((_, answer),) = _described(response, [str(broker)])
    if isinstance(answer, KafkaError):
        raise RefusedRequestError(answer.code(), answer.str())
    return answer


def describe_request(kind: int, names: Sequence[str], configs: Sequence[str] | None = None) -> Any:
    """Return the request for the configs of resources of one kind, by default all of their configs."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    keys = None if configs is None else list(configs)
    resources = [resource(resource_type=kind, resource_name=name, configuration_keys=keys) for name in names]
    return DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)


def _described(response: Any, batch: list[str]) -> Answers[str, Entries]:
    for result in response.results:
        if result.error_code:
            yield result.resource_name, broker_error(result.error_code, result.error_message)
            continue
        entries: Entries = {}
        for each in result.configs:
            # Brokers should leave sensitive values out, and old ones did not always.
            value = None if each.is_sensitive else each.value
            entries[each.name] = ConfigEntry(each.name, value, each.config_source, each.is_sensitive)
        yield result.resource_name, entries


def alteration(kind: int, name: str, changes: Mapping[str, str | None]) -> Any:
    """Return the part of IncrementalAlterConfigs that sets configs of a resource, or removes them (None)."""
    entry = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = []
    for config, value in changes.items():
        operation = _DELETE if value is None else _SET
        configs.append(entry.AlterableConfig(name=config, config_operation=operation, value=value))
    return entry(resource_type=kind, resource_name=name, configs=configs)
