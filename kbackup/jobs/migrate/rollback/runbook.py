"""The ordered steps back to ZooKeeper from the state that a cluster is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kbackup.jobs.migrate.rollback.guards import check_archived, check_brokers, check_stopped
from kbackup.jobs.migrate.rollback.situation import Lag, Situation
from kbackup.jobs.migrate.unread import NotRead


@dataclass(frozen=True, slots=True)
class Step:
    """`check` says how to see that the step is done; `done` is None where kbackup can't see it."""

    text: str
    check: str
    done: bool | None


def runbook(situation: Situation) -> tuple[Step, ...]:
    """The steps, in order; none where there is no way back, or nothing to roll back."""
    if not situation.report.way_back:
        return ()
    *steps, storage = _steps(situation)
    return () if storage.done is None and all(step.done for step in steps) else (*steps, storage)


def _steps(situation: Situation) -> Iterator[Step]:
    """The controllers go first and the brokers last: a broker that is rolled back while /controller names a KRaft
    controller waits for that controller. KRaft brokers need the controllers until they run with ZooKeeper again."""
    if situation.report.state == "brokers moved" or _kraft_brokers(situation):
        yield Step(
            "restart the brokers one by one with ZooKeeper and the migration enabled: without process.roles, broker.id "
            "for node.id, zookeeper.connect and the authorizer as before, zookeeper.metadata.migration.enable=true; "
            "delete __cluster_metadata-0 from each one's log directory; leave the controllers running",
            "'kbackup migrate status' says dual write, with every broker in ZooKeeper mode",
            check_brokers(situation).holds,
        )
    if situation.lag is not None and situation.due:
        again = (
            "start the controllers again, and " if _is_behind(situation) and _is_stopped(situation) else ""
        )
        yield Step(
            f"{again}wait until ZooKeeper has every record",
            "'kbackup migrate status --metrics-url URL' says 0 records behind",
            None if (is_behind := _is_behind(situation)) is None else not is_behind,
        )
        yield Step(
            "kbackup migrate verify",
            "exit code 0: ZooKeeper and the metadata log have the same entities",
            None if isinstance(situation.lag, NotRead) else not situation.lag.differences,
        )
    yield Step(
        "stop every controller by SIGTERM, and see that none is started again",
        "no controller's address answers",
        _is_stopped(situation),
    )
    if situation.due:
        yield Step(
            "kbackup migrate archive",
            f"the newest restore point holds {' and '.join(each.path for each in situation.due)} as now",
            check_archived(situation).holds,
        )
    yield Step(
        "kbackup migrate rollback --confirm",
        "/migration is gone, and /controller names a broker",
        _has_controller(situation),
    )
    yield Step(
        "restart the brokers one by one without zookeeper.metadata.migration.enable, controller.listener.names and "
        "controller.quorum.*; one that does not end by SIGTERM waits for the controllers: kill it, and start it when "
        "its znode /brokers/ids/ID is gone",
        "no broker has the migration enabled",
        _is_rolled_back(situation),
    )
    yield Step(
        "delete the controllers' storage: a second migration formats it anew",
        "the log directories of the controllers are empty",
        _is_storage_deleted(situation),
    )


def _is_behind(situation: Situation) -> bool | None:
    """Return whether ZooKeeper lacks records, by the logs on disk or else by the controllers; None where neither
    tells."""
    if isinstance(situation.lag, Lag):
        return bool(situation.lag.records)
    return None if situation.report.lag is None else situation.report.lag > 0


def _is_stopped(situation: Situation) -> bool:
    """Return whether no controller runs, as far as any source tells."""
    if not situation.controllers.signs and not situation.due:
        return True
    return check_stopped(situation).holds


def _kraft_brokers(situation: Situation) -> bool:
    return not isinstance(situation.brokers, NotRead) and bool(situation.brokers.kraft)


def _has_controller(situation: Situation) -> bool | None:
    """Return whether a broker controls the cluster again, and ZooKeeper has no znode of the migration. None right
    after the deletion: a broker takes /controller within seconds."""
    if isinstance(situation.witness, NotRead):
        return None
    owner = situation.witness.controller
    if owner is None and situation.witness.migration is None:
        return None
    return situation.witness.migration is None and owner is not None and not owner.is_kraft


def _is_storage_deleted(situation: Situation) -> bool | None:
    """False where a metadata log was read that tells of a migration; else kbackup doesn't see it."""
    logs = [claim for claim in situation.report.claims if claim.witness == "metadata log"]
    return False if any("zookeeper" not in log.states for log in logs) else None


def _is_rolled_back(situation: Situation) -> bool | None:
    brokers = situation.brokers
    return None if isinstance(brokers, NotRead) else not brokers.kraft and not brokers.enabled
