"""Findings of the preflight of a migration: from brokers, ZooKeeper, controllers, and the archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kbackup.jobs.migrate.rollback.situation import Sign
from kbackup.jobs.migrate.unread import NotRead


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is alive. `fetch_version` is the highest version of the Fetch request that it speaks, `configs`
    are all its configs with the static ones, without those that are not set; "" is the value of a sensitive one."""

    id: int
    fetch_version: int | NotRead
    configs: Mapping[str, str] | NotRead


@dataclass(frozen=True, slots=True)
class BrokerFindings:
    """Findings at the brokers. `assigned` are the ids of the brokers that hold replicas, `offline` the partitions
    without a leader such as orders-0, `reassigning` the partitions that move."""

    cluster_id: str
    brokers: tuple[Broker, ...]
    assigned: frozenset[int]
    offline: tuple[str, ...]
    reassigning: tuple[str, ...] | NotRead


@dataclass(frozen=True, slots=True)
class ZooKeeperFindings:
    """Findings in ZooKeeper. `alive` are the ids of the brokers with a session, `known` those that partitions and
    configs name. `deletions` are the topics that wait for their deletion. `encrypted`
    maps the sensitive configs of brokers, such as 'NAME of broker 1', to their encrypted values."""

    cluster_id: str
    alive: frozenset[int]
    known: frozenset[int]
    deletions: tuple[str, ...]
    reassigning: tuple[str, ...]
    encrypted: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Controller:
    """The properties file of a controller. `cluster_id` and `metadata_version`, the level of this feature, are those of
    its formatted storage."""

    file: str
    properties: Mapping[str, str] = field(repr=False)
    cluster_id: str | NotRead
    metadata_version: int | NotRead


@dataclass(frozen=True, slots=True)
class ArchiveFindings:
    """The newest restore point. `captured_at` is the time of its metadata in seconds since the epoch, `missing` names
    the parts of the metadata that it doesn't hold."""

    restore_point: int
    captured_at: float
    cluster_id: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """`now` is in seconds since the epoch. `archive` is None where there is no restore point. `quorum` maps each
    address of a controller that controllers or brokers name to its sign of life."""

    brokers: BrokerFindings | NotRead
    zookeeper: ZooKeeperFindings | NotRead
    controllers: tuple[Controller, ...] | NotRead
    archive: ArchiveFindings | NotRead | None
    now: float
    quorum: Mapping[str, Sign] | NotRead

    @cached_property
    def configs(self) -> Mapping[int, Mapping[str, str]] | NotRead:
        """The configs of each broker; `NotRead` where one is missing."""
        if isinstance(self.brokers, NotRead):
            return self.brokers
        read: dict[int, Mapping[str, str]] = {}
        for broker in self.brokers.brokers:
            if isinstance(broker.configs, NotRead):
                return broker.configs
            read[broker.id] = broker.configs
        return read

    @cached_property
    def sides(self) -> tuple[tuple[Controller, ...], Mapping[int, Mapping[str, str]]] | NotRead:
        """The controllers, and the configs of the brokers that run with ZooKeeper; `NotRead` where one is missing."""
        if isinstance(self.controllers, NotRead):
            return self.controllers
        if isinstance(self.configs, NotRead):
            return self.configs
        return self.controllers, {b: c for b, c in self.configs.items() if not c.get("process.roles")}
