"""Configs that were set while brokers run: on a broker, on all brokers, on groups and on client metrics.

Configs of topics are in `configs`. Brokers never return sensitive values: they are None here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kbackup.kafka.control.access import results_in_order
from kbackup.kafka.control.configs import BROKER, alteration, describe_request
from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import RequestError, broker_error
from kbackup.kafka.control.members import Members
from kbackup.kafka.control.messages import admin
from kbackup.kafka.control.router import Answers, AnyBroker, Brokers, K, Place, Question, Router
from kbackup.kafka.control.unavailable import Unavailable, UnavailableError, refusal
from kbackup.metadata.entities import BrokerConfig, ClientMetrics, GroupConfig

_CLIENT_METRICS, _GROUP = 16, 32
"""Kafka's types of config resources; topics and brokers are in `configs`."""

_OF_BROKER, _OF_ALL_BROKERS, _OF_CLIENT_METRICS, _OF_GROUP = 2, 3, 7, 8
"""Kafka's sources of config values: where a value was set."""

_ALL_BROKERS = ""
"""The name of the resource whose configs all brokers inherit."""

_GROUPS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class DynamicConfigs:
    """What is listed is sorted. Changes return '' or why they were refused."""

    router: Router

    def of_brokers(self) -> list[BrokerConfig] | Unavailable:
        """Return the configs set on each broker, and the configs that all brokers inherit."""
        try:
            configs = [*self._of_all_brokers(), *self._of_each_broker()]
        except UnavailableError as error:
            return error.unavailable
        return sorted(configs, key=_broker_order)

    def _of_all_brokers(self) -> Iterator[BrokerConfig]:
        described = self._describe(BROKER, [_ALL_BROKERS], AnyBroker(), _reading_all_brokers)
        for config in described[_ALL_BROKERS]:
            if config.config_source == _OF_ALL_BROKERS:
                yield BrokerConfig(broker=None, name=config.name, value=_value(config))

    def _of_each_broker(self) -> Iterator[BrokerConfig]:
        brokers = Members(self.router).broker_ids()
        if isinstance(brokers, Unavailable):
            raise UnavailableError(brokers)
        # A broker knows its own configs alone.
        described = self._describe(BROKER, brokers, Brokers(), _reading_broker)
        for broker, configs in described.items():
            for config in configs:
                if config.config_source == _OF_BROKER:
                    yield BrokerConfig(broker=broker, name=config.name, value=_value(config))

    def of_groups(self, groups: Iterable[str]) -> list[GroupConfig] | Unavailable:
        """Return the configs set on `groups`."""
        try:
            described = self._describe(_GROUP, sorted(groups), AnyBroker(), _reading_group)
        except UnavailableError as error:
            if error.unavailable.reason == "not supported":
                address = self.router.connection.address
                why = f"{address} has no group configs: its brokers are too old, or use ZooKeeper"
                return Unavailable("not supported", why)
            return error.unavailable
        found = []
        for group, configs in described.items():
            for config in configs:
                if config.config_source == _OF_GROUP:
                    found.append(GroupConfig(group=group, name=config.name, value=_value(config)))
        return sorted(found, key=_group_order)

    def of_client_metrics(self) -> list[ClientMetrics] | Unavailable:
        """Return the subscriptions to metrics of clients."""
        request = admin.ListConfigResourcesRequest(resource_types=[_CLIENT_METRICS])
        try:
            listed = self.router.ask(request).config_resources
        except RequestError as error:
            return Unavailable.of(error.kafka_error(), "describing client metrics", self.router.connection)
        names = sorted(each.resource_name for each in listed if each.resource_type == _CLIENT_METRICS)
        try:
            described = self._describe(_CLIENT_METRICS, names, AnyBroker(), _reading_client_metrics)
        except UnavailableError as error:
            return error.unavailable
        return [metrics_of(name, configs) for name, configs in described.items()]

    def set_on_broker(self, broker: int, name: str, value: str | None) -> str:
        """Set a config of one broker, or remove it (None)."""
        doing = f"setting {name} of broker {broker}"
        return self._set(BROKER, broker, {name: value}, Brokers(), doing)

    def set_on_all_brokers(self, name: str, value: str | None) -> str:
        """Set a config that all brokers inherit, or remove it (None)."""
        return self._set(BROKER, _ALL_BROKERS, {name: value}, AnyBroker(), f"setting {name} of all brokers")

    def set_on_group(self, group: str, name: str, value: str | None) -> str:
        """Set a config of a group, or remove it (None)."""
        return self._set(_GROUP, group, {name: value}, AnyBroker(), f"setting {name} of group {group}")

    def set_client_metrics(self, subscription: str, values: Mapping[str, str | None]) -> str:
        """Set configs of a subscription, or remove them (None); one without configs is gone."""
        doing = f"setting client metrics {subscription}"
        return self._set(_CLIENT_METRICS, subscription, values, AnyBroker(), doing)

    def _describe(
        self, kind: int, owners: Iterable[K], place: Place[K], doing: Callable[[K], str]
    ) -> dict[K, list[Any]]:
        """Return every config of each owner, as Kafka's response has it. Raise `UnavailableError` if the configs of one
        owner can't be read; `doing` names what was asked about that owner."""

        def request(broker: BrokerConnection, batch: list[K]) -> Any:
            return describe_request(kind, [str(owner) for owner in batch])

        question = Question[K, list[Any]](request, _described, at_once=_GROUPS_AT_ONCE)
        asked = list(owners)
        answers, refused = self.router.ask_each(asked, question, place)
        for owner in asked:
            if owner in refused:
                unavailable = Unavailable.of(refused[owner], doing(owner), self.router.connection)
                raise UnavailableError(unavailable)
        return {owner: answers[owner] for owner in asked}

    def _set(self, kind: int, owner: K, values: Mapping[str, str | None], place: Place[K], doing: str) -> str:
        def request(broker: BrokerConnection, owners: list[K]) -> Any:
            resource = alteration(kind, str(owner), values)
            return admin.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

        question = Question[K, None](request, _changed, change=True)
        _, refused = self.router.ask_each([owner], question, place)
        error = refused.get(owner)
        return "" if error is None else refusal(error, doing, self.router.connection)


def _described(response: Any, owners: list[K]) -> Answers[K, list[Any]]:
    by_name = {str(owner): owner for owner in owners}
    for result in response.results:
        owner = by_name.get(result.resource_name)
        if owner is None:
            # What nobody asked about is left out, as the router leaves it out.
            continue
        if result.error_code:
            yield owner, broker_error(result.error_code, result.error_message)
        else:
            yield owner, list(result.configs)


def _changed(response: Any, owners: list[K]) -> Answers[K, None]:
    yield from results_in_order(owners, response.responses)


def metrics_of(name: str, configs: Iterable[Any]) -> ClientMetrics:
    """Return a subscription by its name and its configs, as Kafka's response to DescribeConfigs has them."""
    own: dict[str, str] = {}
    for config in sorted(configs, key=_name):
        # What comes from elsewhere is a default; one without a value is not set.
        if config.config_source == _OF_CLIENT_METRICS and config.value is not None:
            own[config.name] = config.value
    return ClientMetrics(name=name, configs=own)


def _name(config: Any) -> str:
    return str(config.name)


def _value(config: Any) -> str | None:
    if config.is_sensitive:
        return None
    return config.value  # type: ignore[no-any-return]  # kafka-python has no types


# What is being done, in the words of errors: `client._NEEDED` has the right that each takes.


def _reading_all_brokers(owner: str) -> str:
    return "reading configs of brokers"


def _reading_broker(broker: int) -> str:
    return f"reading configs of broker {broker}"


def _reading_group(group: str) -> str:
    return f"reading configs of group {group}"


def _reading_client_metrics(subscription: str) -> str:
    return "describing client metrics"


def _broker_order(config: BrokerConfig) -> tuple[str, str]:
    """Return what configs of brokers are sorted by: first come the configs that all brokers inherit."""
    if config.broker is None:
        return "", config.name
    return str(config.broker), config.name


def _group_order(config: GroupConfig) -> tuple[str, str]:
    return config.group, config.name
