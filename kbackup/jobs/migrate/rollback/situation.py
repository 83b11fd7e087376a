"""Describe the situation of a rollback: the state, the two znodes, the controllers, the brokers, the archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kbackup.jobs.migrate.states.judge import StateReport
from kbackup.jobs.migrate.states.witnesses import ZnodesWitness
from kbackup.jobs.migrate.unread import NotRead

CONTROLLER = "/controller"
MIGRATION = "/migration"

Sign = Literal["answers", "stopped", "silent"]
"""Of a controller's address: somebody answers; the machine says that nobody listens; nothing comes back."""


@dataclass(frozen=True, slots=True)
class ZnodeContent:
    """A znode as it was read: `version` changes with every write. `ephemeral`: it goes with its owner's session."""

    path: str
    content: str
    version: int
    ephemeral: bool


@dataclass(frozen=True, slots=True)
class Controllers:
    """The sign of life at each address of a controller: host:port, or the URL of its exporter."""

    signs: Mapping[str, Sign]


@dataclass(frozen=True, slots=True)
class BrokerModes:
    """The ids of the brokers that run as KRaft brokers, of those that run with ZooKeeper, and of the latter those
    that have the migration enabled."""

    kraft: frozenset[int]
    zookeeper: frozenset[int]
    enabled: frozenset[int]


@dataclass(frozen=True, slots=True)
class Lag:
    """Lack of ZooKeeper against the metadata log, which ends at `end_offset`.

    `records` counts the log's records after the offset in /migration, by type. `differences` names the entities that
    are not the same on both sides."""

    end_offset: int
    records: Mapping[str, int]
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Situation:
    """`znodes` are /controller and /migration, those that are there. `archived` maps the paths of the newest restore
    point's znodes to their content. `lag` is None where a broker is the controller: ZooKeeper is complete."""

    report: StateReport
    witness: ZnodesWitness | NotRead
    znodes: tuple[ZnodeContent, ...]
    controllers: Controllers
    brokers: BrokerModes | NotRead
    archived: Mapping[str, str] | NotRead
    lag: Lag | NotRead | None

    @cached_property
    def due(self) -> tuple[ZnodeContent, ...]:
        """The znodes to delete, in this order: /controller where a KRaft controller wrote it, and /migration. The
        /controller of a broker is in use."""
        if isinstance(self.witness, NotRead):
            return ()
        owner = self.witness.controller
        return tuple(
            znode
            for path in (CONTROLLER, MIGRATION)
            for znode in self.znodes
            if znode.path == path
            and (path == MIGRATION or (owner is not None and owner.is_kraft and not znode.ephemeral))
        )
