"""What differs between two sides: the one comparison behind `kbackup diff`, the plan of a restore's settings, and the
verification of a migration.

Each of these asks the same of two mappings: which values came, which went, and which are others now. What they make of
an answer is their own: words for people, a request that sets a value, or a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from kbackup.metadata.entities import BrokerConfig, ClientMetrics, ClientQuota, GroupConfig, QuotaEntity, QuotaKey

K = TypeVar("K")
V = TypeVar("V")

ChangeKind = Literal["appeared", "gone", "changed"]


@dataclass(frozen=True, slots=True)
class ValueChange(Generic[K, V]):
    """A value that is another one after than before.

    None is a value as well, such as that of a config that brokers never tell: `kind` says whether a side has none."""

    key: K
    kind: ChangeKind
    before: V | None
    after: V | None


def pairs(before: Mapping[K, V], after: Mapping[K, V]) -> Iterator[tuple[K, V | None, V | None]]:
    """Yield each key of either side in order, with both values; None if a side has no such key."""
    for key in _sorted_keys(before, after):
        yield key, before.get(key), after.get(key)


def changed_values(
    before: Mapping[K, V], after: Mapping[K, V], order: Callable[[K], Any] | None = None
) -> Iterator[ValueChange[K, V]]:
    """Yield the values that differ, in order of their keys, or in that which `order` sorts the keys by."""
    for key in _sorted_keys(before, after, order):
        kind = change_kind(key, before, after)
        if kind != "changed" or before[key] != after[key]:
            yield ValueChange(key, kind, before.get(key), after.get(key))


def _sorted_keys(before: Mapping[K, V], after: Mapping[K, V], order: Callable[[K], Any] | None = None) -> list[K]:
    keys = {*before, *after}
    return sorted(keys, key=order)  # type: ignore[type-var,arg-type]  # keys of one side can be compared


def change_kind(key: K, before: Container[K], after: Container[K]) -> ChangeKind:
    """Return what became of a key that at least one of the sides has."""
    if key not in before:
        return "appeared"
    return "changed" if key in after else "gone"


# The settings of a cluster as values: by what they are set on, and their name there.


def entity_key(entity: QuotaEntity) -> QuotaKey:
    return tuple(sorted(entity.items()))


def quota_values(quotas: Iterable[ClientQuota]) -> dict[tuple[QuotaKey, str], float]:
    values: dict[tuple[QuotaKey, str], float] = {}
    for quota in quotas:
        entity = entity_key(quota.entity)
        for name, value in quota.quotas.items():
            values[entity, name] = value
    return values


def broker_config_values(configs: Iterable[BrokerConfig]) -> dict[tuple[int | None, str], str | None]:
    """Return values by broker and name; broker None are the defaults of all brokers."""
    return {(config.broker, config.name): config.value for config in configs}


def group_config_values(configs: Iterable[GroupConfig]) -> dict[tuple[str, str], str | None]:
    return {(config.group, config.name): config.value for config in configs}


def client_metrics_values(subscriptions: Iterable[ClientMetrics]) -> dict[tuple[str, str], str]:
    values: dict[tuple[str, str], str] = {}
    for subscription in subscriptions:
        for name, value in subscription.configs.items():
            values[subscription.name, name] = value
    return values
