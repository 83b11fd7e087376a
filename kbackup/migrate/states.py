"""Find the state of a cluster's migration from ZooKeeper to KRaft, from three witnesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeVar, get_args

from kbackup.errors import KbackupError
from kbackup.util.text import plural

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotRead:
    """Why a source was not looked at, and the hint how to have it looked at."""

    why: str
    hint: str


class UnreadError(Exception):
    """A check needs a value of a source that was not read."""

    def __init__(self, unread: NotRead) -> None:
        super().__init__(unread.why)
        self.unread = unread


class ProblemError(Exception):
    """What a check found wrong, and the action for the user."""

    def __init__(self, detail: str, hint: str, *, is_warning: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.hint, self.is_warning = detail, hint, is_warning


def need(value: T | NotRead) -> T:
    """Return a value; `UnreadError` if it was not read."""
    if isinstance(value, NotRead):
        raise UnreadError(value)
    return value


def need_all(*values: object) -> None:
    """Raise `UnreadError` for the first of `values` that was not read."""
    for value in values:
        need(value)


def tried(read: Callable[[], T | NotRead]) -> T | NotRead:
    """Return what `read` does; for an error of kbackup's tree, why it was not read."""
    try:
        return read()
    except KbackupError as error:
        return NotRead(error.message, error.hint)


# The statements of three witnesses about a migration: metrics of controllers, znodes, a controller's metadata log.


class KafkaState(IntEnum):
    """Kafka 3.9's own numbers, in the metric ZkMigrationState and in the metadata log's ZkMigrationStateRecord. ZK is
    the metric of every broker that runs with ZooKeeper."""

    NONE = 0
    MIGRATION = 1
    PRE_MIGRATION = 2
    POST_MIGRATION = 3
    ZK = 4


@dataclass(frozen=True, slots=True)
class MetricsWitness:
    """The metrics of one node. None: the node has no such metric; `state` is None while a controller knows no leader of
    its quorum. `zk_brokers` are the brokers in ZooKeeper mode that have registered with the controllers, `lag` the
    records that ZooKeeper doesn't have yet."""

    url: str
    state: KafkaState | None
    is_active: bool | None = None
    zk_brokers: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class ControllerZnode:
    """/controller. `kraft_epoch` is at least 0 if a KRaft controller wrote it."""

    id: int
    kraft_epoch: int

    @property
    def is_kraft(self) -> bool:
        return self.kraft_epoch >= 0


@dataclass(frozen=True, slots=True)
class ZnodesWitness:
    """None: the znode is not there. `migration` is the offset in /migration, the last of the metadata log that
    ZooKeeper has, -1 before the copy. `brokers` are the ids of the brokers with a session, `assigned` those that hold
    replicas, where the copy waits for them. `is_migration_empty`: /migration is there without content, which Kafka
    can't read."""

    controller: ControllerZnode | None
    migration: int | None
    brokers: frozenset[int]
    assigned: frozenset[int] = frozenset()
    is_migration_empty: bool = False


@dataclass(frozen=True, slots=True)
class LogWitness:
    """A metadata log up to `end_offset`. `state` is the state in the last ZkMigrationStateRecord, NONE without one.
    `zk_brokers` and `kraft_brokers` are the ids of the registered brokers in each mode."""

    state: KafkaState
    zk_brokers: frozenset[int]
    kraft_brokers: frozenset[int]
    end_offset: int


@dataclass(frozen=True, slots=True)
class Witnesses:
    metrics: tuple[MetricsWitness | NotRead, ...]
    znodes: ZnodesWitness | NotRead
    log: LogWitness | NotRead


# Derive the states of the runbook that each witness allows.


State = Literal[
    "zookeeper", "pre-migration", "dual write", "brokers moved", "finished", "kraft", "half rolled back", "unknown"
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
    """The statement of one witness, in words, and the states that it allows. Where claims contradict each other, the
    one with the highest `weight` is believed."""

    witness: Witness
    says: str
    states: frozenset[State]
    weight: int


# The weights of claims. The active controller decides the state. Another controller follows its log, so it may be a
# moment behind. Both znodes stay when a migration ends, and a broker knows only that it still runs with ZooKeeper. A
# metadata log comes last: it is often a copy, of unknown age.
_ACTIVE_CONTROLLER, _CONTROLLER, _ZNODES, _BROKER, _LEAST = 4, 3, 2, 1, 0


def claims_of(witnesses: Witnesses) -> tuple[Claim, ...]:
    """Return a claim of each witness that was read, the weightiest first."""
    znodes, log = witnesses.znodes, witnesses.log
    are_znodes_read = not isinstance(znodes, NotRead)
    claims = [_of_metrics(metrics) for metrics in witnesses.metrics if not isinstance(metrics, NotRead)]
    if not isinstance(znodes, NotRead):
        claims.append(_of_znodes(znodes))
    if not isinstance(log, NotRead):
        claims.append(_of_log(log, are_znodes_read=are_znodes_read))
    # The sort is stable: of claims with one weight, the first one counts.
    claims.sort(key=lambda claim: claim.weight, reverse=True)
    return tuple(claims)


def _of_metrics(metrics: MetricsWitness) -> Claim:
    state, count = metrics.state, metrics.zk_brokers
    if state is None:
        return Claim("metrics", f"a controller at {metrics.url}: no leader yet", _ANY, _LEAST)
    brokers = "" if count is None else f", {plural(count, 'broker')} in ZooKeeper mode"
    says = f"{_role_of(metrics, state)} at {metrics.url}: {state.name}{brokers}"
    if state is KafkaState.ZK:
        weight = _BROKER
    elif metrics.is_active:
        weight = _ACTIVE_CONTROLLER
    else:
        weight = _CONTROLLER
    return Claim("metrics", says, _of_state(state, count), weight)


def _role_of(metrics: MetricsWitness, state: KafkaState) -> str:
    if metrics.is_active:
        return "the active controller"
    if state is KafkaState.ZK:
        return "a broker"
    if metrics.is_active is None:
        return "a node"
    return "a standby controller"


def _of_state(state: KafkaState, zk_brokers: int | None) -> frozenset[State]:
    """Return the states of the runbook that a state of the controllers allows. `zk_brokers` is None if no witness knows
    their number. A quorum without a state may run beside ZooKeeper."""
    if state is KafkaState.MIGRATION:
        if zk_brokers is None:
            return frozenset({"dual write", "brokers moved"})
        return frozenset({"dual write"}) if zk_brokers else frozenset({"brokers moved"})
    allowed: dict[KafkaState, frozenset[State]] = {
        KafkaState.NONE: frozenset({"kraft", "zookeeper"}),
        KafkaState.PRE_MIGRATION: frozenset({"pre-migration"}),
        KafkaState.POST_MIGRATION: frozenset({"finished"}),
        KafkaState.ZK: _FROM_BROKER,
    }
    return allowed[state]


def _of_znodes(znodes: ZnodesWitness) -> Claim:
    """Both znodes stay when a migration is finished: a finished migration looks like a dual write without brokers."""
    controller, migration = znodes.controller, znodes.migration
    is_kraft = controller is not None and controller.is_kraft
    owner = "no /controller"
    if controller is not None:
        role = "KRaft controller" if is_kraft else "broker"
        owner = f"/controller is {role} {controller.id}"
    offset = "no /migration" if migration is None else f"/migration at offset {migration}"
    if znodes.is_migration_empty:
        offset = "an empty /migration"
    has_brokers = bool(znodes.brokers)
    states: set[State]
    if migration is None and not is_kraft:
        # Nobody at all may as well be a ZooKeeper that was left behind, or that another program uses.
        has_owner = controller is not None or has_brokers
        states = {"zookeeper"} if has_owner else {"zookeeper", "finished", "kraft"}
    elif migration is not None and migration < 0:
        # Kafka makes /migration at the begin with offset -1, and sets the offset when it has copied everything.
        states = {"pre-migration"}
    elif migration is None or not is_kraft:
        # Of the two znodes that only a rollback deletes, one is there.
        states = {"half rolled back"}
    elif has_brokers:
        states = {"dual write"}
    else:
        states = {"dual write", "brokers moved", "finished"}
    says = f"{owner}, {offset}, {plural(len(znodes.brokers), 'broker')} with ZooKeeper"
    return Claim("znodes", says, frozenset(states), _ZNODES)


def _of_log(log: LogWitness, *, are_znodes_read: bool) -> Claim:
    """Return the claim of a metadata log. It never shows that /controller or /migration is deleted; the znodes do, if
    they are read."""
    with_zookeeper = plural(len(log.zk_brokers), "broker")
    with_kraft = plural(len(log.kraft_brokers), "broker")
    says = (
        f"{log.state.name} at offset {log.end_offset}, {with_zookeeper} in ZooKeeper mode, {with_kraft} in KRaft mode"
    )
    states = _of_state(log.state, len(log.zk_brokers))
    if are_znodes_read and log.state is KafkaState.MIGRATION:
        states |= {"half rolled back"}
    return Claim("metadata log", says, states, _LEAST)


# Conclude the state of the runbook from witnesses, with disagreements and the next step.


REVERSIBLE: frozenset[State] = frozenset(
    {"zookeeper", "pre-migration", "dual write", "brokers moved", "half rolled back"}
)
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
    were not consulted. `zk_brokers` are the brokers in ZooKeeper mode as far as the controllers know, `lag` the records
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
    # Several possible states are none to act by: the runbook has another next step in each.
    state: State = possible[0] if len(possible) == 1 else "unknown"
    # The most urgent next step first: without a leader nothing moves, and a disagreement makes the state a guess.
    is_stalled = earlier is not None and _is_stalled(witnesses, earlier)
    if _has_no_leader(witnesses):
        next_step = _NO_LEADER
    elif is_stalled:
        next_step = _STALLED
    elif disagreements:
        next_step = _DISAGREEMENT
    elif state == "zookeeper" and any("kraft" in claim.states for claim in claims):
        next_step = _WITHOUT_MIGRATION
    else:
        next_step = _NEXT[state]
    sources = (*witnesses.metrics, witnesses.znodes, witnesses.log)
    not_looked_at = tuple(source for source in sources if isinstance(source, NotRead))
    return StateReport(
        state=state,
        is_certain=state != "unknown" and not disagreements,
        possible=possible,
        way_back=_has_way_back(claims, possible),
        claims=claims,
        disagreements=disagreements,
        not_looked_at=not_looked_at,
        zk_brokers=_zk_brokers(witnesses),
        lag=_lag(witnesses),
        waits_for=tuple(_waits(state, witnesses, is_stalled)),
        next_step=next_step,
    )


def _has_way_back(claims: Sequence[Claim], possible: Sequence[State]) -> bool:
    """Return whether it is certain that the cluster can go back to ZooKeeper: every possible state allows it, and no
    witness speaks of a state that doesn't, be it outvoted."""
    if not claims or not REVERSIBLE.issuperset(possible):
        return False
    # A wrong "yes" deletes znodes of a cluster that has finished; a wrong "no" costs another look.
    return all(claim.states & REVERSIBLE for claim in claims)


def _waits(state: State, witnesses: Witnesses, is_stalled: bool) -> Iterator[str]:
    if _has_no_leader(witnesses):
        yield "a leader of the controllers' quorum"
    znodes = witnesses.znodes
    if not isinstance(znodes, NotRead) and znodes.is_migration_empty:
        yield "/migration, which is empty: Kafka can't read it, and waits until it is deleted"
    elif state == "pre-migration":
        yield from _blocking(witnesses)
    if state == "half rolled back":
        yield "the rest of the rollback"
    if is_stalled:
        yield "ZooKeeper, which does not get the controllers' records"


def _has_no_leader(witnesses: Witnesses) -> bool:
    """Return whether controllers have metrics and none of them knows a leader."""
    states = [metrics.state for metrics in witnesses.metrics if not isinstance(metrics, NotRead)]
    # Brokers in ZooKeeper mode have no leader to know.
    knows_leader = any(state not in (None, KafkaState.ZK) for state in states)
    return None in states and not knows_leader


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
    # Without the log, the controllers' metrics tell a number and no ids. 0 of them names everybody all the same.
    if isinstance(log, NotRead) and count != 0:
        if count is None or count < len(known):
            names = ", ".join(map(str, missing))
            yield f"some of the brokers {names}; to see which, set metadata.log.dir in [source]"
            return
        missing = []  # the controllers count as many as there are
    for broker in missing:
        down = "" if broker in znodes.brokers else " is down and"
        yield f"broker {broker}, which{down} has not registered with the controllers"
    if not missing:
        yield "the controllers' copy: every broker has registered; look into the active controller's log"


def _is_stalled(witnesses: Witnesses, earlier: Witnesses) -> bool:
    """Return whether ZooKeeper is behind in two looks, and got nothing between them: controllers write a record there
    twice a second."""
    lag = _lag(witnesses) or 0
    lag_before = _lag(earlier) or 0
    offset = _migration_offset(witnesses)
    has_moved = offset is not None and offset != _migration_offset(earlier)
    return lag >= lag_before > 0 and not has_moved


def _migration_offset(witnesses: Witnesses) -> int | None:
    znodes = witnesses.znodes
    return None if isinstance(znodes, NotRead) else znodes.migration


def _lag(witnesses: Witnesses) -> int | None:
    """Return the lag of the active controller: a controller that was never active reports 0, whatever
    ZooKeeper lacks."""
    for metrics in _kraft_metrics(witnesses):
        if metrics.is_active:
            return metrics.lag
    return None


def _narrow(claims: Sequence[Claim]) -> tuple[tuple[State, ...], tuple[str, ...]]:
    """Return the states that the claims allow, and the claims that contradict weightier ones."""
    if not claims:
        return (), ()
    # The weightiest comes first. A lighter claim may narrow what the weightier ones allow, and never widens it.
    allowed, disagreements = claims[0].states, []
    for claim in claims:
        common = allowed & claim.states
        if common:
            allowed = common
        else:
            fitting = " or ".join(_in_order(allowed))
            disagreements.append(f"{claim.witness}: {claim.says}; this does not fit {fitting}")
    return _in_order(allowed), tuple(disagreements)


def _in_order(states: frozenset[State]) -> tuple[State, ...]:
    return tuple(state for state in get_args(State) if state in states)


def _kraft_metrics(witnesses: Witnesses) -> list[MetricsWitness]:
    """Return the metrics of KRaft controllers that know a leader, the active one first."""
    active: list[MetricsWitness] = []
    others: list[MetricsWitness] = []
    for metrics in witnesses.metrics:
        if isinstance(metrics, NotRead) or metrics.state in (None, KafkaState.ZK):
            continue
        if metrics.is_active:
            active.append(metrics)
        else:
            others.append(metrics)
    return active + others


def _zk_brokers(witnesses: Witnesses) -> int | None:
    counts = [metrics.zk_brokers for metrics in _kraft_metrics(witnesses) if metrics.zk_brokers is not None]
    if not isinstance(witnesses.log, NotRead):
        counts.append(len(witnesses.log.zk_brokers))
    return counts[0] if counts else None
