"""The way back to ZooKeeper from every state of a migration before the last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kbackup.archive.reader import open_archive
from kbackup.errors import KbackupError, MismatchError, UsageError
from kbackup.kafka.control.cluster import BrokerAdmin
from kbackup.metadata.sources import Sources
from kbackup.migrate import addresses, readings, states
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
        by_path = {znode.path: znode for znode in self.znodes}
        due: list[ZnodeContent] = []
        controller, owner = by_path.get(CONTROLLER), self.witness.controller
        is_of_kraft = owner is not None and owner.is_kraft
        # A KRaft controller's /controller has no session behind it, and would stay for ever. One that ends with a
        # session goes by itself, or is in use.
        if controller is not None and is_of_kraft and not controller.ephemeral:
            due.append(controller)
        if MIGRATION in by_path:
            due.append(by_path[MIGRATION])
        return tuple(due)


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
    log = readings.read_log(sources)
    report = states.judge(states.Witnesses(metrics, witness, log))
    configs = read_configs(sources)
    known = _addresses(sources, options, configs)
    signs = addresses.probe(sorted(known), options.stopped)
    # An exporter lives in its controller's process: one that answers is a controller that is alive, whatever its ports
    # say.
    for each in metrics:
        if not isinstance(each, NotRead) and each.state is not states.KafkaState.ZK:
            signs[each.url] = "answers"
    archived: Mapping[str, str] | NotRead = readings.NO_ARCHIVE
    if store is not None:
        archived = states.tried(lambda: _archived(store))
    lag: Lag | NotRead | None = None
    if is_written_by_kraft(witness):
        folders = [str(folder) for folder in options.metadata_logs]
        if sources.metadata_log:
            folders.insert(0, sources.metadata_log)
        lag = read_lag(zookeeper, folders, witness)
    return Situation(
        report=report,
        witness=witness,
        znodes=znodes,
        signs=signs,
        brokers=_modes_of(configs),
        archived=archived,
        lag=lag,
    )


def _modes_of(configs: Mapping[int, Mapping[str, str]] | NotRead) -> BrokerModes | NotRead:
    """Return which brokers run with KRaft and which with ZooKeeper, by their configs."""
    if isinstance(configs, NotRead):
        return configs
    kraft = frozenset(broker for broker, own in configs.items() if own.get("process.roles"))
    with_zookeeper = frozenset(configs) - kraft
    enabled = frozenset(broker for broker in with_zookeeper if is_true(configs[broker], MIGRATION_FLAG))
    return BrokerModes(kraft, with_zookeeper, enabled)


def read_configs(sources: Sources) -> dict[int, Mapping[str, str]] | NotRead:
    if not sources.kafka.get("bootstrap.servers"):
        return readings.NO_BROKERS
    try:
        admin = BrokerAdmin(sources.kafka, "source")
        brokers = admin.brokers()
        return {broker: admin.configs(broker) for broker in brokers.addresses}
    except UsageError:
        # A wrong option is no broker that is away: the operator can mend it at once.
        raise
    except KbackupError as error:
        return NotRead(error.message, error.hint)


def _addresses(
    sources: Sources, options: RollbackOptions, configs: Mapping[int, Mapping[str, str]] | NotRead
) -> Collection[str]:
    """Return every address of a controller that anything names."""
    # One address too many is a question to the operator. One too few may be a controller that is alive while the znodes
    # that it writes are deleted.
    known = {*options.controllers, *options.stopped}
    if not isinstance(configs, NotRead):
        for config in configs.values():
            known |= addresses.quorum_addresses(config)
    for file in options.controller_files:
        properties = readings.read_properties(file)
        known |= addresses.quorum_addresses(properties)
        known |= addresses.own_addresses(properties)
    image = readings.read_image_of(sources)
    if not isinstance(image, NotRead):
        known.update(addresses.logged_addresses(image.controllers.values()))
    return known


def _archived(store: Callable[[], Store]) -> Mapping[str, str] | NotRead:
    """Return the znodes of the newest restore point, by path."""
    archive = open_archive(store())
    if archive.head is None:
        return _NO_ZNODES
    znodes = archive.metadata(archive.head).znodes
    if znodes is None:
        return _NO_ZNODES
    return {znode.path: znode.content for znode in znodes}


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
    possible = " or ".join(report.possible) or "any"
    raise ProblemError(
        f"{state}: it can be {possible}",
        "name more witnesses: zookeeper.connect and metadata.log.dir in [source], and --metrics-url",
    )


def _stopped(situation: Situation) -> str:
    """No KRaft controller is alive."""
    signs = situation.signs
    if not signs:
        raise ProblemError(
            "no controller's address is known", "name each: --controller HOST:PORT, or --controller-config"
        )
    # A refused connection proves that nobody listens. Silence proves nothing: a firewall drops packets without a word.
    alive = sorted(address for address, sign in signs.items() if sign == "answers")
    if alive:
        raise ProblemError(f"alive: {join_names(alive, _SOME)}", "stop these controllers, by SIGTERM")
    silent = sorted(address for address, sign in signs.items() if sign == "silent")
    if silent:
        raise ProblemError(
            f"no answer, which proves nothing: {join_names(silent, _SOME)}",
            "make sure that these controllers are stopped, then give --stopped HOST:PORT for each",
        )
    return join_names(sorted(signs), _SOME)


def _with_zookeeper(situation: Situation) -> str:
    """No broker runs as a KRaft broker: it would not know a new controller in ZooKeeper."""
    brokers = states.need(situation.brokers)
    if brokers.kraft:
        names = [str(broker) for broker in sorted(brokers.kraft)]
        raise ProblemError(
            f"KRaft brokers: {join_names(names, _SOME)}",
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
    # Compared byte by byte: an archive that was taken before the last write holds an older offset.
    archived = states.need(situation.archived)
    missing = [znode.path for znode in situation.due if archived.get(znode.path) != znode.content]
    if missing:
        raise ProblemError(
            f"the newest restore point doesn't hold {' and '.join(missing)} as now",
            "run 'kbackup migrate archive' after the controllers are stopped",
        )
    due = [znode.path for znode in situation.due]
    return " and ".join(due) or "nothing to hold"


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
    """Return the steps, in order; none if there is no way back, or nothing to roll back.

    The controllers go first and the brokers last: a broker that is rolled back while /controller names a KRaft
    controller waits for that controller. KRaft brokers need the controllers until they run with ZooKeeper again.
    """
    report, brokers = situation.report, situation.brokers
    if not report.way_back:
        return ()
    modes = None if isinstance(brokers, NotRead) else brokers
    steps: list[RollbackStep] = []
    # Brokers first, where some run as KRaft brokers: they can only come back while the controllers live.
    if report.state == "brokers moved" or (modes is not None and modes.kraft):
        steps.append(_move_brokers_back(situation))
    if situation.lag is not None and situation.due:
        steps += _let_zookeeper_catch_up(situation, situation.lag)
    # ZooKeeper catches up by the controllers, so they are stopped after that, and the znodes archived when nobody
    # writes to them any more.
    steps.append(_stop_controllers(situation))
    if situation.due:
        steps.append(_archive_znodes(situation))
    steps.append(_deletion_of_znodes(situation))
    steps.append(_restart_brokers(modes))
    storage = _deletion_of_storage(report)
    # Nobody can see that the storage is gone. So its deletion alone is no step that is left.
    is_all_done = storage.done is None and all(step.done for step in steps)
    if is_all_done:
        return ()
    return (*steps, storage)


def _move_brokers_back(situation: Situation) -> RollbackStep:
    return RollbackStep(
        "restart the brokers one by one with ZooKeeper and the migration enabled: without process.roles, broker.id "
        "for node.id, zookeeper.connect and the authorizer as before, zookeeper.metadata.migration.enable=true; "
        "delete __cluster_metadata-0 from each one's log directory; leave the controllers running",
        "'kbackup migrate status' says dual write, with every broker in ZooKeeper mode",
        _guard("brokers with ZooKeeper", situation).holds,
    )


def _are_controllers_stopped(situation: Situation) -> bool:
    # Without an address and without a znode to delete, nothing shows that controllers were ever there.
    if not situation.signs and not situation.due:
        return True
    return _guard("controllers stopped", situation).holds


def _let_zookeeper_catch_up(situation: Situation, lag: Lag | NotRead) -> list[RollbackStep]:
    # By the logs on disk, or else by the controllers' metrics.
    behind = len(lag.records) if isinstance(lag, Lag) else situation.report.lag
    is_caught_up = None if behind is None else not behind
    are_equal = None if isinstance(lag, NotRead) else not lag.differences
    wait = "wait until ZooKeeper has every record"
    if behind and _are_controllers_stopped(situation):
        wait = f"start the controllers again, and {wait}"
    return [
        RollbackStep(wait, "'kbackup migrate status --metrics-url URL' says 0 records behind", is_caught_up),
        RollbackStep(
            "kbackup migrate verify", "exit code 0: ZooKeeper and the metadata log have the same entities", are_equal
        ),
    ]


def _stop_controllers(situation: Situation) -> RollbackStep:
    return RollbackStep(
        "stop every controller by SIGTERM, and see that none is started again",
        "no controller's address answers",
        _are_controllers_stopped(situation),
    )


def _archive_znodes(situation: Situation) -> RollbackStep:
    paths = [znode.path for znode in situation.due]
    return RollbackStep(
        "kbackup migrate archive",
        f"the newest restore point holds {' and '.join(paths)} as now",
        _guard("znodes archived", situation).holds,
    )


def _deletion_of_znodes(situation: Situation) -> RollbackStep:
    controller, migration = situation.witness.controller, situation.witness.migration
    is_done: bool | None
    if controller is None and migration is None:
        is_done = None  # right after the deletion both are gone: a broker takes /controller within seconds
    else:
        is_done = controller is not None and not controller.is_kraft and migration is None
    return RollbackStep(
        "kbackup migrate rollback --confirm", "/migration is gone, and /controller names a broker", is_done
    )


def _restart_brokers(modes: BrokerModes | None) -> RollbackStep:
    is_done = None if modes is None else not modes.kraft and not modes.enabled
    return RollbackStep(
        "restart the brokers one by one without zookeeper.metadata.migration.enable, controller.listener.names and "
        "controller.quorum.*; one that does not end by SIGTERM waits for the controllers: kill it, and start it when "
        "its znode /brokers/ids/ID is gone",
        "no broker has the migration enabled",
        is_done,
    )


def _deletion_of_storage(report: states.StateReport) -> RollbackStep:
    # kbackup sees that the storage is there where it read a metadata log with a migration; it never sees that it isn't.
    logs = [claim for claim in report.claims if claim.witness == "metadata log"]
    is_there = any("zookeeper" not in log.states for log in logs)
    is_done = False if is_there else None
    return RollbackStep(
        "delete the controllers' storage: a second migration formats it anew",
        "the log directories of the controllers are empty",
        is_done,
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
        # The one place of kbackup that deletes znodes: never another one, whatever a change elsewhere makes due.
        if znode.path not in (CONTROLLER, MIGRATION):
            raise AssertionError(znode.path)
        if not zookeeper.delete(znode.path, znode.version):
            deleted = [each.path for each in situation.due[:number]]
            gone = " and ".join(deleted) or "nothing"
            raise MismatchError(
                f"{znode.path} was written since it was read; {gone} was deleted",
                "stop the controller that is alive, archive, and run the rollback again",
            )
    return situation.due
