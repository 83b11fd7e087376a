"""The way back to ZooKeeper from every state of a migration before the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kbackup.archive.reader import open_archive
from kbackup.errors import KbackupError, MismatchError, UsageError
from kbackup.jobs.migrate.lag import CATCH_UP, in_types, is_written_by_kraft, read_lag
from kbackup.jobs.migrate.preflight import is_enabled
from kbackup.jobs.migrate.readings import (
    logged_addresses,
    own_addresses,
    probe,
    quorum_addresses,
    read_image_of,
    read_log,
    read_metrics_of,
    read_properties,
)
from kbackup.jobs.migrate.states import KafkaState, NotRead, Witnesses, judge
from kbackup.jobs.migrate.znodes import (
    CONTROLLER,
    MIGRATION,
    BrokerModes,
    Controllers,
    Lag,
    Situation,
    ZnodeContent,
    ZnodeReader,
    read_witness,
)
from kbackup.kafka.admin.cluster import BrokerAdmin
from kbackup.metadata.sources import Sources
from kbackup.store import Store
from kbackup.util.text import join_names

# Read the situation of a rollback.


_NO_ARCHIVE = NotRead("no archive is named", "give --archive")
_NO_ZNODES = NotRead("the newest restore point holds no znodes", "run 'kbackup migrate archive' with zookeeper.connect")
_NO_BROKERS = NotRead("no brokers are named", "set bootstrap.servers in [source], or give --bootstrap-server")


@dataclass(frozen=True, slots=True)
class RollbackOptions:
    """Options of the command line: exporters, controllers' properties files, addresses of controllers,
    addresses known to be stopped, and folders of metadata logs beside the one in [source]."""

    metrics_urls: Sequence[str] = ()
    controller_files: Sequence[Path] = ()
    controllers: Sequence[str] = ()
    stopped: Sequence[str] = ()
    metadata_logs: Sequence[Path] = ()


def read_situation(
    sources: Sources, zookeeper: ZnodeReader, options: RollbackOptions, store: Callable[[], Store] | None
) -> Situation:
    """`store` opens the archive's store."""
    witness, znodes = read_witness(zookeeper)
    metrics = read_metrics_of(options.metrics_urls, sources)
    report = judge(Witnesses(metrics, witness, read_log(sources)))
    configs = read_configs(sources)
    signs = probe(sorted(_addresses(sources, options, configs)), options.stopped)
    for each in metrics:  # an exporter lives in its controller
        if not isinstance(each, NotRead) and each.state is not KafkaState.ZK:
            signs[each.url] = "answers"
    return Situation(
        report=report,
        witness=witness,
        znodes=znodes,
        controllers=Controllers(signs),
        brokers=configs if isinstance(configs, NotRead) else _modes(configs),
        archived=_NO_ARCHIVE if store is None else _archived(store),
        lag=read_lag(zookeeper, _folders(sources, options), witness) if is_written_by_kraft(witness) else None,
    )


def _folders(sources: Sources, options: RollbackOptions) -> list[str]:
    return [*filter(None, [sources.metadata_log]), *map(str, options.metadata_logs)]


def read_configs(sources: Sources) -> dict[int, Mapping[str, str]] | NotRead:
    if not sources.kafka.get("bootstrap.servers"):
        return _NO_BROKERS
    try:
        admin = BrokerAdmin(sources.kafka, "source")
        return {broker: admin.configs(broker) for broker in admin.brokers().addresses}
    except UsageError:
        raise
    except KbackupError as error:
        return NotRead(error.message, error.hint)


def _modes(configs: Mapping[int, Mapping[str, str]]) -> BrokerModes:
    kraft = frozenset(broker for broker, config in configs.items() if config.get("process.roles"))
    zookeeper = frozenset(configs) - kraft
    return BrokerModes(kraft, zookeeper, frozenset(b for b in zookeeper if is_enabled(configs[b])))


def _addresses(
    sources: Sources, options: RollbackOptions, configs: Mapping[int, Mapping[str, str]] | NotRead
) -> Iterable[str]:
    """Every address of a controller that anything names."""
    addresses = {*options.controllers, *options.stopped}
    for config in () if isinstance(configs, NotRead) else configs.values():
        addresses |= quorum_addresses(config)
    for file in options.controller_files:
        properties = read_properties(file)
        addresses |= quorum_addresses(properties) | own_addresses(properties)
    image = read_image_of(sources)
    if not isinstance(image, NotRead):
        addresses |= {*logged_addresses(image.controllers.values())}
    return addresses


def _archived(store: Callable[[], Store]) -> Mapping[str, str] | NotRead:
    """Return the znodes of the newest restore point, by path."""
    try:
        archive = open_archive(store())
        metadata = archive.metadata(archive.head) if archive.head is not None else None
    except KbackupError as error:
        return NotRead(error.message, error.hint)
    if metadata is None or metadata.znodes is None:
        return _NO_ZNODES
    return {znode.path: znode.content for znode in metadata.znodes}


# The guards of the deletion of znodes: each must hold.


WAY_BACK = "way back"
STOPPED = "controllers stopped"
BROKERS = "brokers with ZooKeeper"
COMPLETE = "ZooKeeper complete"
ARCHIVED = "znodes archived"

_SOME = 5


@dataclass(frozen=True, slots=True)
class DeletionGuard:
    """A condition of the deletion. `holds`: the deletion is allowed; else `hint` is the action for the user."""

    name: str
    holds: bool
    detail: str
    hint: str = ""


def check_way_back(situation: Situation) -> DeletionGuard:
    """The migration is not finished, and this is certain."""
    report = situation.report
    if report.way_back:
        return DeletionGuard(WAY_BACK, True, f"the state is {report.state}")
    if report.state in ("finished", "kraft"):
        return DeletionGuard(WAY_BACK, False, f"the state is {report.state}", "stay with KRaft: there is no way back")
    return DeletionGuard(
        WAY_BACK,
        False,
        f"the state is {report.state}: it can be {' or '.join(report.possible) or 'any'}",
        "name more witnesses: zookeeper.connect and metadata.log.dir in [source], and --metrics-url",
    )


def check_stopped(situation: Situation) -> DeletionGuard:
    """No KRaft controller is alive."""
    signs = situation.controllers.signs
    if not signs:
        return DeletionGuard(
            STOPPED,
            False,
            "no controller's address is known",
            "name each: --controller HOST:PORT, or --controller-config",
        )
    if alive := sorted(address for address, sign in signs.items() if sign == "answers"):
        return DeletionGuard(STOPPED, False, f"alive: {join_names(alive, _SOME)}", "stop these controllers, by SIGTERM")
    if silent := sorted(address for address, sign in signs.items() if sign == "silent"):
        return DeletionGuard(
            STOPPED,
            False,
            f"no answer, which proves nothing: {join_names(silent, _SOME)}",
            "make sure that these controllers are stopped, then give --stopped HOST:PORT for each",
        )
    return DeletionGuard(STOPPED, True, join_names(sorted(signs), _SOME))


def check_brokers(situation: Situation) -> DeletionGuard:
    """No broker runs as a KRaft broker: it would not know a new controller in ZooKeeper."""
    brokers = situation.brokers
    if isinstance(brokers, NotRead):
        return DeletionGuard(BROKERS, False, f"not looked at: {brokers.why}", brokers.hint)
    if brokers.kraft:
        ids = join_names([str(broker) for broker in sorted(brokers.kraft)], _SOME)
        return DeletionGuard(
            BROKERS,
            False,
            f"KRaft brokers: {ids}",
            "start the controllers, and restart these brokers with ZooKeeper and the migration enabled",
        )
    if not brokers.zookeeper:
        return DeletionGuard(BROKERS, False, "no broker runs", "start the brokers")
    return DeletionGuard(BROKERS, True, f"{len(brokers.zookeeper)} brokers run with ZooKeeper")


def check_complete(situation: Situation) -> DeletionGuard:
    """ZooKeeper has all that the controllers acknowledged, by the logs on their disks."""
    lag = situation.lag
    if lag is None:
        return DeletionGuard(COMPLETE, True, "no KRaft controller has written to it since a broker did")
    if isinstance(lag, NotRead):
        return DeletionGuard(COMPLETE, False, f"not looked at: {lag.why}", lag.hint)
    if lag.records:
        return DeletionGuard(COMPLETE, False, f"it lacks {in_types(lag.records)} of the metadata log", CATCH_UP)
    if lag.differences:
        differences = join_names(lag.differences, _SOME, "; ")
        return DeletionGuard(COMPLETE, False, f"it differs from the metadata log: {differences}", CATCH_UP)
    return DeletionGuard(COMPLETE, True, f"it has every record of the metadata log, which ends at {lag.end_offset}")


def check_archived(situation: Situation) -> DeletionGuard:
    """The newest restore point holds the znodes exactly as they are."""
    archived = situation.archived
    if isinstance(archived, NotRead):
        return DeletionGuard(ARCHIVED, False, f"not looked at: {archived.why}", archived.hint)
    missing = [znode.path for znode in situation.due if archived.get(znode.path) != znode.content]
    if missing:
        return DeletionGuard(
            ARCHIVED,
            False,
            f"the newest restore point doesn't hold {' and '.join(missing)} as now",
            "run 'kbackup migrate archive' after the controllers are stopped",
        )
    return DeletionGuard(ARCHIVED, True, " and ".join(znode.path for znode in situation.due) or "nothing to hold")


_CHECKS: tuple[Callable[[Situation], DeletionGuard], ...] = (
    check_way_back,
    check_stopped,
    check_brokers,
    check_complete,
    check_archived,
)


def guards_of(situation: Situation) -> tuple[DeletionGuard, ...]:
    """Return every guard."""
    return tuple(check(situation) for check in _CHECKS)


# The ordered steps back to ZooKeeper from the state that a cluster is in.


@dataclass(frozen=True, slots=True)
class RollbackStep:
    """`check` is how to see that the step is done; `done` is None where kbackup can't see it."""

    text: str
    check: str
    done: bool | None


def runbook(situation: Situation) -> tuple[RollbackStep, ...]:
    """Return the steps, in order; none if there is no way back, or nothing to roll back."""
    if not situation.report.way_back:
        return ()
    *steps, storage = _steps(situation)
    return () if storage.done is None and all(step.done for step in steps) else (*steps, storage)


def _steps(situation: Situation) -> Iterator[RollbackStep]:
    """The controllers go first and the brokers last: a broker that is rolled back while /controller names a KRaft
    controller waits for that controller. KRaft brokers need the controllers until they run with ZooKeeper again."""
    if situation.report.state == "brokers moved" or _kraft_brokers(situation):
        yield RollbackStep(
            "restart the brokers one by one with ZooKeeper and the migration enabled: without process.roles, broker.id "
            "for node.id, zookeeper.connect and the authorizer as before, zookeeper.metadata.migration.enable=true; "
            "delete __cluster_metadata-0 from each one's log directory; leave the controllers running",
            "'kbackup migrate status' says dual write, with every broker in ZooKeeper mode",
            check_brokers(situation).holds,
        )
    if situation.lag is not None and situation.due:
        again = "start the controllers again, and " if _is_behind(situation) and _is_stopped(situation) else ""
        yield RollbackStep(
            f"{again}wait until ZooKeeper has every record",
            "'kbackup migrate status --metrics-url URL' says 0 records behind",
            None if (is_behind := _is_behind(situation)) is None else not is_behind,
        )
        yield RollbackStep(
            "kbackup migrate verify",
            "exit code 0: ZooKeeper and the metadata log have the same entities",
            None if isinstance(situation.lag, NotRead) else not situation.lag.differences,
        )
    yield RollbackStep(
        "stop every controller by SIGTERM, and see that none is started again",
        "no controller's address answers",
        _is_stopped(situation),
    )
    if situation.due:
        yield RollbackStep(
            "kbackup migrate archive",
            f"the newest restore point holds {' and '.join(each.path for each in situation.due)} as now",
            check_archived(situation).holds,
        )
    yield RollbackStep(
        "kbackup migrate rollback --confirm",
        "/migration is gone, and /controller names a broker",
        _has_controller(situation),
    )
    yield RollbackStep(
        "restart the brokers one by one without zookeeper.metadata.migration.enable, controller.listener.names and "
        "controller.quorum.*; one that does not end by SIGTERM waits for the controllers: kill it, and start it when "
        "its znode /brokers/ids/ID is gone",
        "no broker has the migration enabled",
        _is_rolled_back(situation),
    )
    yield RollbackStep(
        "delete the controllers' storage: a second migration formats it anew",
        "the log directories of the controllers are empty",
        _is_storage_deleted(situation),
    )


def _is_behind(situation: Situation) -> bool | None:
    """Return whether ZooKeeper lacks records, by the logs on disk or else by the controllers; None if
    neither is known."""
    if isinstance(situation.lag, Lag):
        return bool(situation.lag.records)
    return None if situation.report.lag is None else situation.report.lag > 0


def _is_stopped(situation: Situation) -> bool:
    """Return whether no controller runs, as far as any source shows."""
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
    """Return False if a metadata log with a migration was read; otherwise kbackup can't see it."""
    logs = [claim for claim in situation.report.claims if claim.witness == "metadata log"]
    return False if any("zookeeper" not in log.states for log in logs) else None


def _is_rolled_back(situation: Situation) -> bool | None:
    brokers = situation.brokers
    return None if isinstance(brokers, NotRead) else not brokers.kraft and not brokers.enabled


# The guarded deletion of /controller and /migration.


DELETABLE = frozenset({CONTROLLER, MIGRATION})


class Znodes(Protocol):
    """ZooKeeper, as far as the deletion needs it."""

    def delete(self, path: str, version: int) -> bool:
        """Delete a znode below the chroot if it still has this version; return False if it was written since, or
        is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Deletion:
    """The guards, and the znodes that were deleted, with their content."""

    guards: tuple[DeletionGuard, ...]
    deleted: tuple[ZnodeContent, ...]


def delete_znodes(situation: Situation, znodes: Znodes) -> Deletion:
    """Delete the znodes of the migration, if every guard holds; else raise `MismatchError` and delete nothing.

    A znode that was written since it was read means a controller that is alive: the deletion ends there."""
    guards = guards_of(situation)
    refusing = [guard for guard in guards if not guard.holds]
    if refusing:
        reasons = "; ".join(f"{guard.name}: {guard.detail}" for guard in refusing)
        raise MismatchError(f"nothing was deleted: {reasons}", refusing[0].hint)
    deleted: list[ZnodeContent] = []
    for znode in situation.due:
        if znode.path not in DELETABLE:
            raise AssertionError(znode.path)
        if not znodes.delete(znode.path, znode.version):
            gone = " and ".join(z.path for z in deleted) or "nothing"
            raise MismatchError(
                f"{znode.path} was written since it was read; {gone} was deleted",
                "stop the controller that is alive, archive, and run the rollback again",
            )
        deleted.append(znode)
    return Deletion(guards, tuple(deleted))
