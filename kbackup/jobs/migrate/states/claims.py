"""Derive the states of the runbook that each witness allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from kbackup.jobs.migrate.states.witnesses import (
    KafkaState,
    LogWitness,
    MetricsWitness,
    Witnesses,
    ZnodesWitness,
)
from kbackup.jobs.migrate.unread import NotRead

State = Literal[
    "zookeeper",
    "pre-migration",
    "dual write",
    "brokers moved",
    "finished",
    "kraft",
    "half rolled back",
    "unknown",
]
"""A state of the runbook. `zookeeper`: not begun. `pre-migration`: the controllers run and wait for brokers.
`dual write`: the metadata is copied, and written to both sides; brokers run with ZooKeeper. `brokers moved`: the same,
and every broker is a KRaft broker. `finished`: no way back. `kraft`: the cluster never had ZooKeeper.
`half rolled back`: one of /controller and /migration is deleted."""

Witness = Literal["metrics", "znodes", "metadata log"]

_ANY: frozenset[State] = frozenset(get_args(State)) - {"unknown"}
_FROM_BROKER: frozenset[State] = frozenset({"zookeeper", "pre-migration", "dual write"})


@dataclass(frozen=True, slots=True)
class Claim:
    """The statement of one witness, in words, and the states that it allows. `weight`: a later claim of a higher weight
    is believed before one of a lower."""

    witness: Witness
    says: str
    states: frozenset[State]
    weight: int


def claims_of(witnesses: Witnesses) -> tuple[Claim, ...]:
    """Return a claim of each witness that was read, the weightiest first."""
    return tuple(sorted(_claims(witnesses), key=lambda claim: -claim.weight))


def _claims(witnesses: Witnesses) -> Iterator[Claim]:
    for metrics in witnesses.metrics:
        if not isinstance(metrics, NotRead):
            yield _of_metrics(metrics)
    if not isinstance(witnesses.znodes, NotRead):
        yield _of_znodes(witnesses.znodes)
    if not isinstance(witnesses.log, NotRead):
        yield _of_log(witnesses.log, are_znodes_read=not isinstance(witnesses.znodes, NotRead))


def _of_metrics(metrics: MetricsWitness) -> Claim:
    state = metrics.state
    if state is None:
        return Claim("metrics", f"a controller at {metrics.url}: no leader yet", _ANY, 0)
    brokers = "" if metrics.zk_brokers is None else f", {_brokers(metrics.zk_brokers)} in ZooKeeper mode"
    says = f"{_role(metrics, state)} at {metrics.url}: {state.name}{brokers}"
    if state is KafkaState.ZK:
        return Claim("metrics", says, _FROM_BROKER, 1)
    count = metrics.zk_brokers
    return Claim("metrics", says, _of_state(state, count), 4 if metrics.is_active else 3)


def _role(metrics: MetricsWitness, state: KafkaState) -> str:
    if metrics.is_active:
        return "the active controller"
    if state is KafkaState.ZK:
        return "a broker"
    return "a node" if metrics.is_active is None else "a standby controller"


def _of_state(state: KafkaState, zk_brokers: int | None) -> frozenset[State]:
    """Return the states of the runbook that a state of the controllers allows. `zk_brokers` is None where no witness
    tells their number. A quorum without a state may run beside ZooKeeper."""
    if state is KafkaState.MIGRATION:
        both: tuple[State, ...] = ("dual write", "brokers moved")
        return frozenset(both if zk_brokers is None else both[:1] if zk_brokers else both[1:])
    allowed: dict[KafkaState, frozenset[State]] = {
        KafkaState.NONE: frozenset({"kraft", "zookeeper"}),
        KafkaState.PRE_MIGRATION: frozenset({"pre-migration"}),
        KafkaState.POST_MIGRATION: frozenset({"finished"}),
        KafkaState.ZK: _FROM_BROKER,
    }
    return allowed[state]


def _of_znodes(znodes: ZnodesWitness) -> Claim:
    controller, migration = znodes.controller, znodes.migration
    owner = "no /controller"
    if controller is not None:
        owner = f"/controller is {'KRaft controller' if controller.is_kraft else 'broker'} {controller.id}"
    offset = "no /migration" if migration is None else f"/migration at offset {migration.offset}"
    says = f"{owner}, {offset}, {_brokers(len(znodes.brokers))} with ZooKeeper"
    return Claim("znodes", says, _states_of_znodes(znodes), 2)


def _states_of_znodes(znodes: ZnodesWitness) -> frozenset[State]:
    """Return the states that the znodes allow. Both znodes stay when a migration is finished: a finished migration
    looks like a dual write without brokers."""
    is_kraft = znodes.controller is not None and znodes.controller.is_kraft
    if znodes.migration is None:
        if is_kraft:
            return frozenset({"half rolled back"})
        return frozenset(
            {"zookeeper"} if znodes.controller or znodes.brokers else {"zookeeper", "finished", "kraft"}
        )
    if znodes.migration.offset < 0:
        return frozenset({"pre-migration"})
    if not is_kraft:
        return frozenset({"half rolled back"})
    return frozenset({"dual write"} if znodes.brokers else {"dual write", "brokers moved", "finished"})


def _of_log(log: LogWitness, *, are_znodes_read: bool) -> Claim:
    """Return the claim of a metadata log. It never tells that /controller or /migration is deleted: the znodes do,
    where they are read."""
    says = (
        f"{log.state.name} at offset {log.end_offset}, {_brokers(len(log.zk_brokers))} in ZooKeeper mode, "
        f"{_brokers(len(log.kraft_brokers))} in KRaft mode"
    )
    states = _of_state(log.state, len(log.zk_brokers))
    if are_znodes_read and log.state is KafkaState.MIGRATION:
        states |= {"half rolled back"}
    return Claim("metadata log", says, states, 0)


def _brokers(count: int) -> str:
    return f"{count} broker" if count == 1 else f"{count} brokers"
