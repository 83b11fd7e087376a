"""The way back to ZooKeeper from every state of a migration before the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kbackup.archive.reader import open_archive
from kbackup.errors import KbackupError, MismatchError, UsageError
from kbackup.kafka.control.cluster import BrokerAdmin
from kbackup.metadata.sources import Sources
from kbackup.migrate import readings, states
from kbackup.migrate.checks.base import MIGRATION_FLAG, is_true
from kbackup.migrate.lag import CATCH_UP, Lag, in_types, is_written_by_kraft, read_lag
from kbackup.migrate.states import NotRead, ProblemError
from kbackup.migrate.znodes import Sign, ZnodeContent, read_witness
from kbackup.migrate.zookeeper.session import ZooKeeperSession
from kbackup.migrate.zookeeper.unreadable import CONTROLLER, MIGRATION
from kbackup.store import Store
from kbackup.util.text import join_names

# Read the situation of a rollback.


_NO_ZNODES = NotRead("the newest restore point holds no znodes", "run 'kbackup migrate archive' with zookeeper.connect")


@dataclass(frozen=True, slots=True)
class BrokerModes:
    """The ids of the brokers that run as KRaft brokers, of those that run with ZooKeeper, and of the latter those
    that have the migration enabled."""

    kraft: frozenset[int]
    zookeeper: frozenset[int]
    enabled: frozenset[int]


@dataclass(frozen=True)
class Situation:
    """`znodes` are /controller and /migration, those that are there. `signs` are the signs of life at each address of a
    controller: host:port, or the URL of its exporter. `archived` maps the paths of the newest restore point's znodes to
    their content. `lag` is None if a broker is the controller: ZooKeeper is complete."""

    report: states.StateReport
    witness: states.ZnodesWitness
    znodes: tuple[ZnodeContent, ...]
    signs: Mapping[str, Sign]
    brokers: BrokerModes | NotRead
    archived: Mapping[str, str] | NotRead
    lag: Lag | NotRead | None

    @cached_property
    def due(self) -> tuple[ZnodeContent, ...]:
        """The znodes to delete, in this order: /controller where a KRaft controller wrote it, and /migration. The
        /controller of a broker is in use."""
        there, owner = {znode.path: znode for znode in self.znodes}, self.witness.controller
        due = [there[path] for path in (CONTROLLER, MIGRATION) if path in there]
        of_kraft = owner is not None and owner.is_kraft
        return tuple(znode for znode in due if znode.path == MIGRATION or (of_kraft and not znode.ephemeral))


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
    sources: Sources, zookeeper: ZooKeeperSession, options: RollbackOptions, store: Callable[[], Store] | None
) -> Situation:
    """`store` opens the archive's store."""
    witness, znodes = read_witness(zookeeper)
    metrics = readings.read_metrics_of(options.metrics_urls, sources)
    report = states.judge(states.Witnesses(metrics, witness, readings.read_log(sources)))
    configs = read_configs(sources)
    signs = readings.probe(sorted(_addresses(sources, options, configs)), options.stopped)
    for each in metrics:  # an exporter lives in its controller
        if not isinstance(each, NotRead) and each.state is not states.KafkaState.ZK:
            signs[each.url] = "answers"
    brokers: BrokerModes | NotRead
    if isinstance(configs, NotRead):
        brokers = configs
    else:
        kraft = frozenset(broker for broker, config in configs.items() if config.get("process.roles"))
        with_zookeeper = frozenset(configs) - kraft
        enabled = frozenset(broker for broker in with_zookeeper if is_true(configs[broker], MIGRATION_FLAG))
        brokers = BrokerModes(kraft, with_zookeeper, enabled)
    folders = [*filter(None, [sources.metadata_log]), *map(str, options.metadata_logs)]
    return Situation(
        report=report,
        witness=witness,
        znodes=znodes,
        signs=signs,
        brokers=brokers,
        archived=readings.NO_ARCHIVE if store is None else readings.tried(lambda: _archived(store)),
        lag=read_lag(zookeeper, folders, witness) if is_written_by_kraft(witness) else None,
    )


def read_configs(sources: Sources) -> dict[int, Mapping[str, str]] | NotRead:
    if not sources.kafka.get("bootstrap.servers"):
        return readings.NO_BROKERS
    try:
        admin = BrokerAdmin(sources.kafka, "source")
        return {broker: admin.configs(broker) for broker in admin.brokers().addresses}
    except UsageError:
        raise
    except KbackupError as error:
        return NotRead(error.message, error.hint)


def _addresses(
    sources: Sources, options: RollbackOptions, configs: Mapping[int, Mapping[str, str]] | NotRead
) -> Iterable[str]:
    """Every address of a controller that anything names."""
    addresses = {*options.controllers, *options.stopped}
    for config in () if isinstance(configs, NotRead) else configs.values():
        addresses |= readings.quorum_addresses(config)
    for file in options.controller_files:
        properties = readings.read_properties(file)
        addresses |= readings.quorum_addresses(properties) | readings.own_addresses(properties)
    image = readings.read_image_of(sources)
    if not isinstance(image, NotRead):
        addresses |= {*readings.logged_addresses(image.controllers.values())}
    return addresses


def _archived(store: Callable[[], Store]) -> Mapping[str, str] | NotRead:
    """Return the znodes of the newest restore point, by path."""
    archive = open_archive(store())
    znodes = archive.metadata(archive.head).znodes if archive.head is not None else None
    return _NO_ZNODES if znodes is None else {znode.path: znode.content for znode in znodes}


# The guards of the deletion of znodes: each must hold. They return what they saw; `ProblemError` for one that doesn't
# hold, `UnreadError` where nobody can tell.


_SOME = 5


@dataclass(frozen=True, slots=True)
class DeletionGuard:
    """A condition of the deletion. `holds`: the deletion is allowed; else `hint` is the action for the user."""

    name: str
    holds: bool
    detail: str
    hint: str = ""


def _way_back(situation: Situation) -> str:
    """The migration is not finished, and this is certain."""
    report = situation.report
    state = f"the state is {report.state}"
    if report.way_back:
        return state
    if report.state in ("finished", "kraft"):
        raise ProblemError(state, "stay with KRaft: there is no way back")
    raise ProblemError(
        f"{state}: it can be {' or '.join(report.possible) or 'any'}",
        "name more witnesses: zookeeper.connect and metadata.log.dir in [source], and --metrics-url",
    )


def _stopped(situation: Situation) -> str:
    """No KRaft controller is alive."""
    signs = situation.signs
    if not signs:
        raise ProblemError(
            "no controller's address is known", "name each: --controller HOST:PORT, or --controller-config"
        )
    if alive := sorted(address for address, sign in signs.items() if sign == "answers"):
        raise ProblemError(f"alive: {join_names(alive, _SOME)}", "stop these controllers, by SIGTERM")
    if silent := sorted(address for address, sign in signs.items() if sign == "silent"):
        raise ProblemError(
            f"no answer, which proves nothing: {join_names(silent, _SOME)}",
            "make sure that these controllers are stopped, then give --stopped HOST:PORT for each",
        )
    return join_names(sorted(signs), _SOME)


def _with_zookeeper(situation: Situation) -> str:
    """No broker runs as a KRaft broker: it would not know a new controller in ZooKeeper."""
    brokers = states.need(situation.brokers)
    if brokers.kraft:
        raise ProblemError(
            f"KRaft brokers: {join_names([str(broker) for broker in sorted(brokers.kraft)], _SOME)}",
            "start the controllers, and restart these brokers with ZooKeeper and the migration enabled",
        )
    if not brokers.zookeeper:
        raise ProblemError("no broker runs", "start the brokers")
    return f"{len(brokers.zookeeper)} brokers run with ZooKeeper"


def _complete(situation: Situation) -> str:
    """ZooKeeper has all that the controllers acknowledged, by the logs on their disks."""
    lag = states.need(situation.lag)
    if lag is None:
        return "no KRaft controller has written to it since a broker did"
    if lag.records:
        raise ProblemError(f"it lacks {in_types(lag.records)} of the metadata log", CATCH_UP)
    if lag.differences:
        raise ProblemError(f"it differs from the metadata log: {join_names(lag.differences, _SOME, '; ')}", CATCH_UP)
    return f"it has every record of the metadata log, which ends at {lag.end_offset}"


def _is_archived(situation: Situation) -> str:
    """The newest restore point holds the znodes exactly as they are."""
    archived = states.need(situation.archived)
    if missing := [znode.path for znode in situation.due if archived.get(znode.path) != znode.content]:
        raise ProblemError(
            f"the newest restore point doesn't hold {' and '.join(missing)} as now",
            "run 'kbackup migrate archive' after the controllers are stopped",
        )
    return " and ".join(znode.path for znode in situation.due) or "nothing to hold"


_GUARDS: dict[str, Callable[[Situation], str]] = {
    "way back": _way_back,
    "controllers stopped": _stopped,
    "brokers with ZooKeeper": _with_zookeeper,
    "ZooKeeper complete": _complete,
    "znodes archived": _is_archived,
}


def guards_of(situation: Situation) -> tuple[DeletionGuard, ...]:
    return tuple(_guard(name, situation) for name in _GUARDS)


def _guard(name: str, situation: Situation) -> DeletionGuard:
    try:
        return DeletionGuard(name, True, _GUARDS[name](situation))
    except ProblemError as problem:
        return DeletionGuard(name, False, problem.detail, problem.hint)
    except states.UnreadError as error:
        return DeletionGuard(name, False, f"not looked at: {error.unread.why}", error.unread.hint)


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
    report, lag, due, brokers = situation.report, situation.lag, situation.due, situation.brokers
    controller, migration = situation.witness.controller, situation.witness.migration
    modes = None if isinstance(brokers, NotRead) else brokers
    is_stopped = _guard("controllers stopped", situation).holds if situation.signs or due else True
    if report.state == "brokers moved" or (modes is not None and modes.kraft):
        yield RollbackStep(
            "restart the brokers one by one with ZooKeeper and the migration enabled: without process.roles, broker.id "
            "for node.id, zookeeper.connect and the authorizer as before, zookeeper.metadata.migration.enable=true; "
            "delete __cluster_metadata-0 from each one's log directory; leave the controllers running",
            "'kbackup migrate status' says dual write, with every broker in ZooKeeper mode",
            _guard("brokers with ZooKeeper", situation).holds,
        )
    if lag is not None and due:
        # by the logs on disk, or else by the controllers' metrics
        behind = len(lag.records) if isinstance(lag, Lag) else report.lag
        yield RollbackStep(
            f"{'start the controllers again, and ' if behind and is_stopped else ''}wait until ZooKeeper has every "
            "record",
            "'kbackup migrate status --metrics-url URL' says 0 records behind",
            None if behind is None else not behind,
        )
        yield RollbackStep(
            "kbackup migrate verify",
            "exit code 0: ZooKeeper and the metadata log have the same entities",
            None if isinstance(lag, NotRead) else not lag.differences,
        )
    yield RollbackStep(
        "stop every controller by SIGTERM, and see that none is started again",
        "no controller's address answers",
        is_stopped,
    )
    if due:
        yield RollbackStep(
            "kbackup migrate archive",
            f"the newest restore point holds {' and '.join(each.path for each in due)} as now",
            _guard("znodes archived", situation).holds,
        )
    yield RollbackStep(
        "kbackup migrate rollback --confirm",
        "/migration is gone, and /controller names a broker",
        # right after the deletion both are gone: a broker takes /controller within seconds
        None
        if controller is None and migration is None
        else bool(controller and not controller.is_kraft and migration is None),
    )
    yield RollbackStep(
        "restart the brokers one by one without zookeeper.metadata.migration.enable, controller.listener.names and "
        "controller.quorum.*; one that does not end by SIGTERM waits for the controllers: kill it, and start it when "
        "its znode /brokers/ids/ID is gone",
        "no broker has the migration enabled",
        None if modes is None else not modes.kraft and not modes.enabled,
    )
    logs = [claim for claim in report.claims if claim.witness == "metadata log"]
    yield RollbackStep(
        "delete the controllers' storage: a second migration formats it anew",
        "the log directories of the controllers are empty",
        # kbackup sees that it is there where a metadata log with a migration was read
        False if any("zookeeper" not in log.states for log in logs) else None,
    )


# The guarded deletion of /controller and /migration.


def delete_znodes(situation: Situation, zookeeper: ZooKeeperSession) -> tuple[ZnodeContent, ...]:
    """Delete the znodes of the migration and return them, if every guard holds; else raise `MismatchError` and delete
    nothing.

    A znode that was written since it was read means a controller that is alive: the deletion ends there."""
    refusing = [guard for guard in guards_of(situation) if not guard.holds]
    if refusing:
        reasons = "; ".join(f"{guard.name}: {guard.detail}" for guard in refusing)
        raise MismatchError(f"nothing was deleted: {reasons}", refusing[0].hint)
    for number, znode in enumerate(situation.due):
        if znode.path not in (CONTROLLER, MIGRATION):
            raise AssertionError(znode.path)
        if not zookeeper.delete(znode.path, znode.version):
            gone = " and ".join(z.path for z in situation.due[:number]) or "nothing"
            raise MismatchError(
                f"{znode.path} was written since it was read; {gone} was deleted",
                "stop the controller that is alive, archive, and run the rollback again",
            )
    return situation.due
