"""The guards of the deletion of znodes: each must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbackup.jobs.migrate.lag import CATCH_UP, in_types
from kbackup.jobs.migrate.rollback.situation import Situation
from kbackup.jobs.migrate.unread import NotRead
from kbackup.util.text import shorten

WAY_BACK = "way back"
STOPPED = "controllers stopped"
BROKERS = "brokers with ZooKeeper"
COMPLETE = "ZooKeeper complete"
ARCHIVED = "znodes archived"

_SOME = 5


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of the deletion. `holds`: the deletion is allowed; else `hint` is the action for the user."""

    name: str
    holds: bool
    detail: str
    hint: str = ""


def check_way_back(situation: Situation) -> Guard:
    """The migration is not finished, and this is certain."""
    report = situation.report
    if report.way_back:
        return Guard(WAY_BACK, True, f"the state is {report.state}")
    if report.state in ("finished", "kraft"):
        return Guard(WAY_BACK, False, f"the state is {report.state}", "stay with KRaft: there is no way back")
    return Guard(
        WAY_BACK,
        False,
        f"the state is {report.state}: it can be {' or '.join(report.possible) or 'any'}",
        "name more witnesses: zookeeper.connect and metadata.log.dir in [source], and --metrics-url",
    )


def check_stopped(situation: Situation) -> Guard:
    """No KRaft controller is alive."""
    signs = situation.controllers.signs
    if not signs:
        return Guard(
            STOPPED,
            False,
            "no controller's address is known",
            "name each: --controller HOST:PORT, or --controller-config",
        )
    if alive := sorted(address for address, sign in signs.items() if sign == "answers"):
        return Guard(STOPPED, False, f"alive: {shorten(alive, _SOME)}", "stop these controllers, by SIGTERM")
    if silent := sorted(address for address, sign in signs.items() if sign == "silent"):
        return Guard(
            STOPPED,
            False,
            f"no answer, which proves nothing: {shorten(silent, _SOME)}",
            "make sure that these controllers are stopped, then give --stopped HOST:PORT for each",
        )
    return Guard(STOPPED, True, shorten(sorted(signs), _SOME))


def check_brokers(situation: Situation) -> Guard:
    """No broker runs as a KRaft broker: it would not know a new controller in ZooKeeper."""
    brokers = situation.brokers
    if isinstance(brokers, NotRead):
        return Guard(BROKERS, False, f"not looked at: {brokers.why}", brokers.hint)
    if brokers.kraft:
        ids = shorten([str(broker) for broker in sorted(brokers.kraft)], _SOME)
        return Guard(
            BROKERS,
            False,
            f"KRaft brokers: {ids}",
            "start the controllers, and restart these brokers with ZooKeeper and the migration enabled",
        )
    if not brokers.zookeeper:
        return Guard(BROKERS, False, "no broker runs", "start the brokers")
    return Guard(BROKERS, True, f"{len(brokers.zookeeper)} brokers run with ZooKeeper")


def check_complete(situation: Situation) -> Guard:
    """ZooKeeper has all that the controllers acknowledged, by the logs on their disks."""
    lag = situation.lag
    if lag is None:
        return Guard(COMPLETE, True, "no KRaft controller has written to it since a broker did")
    if isinstance(lag, NotRead):
        return Guard(COMPLETE, False, f"not looked at: {lag.why}", lag.hint)
    if lag.records:
        return Guard(COMPLETE, False, f"it lacks {in_types(lag.records)} of the metadata log", CATCH_UP)
    if lag.differences:
        differences = shorten(lag.differences, _SOME, "; ")
        return Guard(COMPLETE, False, f"it differs from the metadata log: {differences}", CATCH_UP)
    return Guard(COMPLETE, True, f"it has every record of the metadata log, which ends at {lag.end_offset}")


def check_archived(situation: Situation) -> Guard:
    """The newest restore point holds the znodes exactly as they are."""
    archived = situation.archived
    if isinstance(archived, NotRead):
        return Guard(ARCHIVED, False, f"not looked at: {archived.why}", archived.hint)
    missing = [znode.path for znode in situation.due if archived.get(znode.path) != znode.content]
    if missing:
        return Guard(
            ARCHIVED,
            False,
            f"the newest restore point doesn't hold {' and '.join(missing)} as now",
            "run 'kbackup migrate archive' after the controllers are stopped",
        )
    return Guard(ARCHIVED, True, " and ".join(znode.path for znode in situation.due) or "nothing to hold")


_CHECKS: tuple[Callable[[Situation], Guard], ...] = (
    check_way_back,
    check_stopped,
    check_brokers,
    check_complete,
    check_archived,
)


def guards_of(situation: Situation) -> tuple[Guard, ...]:
    """Every guard."""
    return tuple(check(situation) for check in _CHECKS)
