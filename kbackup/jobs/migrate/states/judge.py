"""Conclude the state of the runbook from witnesses, with disagreements and the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
_NO_LEADER = (
    "start a majority of the controllers; where they run, look into their logs: super.users must have their principal, "
    "and controller.quorum.bootstrap.servers their addresses"
)
_STALLED = "find out why ZooKeeper does not answer the controllers, and wait until it is 0 records behind"
_WITHOUT_MIGRATION = (
    "look again, a controller may have just started; else format the controllers' storage anew and start them with "
    "zookeeper.metadata.migration.enable=true: a quorum that began without it never migrates"
)


@dataclass(frozen=True, slots=True)
class StateReport:
    """`state` is unknown where the witnesses allow several states, `possible`. `is_certain`: it is the only possible
    one and no witness disagrees. `way_back`: the cluster can go back to ZooKeeper. `not_looked_at`: the witnesses that
    were not read. `zk_brokers` are the brokers in ZooKeeper mode as far as the controllers know, `lag` the records
    that ZooKeeper doesn't have yet; None where nobody tells. `waits_for` names what keeps the migration where it is."""

    state: State
    is_certain: bool
    possible: tuple[State, ...]
    way_back: bool
    claims: tuple[Claim, ...]
    disagreements: tuple[str, ...]
    not_looked_at: tuple[NotRead, ...]
    zk_brokers: int | None
    lag: int | None
    waits_for: tuple[str, ...]
    next_step: str


def judge(witnesses: Witnesses, earlier: Witnesses | None = None) -> StateReport:
    """Conclude the state from the witnesses; where they disagree, the claim of the highest weight counts. `earlier` is
    a look some seconds ago: it shows whether ZooKeeper follows."""
    claims = claims_of(witnesses)
    possible, disagreements = _narrow(claims)
    state: State = possible[0] if len(possible) == 1 else "unknown"
    is_stalled = earlier is not None and _is_stalled(witnesses, earlier)
    if _has_no_leader(witnesses):
        next_step = _NO_LEADER
    else:
        next_step = _STALLED if is_stalled else _next_step(state, claims, disagreements)
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
        lag=_lag(witnesses),
        waits_for=tuple(_waits(state, witnesses, is_stalled)),
        next_step=next_step,
    )


def _waits(state: State, witnesses: Witnesses, is_stalled: bool) -> Iterator[str]:
    if _has_no_leader(witnesses):
        yield "a leader of the controllers' quorum"
    if state == "pre-migration":
        yield from _blocking(witnesses)
    if state == "half rolled back":
        yield "the rest of the rollback"
    if is_stalled:
        yield "ZooKeeper, which does not get the controllers' records"


def _has_no_leader(witnesses: Witnesses) -> bool:
    """Return whether controllers tell metrics, and none of them knows a leader."""
    told = [m.state for m in witnesses.metrics if not isinstance(m, NotRead)]
    return None in told and all(state in (None, KafkaState.ZK) for state in told)


def _blocking(witnesses: Witnesses) -> Iterator[str]:
    """Name each broker that keeps the controllers from copying the metadata: all that run with ZooKeeper or hold
    replicas must have registered with them."""
    znodes, log, count = witnesses.znodes, witnesses.log, _zk_brokers(witnesses)
    if isinstance(znodes, NotRead):
        yield "brokers; to see which, set zookeeper.connect in [source]"
        return
    known = znodes.brokers | znodes.assigned
    registered = frozenset[int]() if isinstance(log, NotRead) else log.zk_brokers
    missing = sorted(known - registered)
    if isinstance(log, NotRead) and count != 0:
        which = f"some of the brokers {', '.join(map(str, missing))}"
        if count is None or count < len(known):
            yield f"{which}; to see which, set metadata.log.dir in [source]"
            return
        missing = []
    for broker in missing:
        down = "" if broker in znodes.brokers else " is down and"
        yield f"broker {broker}, which{down} has not registered with the controllers"
    if not missing:
        yield "the controllers' copy: every broker has registered; look into the active controller's log"


def _is_stalled(witnesses: Witnesses, earlier: Witnesses) -> bool:
    """Return whether ZooKeeper is behind in two looks, and got nothing between them: controllers write a record there
    twice a second."""
    lag, before = _lag(witnesses) or 0, _lag(earlier) or 0
    is_still = _offset(witnesses) in (None, _offset(earlier))
    return lag >= before > 0 and is_still


def _offset(witnesses: Witnesses) -> int | None:
    znodes = witnesses.znodes
    return None if isinstance(znodes, NotRead) or znodes.migration is None else znodes.migration.offset


def _lag(witnesses: Witnesses) -> int | None:
    """Return the lag of the active controller: one that never was active says 0, whatever ZooKeeper lacks."""
    return next((metrics.lag for metrics in _kraft_metrics(witnesses) if metrics.is_active), None)


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
    """Return the metrics of KRaft controllers that know a leader, the active one first."""
    told = [m for m in witnesses.metrics if not isinstance(m, NotRead)]
    read = [m for m in told if m.state not in (None, KafkaState.ZK)]
    return sorted(read, key=lambda metrics: not metrics.is_active)


def _zk_brokers(witnesses: Witnesses) -> int | None:
    counts = [metrics.zk_brokers for metrics in _kraft_metrics(witnesses) if metrics.zk_brokers is not None]
    if not isinstance(witnesses.log, NotRead):
        counts.append(len(witnesses.log.zk_brokers))
    return counts[0] if counts else None


def _unread(witnesses: Witnesses) -> tuple[NotRead, ...]:
    parts = (*witnesses.metrics, witnesses.znodes, witnesses.log)
    return tuple(part for part in parts if isinstance(part, NotRead))
