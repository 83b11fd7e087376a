"""Conclude the state of the runbook from witnesses, with disagreements and the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from kbackup.jobs.migrate.states.claims import Claim, State, claims_of
from kbackup.jobs.migrate.states.witnesses import KafkaState, MetricsWitness, Witnesses
from kbackup.jobs.migrate.unread import NotRead

REVERSIBLE: frozenset[State] = frozenset(
    {"zookeeper", "pre-migration", "dual write", "brokers moved", "half rolled back"}
)
_ORDER: tuple[State, ...] = get_args(State)
_NEXT: dict[State, str] = {
    "zookeeper": "run 'kbackup migrate preflight', then start the controllers with "
    "zookeeper.metadata.migration.enable=true",
    "pre-migration": "restart the brokers one by one with zookeeper.metadata.migration.enable=true and the "
    "controllers' address",
    "dual write": "run 'kbackup migrate verify', then restart the brokers one by one as KRaft brokers",
    "brokers moved": "run 'kbackup migrate archive' and 'kbackup migrate verify'; then restart the controllers "
    "without zookeeper.metadata.migration.enable: from there is no way back",
    "finished": "stop ZooKeeper when nothing else uses it, then upgrade to Kafka 4",
    "kraft": "nothing: this cluster has no ZooKeeper",
    "half rolled back": "run 'kbackup migrate rollback' and finish its steps",
    "unknown": "name all witnesses: zookeeper.connect and metadata.log.dir in [source], and --metrics-url",
}
_DISAGREEMENT = (
    "find out why the witnesses disagree before you go on: a copy of a metadata log may be old, and after a rollback "
    "the controllers' storage is there until you delete it"
)
_WITHOUT_MIGRATION = (
    "look again, a controller may have just started; else format the controllers' storage anew and start them with "
    "zookeeper.metadata.migration.enable=true: a quorum that began without it never migrates"
)


@dataclass(frozen=True, slots=True)
class StateReport:
    """`state` is unknown where the witnesses allow several states, `possible`. `is_certain`: it is the only possible
    one and no witness disagrees. `way_back`: the cluster can go back to ZooKeeper. `not_looked_at`: the witnesses that
    were not read. `zk_brokers` are the brokers in ZooKeeper mode as far as the controllers know, `lag` the records
    that ZooKeeper doesn't have yet; None where nobody tells."""

    state: State
    is_certain: bool
    possible: tuple[State, ...]
    way_back: bool
    claims: tuple[Claim, ...]
    disagreements: tuple[str, ...]
    not_looked_at: tuple[NotRead, ...]
    zk_brokers: int | None
    lag: int | None
    next_step: str


def judge(witnesses: Witnesses) -> StateReport:
    """Conclude the state from the witnesses; where they disagree, the claim of the highest weight counts."""
    claims = claims_of(witnesses)
    possible, disagreements = _narrow(claims)
    state: State = possible[0] if len(possible) == 1 else "unknown"
    return StateReport(
        state=state,
        is_certain=state != "unknown" and not disagreements,
        possible=possible,
        way_back=bool(claims)
        and REVERSIBLE.issuperset(possible)
        and all(claim.states & REVERSIBLE for claim in claims),
        claims=claims,
        disagreements=disagreements,
        not_looked_at=_unread(witnesses),
        zk_brokers=_zk_brokers(witnesses),
        lag=next((metrics.lag for metrics in _kraft_metrics(witnesses) if metrics.lag is not None), None),
        next_step=_next_step(state, claims, disagreements),
    )


def _narrow(claims: Sequence[Claim]) -> tuple[tuple[State, ...], tuple[str, ...]]:
    """Return the states that the claims allow, and the claims that contradict weightier ones."""
    if not claims:
        return (), ()
    allowed, disagreements = claims[0].states, []
    for claim in claims:
        if common := allowed & claim.states:
            allowed = common
        else:
            disagreements.append(f"{claim.witness}: {claim.says}; this does not fit {_listed(allowed)}")
    return _sorted(allowed), tuple(disagreements)


def _sorted(states: frozenset[State]) -> tuple[State, ...]:
    return tuple(state for state in _ORDER if state in states)


def _listed(states: frozenset[State]) -> str:
    return " or ".join(_sorted(states))


def _next_step(state: State, claims: Iterable[Claim], disagreements: Sequence[str]) -> str:
    if disagreements:
        return _DISAGREEMENT
    if state == "zookeeper" and any("kraft" in claim.states for claim in claims):
        return _WITHOUT_MIGRATION
    return _NEXT[state]


def _kraft_metrics(witnesses: Witnesses) -> list[MetricsWitness]:
    """Return the metrics of KRaft controllers, the active one first."""
    read = [m for m in witnesses.metrics if not isinstance(m, NotRead) and m.state is not KafkaState.ZK]
    return sorted(read, key=lambda metrics: not metrics.is_active)


def _zk_brokers(witnesses: Witnesses) -> int | None:
    counts = [metrics.zk_brokers for metrics in _kraft_metrics(witnesses) if metrics.zk_brokers is not None]
    if not isinstance(witnesses.log, NotRead):
        counts.append(len(witnesses.log.zk_brokers))
    return counts[0] if counts else None


def _unread(witnesses: Witnesses) -> tuple[NotRead, ...]:
    parts = (*witnesses.metrics, witnesses.znodes, witnesses.log)
    return tuple(part for part in parts if isinstance(part, NotRead))
