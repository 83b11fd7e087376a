"""Read the witnesses of a migration, and the findings of its preflight: brokers, znodes, logs, controllers, archive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.config.clients import parse_properties
from kbackup.errors import CorruptError, KbackupError, NoArchiveError, UnreachableError, UsageError
from kbackup.kafka.control.cluster import BrokerAdmin
from kbackup.metadata.entities import LABELS, SCRAM_SECRETS, MetadataPartName
from kbackup.metadata.sources import Sources
from kbackup.migrate import states, znodes
from kbackup.migrate.addresses import probe_valid, quorum_addresses
from kbackup.migrate.exporters import read_metrics
from kbackup.migrate.metadata_log.checkpoint import NAME
from kbackup.migrate.metadata_log.image import MetadataImage, read_image
from kbackup.migrate.metadata_log.log import find_log, read_snapshot
from kbackup.migrate.states import NotRead, tried
from kbackup.migrate.znodes import ControllerFile, MigrationFindings, Sign
from kbackup.migrate.zookeeper.session import open_session
from kbackup.store import Store
from kbackup.util.text import words_of


def archived_state(metadata: Metadata) -> states.StateReport | None:
    """Return the state of a migration by the znodes of a restore point; None if it holds none. Only ZooKeeper's own
    registrations show which brokers run with it."""
    if metadata.znodes is None:
        return None
    registered = metadata.registrations if metadata.sources.get("registrations") == "zookeeper" else None
    brokers = frozenset(each.id for each in registered or () if each.role == "broker")
    contents: dict[str, bytes | str] = {znode.path: znode.content for znode in metadata.znodes}
    hint = "run 'kbackup migrate status'"
    metrics = NotRead("a restore point holds no metrics", hint)
    log = NotRead("a restore point holds no state of a metadata log", hint)
    witness = znodes.witness_of(contents, brokers)
    return states.judge(states.Witnesses((metrics,), witness, log))


# Read the three witnesses of a migration.


_NO_METRICS = NotRead("metrics: no exporter is named", "give --metrics-url URL for each controller")
_NO_ZNODES = NotRead("znodes: no ZooKeeper is named", "set zookeeper.connect in [source]")
_NO_LOG = NotRead("metadata log: none is named", "set metadata.log.dir in [source]")


def read_witnesses(sources: Sources, metrics_urls: Iterable[str]) -> states.Witnesses:
    """Read every witness; one that can't be read is `NotRead`, with the reason."""
    metrics = read_metrics_of(metrics_urls, sources)
    return states.Witnesses(metrics, read_znodes(sources), read_log(sources))


def read_metrics_of(urls: Iterable[str], sources: Sources) -> tuple[states.MetricsWitness | NotRead, ...]:
    """Read the metrics at each URL."""
    found = tuple(read_metrics(url, sources.metrics) for url in urls)
    return found or (_NO_METRICS,)


def read_znodes(sources: Sources) -> states.ZnodesWitness | NotRead:
    """Read from ZooKeeper which controller controls the cluster; before the copy, also the brokers it waits for."""
    if sources.zookeeper is None:
        return _NO_ZNODES
    try:
        with open_session(sources.zookeeper) as zookeeper:
            witness, _ = znodes.read_witness(zookeeper)
            is_before_copy = witness.migration is not None and witness.migration < 0
            if not is_before_copy:
                return witness
            # The copy waits for each broker that holds replicas.
            return replace(witness, assigned=znodes.read_assigned(zookeeper))
    except KbackupError as error:
        return NotRead(f"znodes: {error.message}", error.hint)


def read_log(sources: Sources) -> states.LogWitness | NotRead:
    """Read the state of the migration and the brokers from the metadata log."""
    image = read_image_of(sources)
    if isinstance(image, NotRead):
        return image
    state = states.KafkaState(image.migration_state or 0)
    zk_brokers = frozenset(broker for broker, data in image.brokers.items() if data.get("isMigratingZkBroker"))
    kraft_brokers = frozenset(image.brokers) - zk_brokers
    return states.LogWitness(state, zk_brokers, kraft_brokers, image.offset)


def read_image_of(sources: Sources) -> MetadataImage | NotRead:
    """Read the metadata that the log in metadata.log.dir adds up to. The folder is a controller's, or a copy of
    `__cluster_metadata-0`. `CorruptError` if the log is damaged: its missing end may contradict what was read."""
    if not sources.metadata_log:
        return _NO_LOG
    try:
        log = find_log(Path(sources.metadata_log))
        return read_image(log)
    except CorruptError:
        raise
    except KbackupError as error:
        return NotRead(f"metadata log: {error.message}", error.hint)


# Read the findings of the preflight. A source that can't be read becomes `NotRead`; checks of other sources still
# run.


NO_BROKERS = NotRead("no brokers are named", "set bootstrap.servers in [source], or give --bootstrap-server")
_NO_ZOOKEEPER = NotRead("no ZooKeeper is named", "set zookeeper.connect in [source]")
_NO_CONTROLLERS = NotRead("no controller is named", "give --controller-config FILE for each controller")
NO_ARCHIVE = NotRead("no archive is named", "give --archive")
META = "meta.properties"
"""The file in a formatted folder with the cluster's id."""
_ESSENTIAL: tuple[MetadataPartName, ...] = (
    "acls",
    "scram_users",
    "broker_configs",
    "client_quotas",
    "delegation_tokens",
)


def read_preflight(
    sources: Sources, controllers: Sequence[Path], store: Callable[[], Store] | None
) -> MigrationFindings:
    """`controllers` are properties files; `UsageError` if one can't be read. `store` opens the archive's store."""
    brokers: znodes.BrokerFindings | NotRead = NO_BROKERS
    if sources.kafka.get("bootstrap.servers"):
        brokers = tried(lambda: read_brokers(sources))
    files = tuple(read_controller(file) for file in controllers)
    archive: znodes.ArchiveFindings | NotRead | None = NO_ARCHIVE
    if store is not None:
        archive = tried(lambda: read_archive(store()))
    quorum: dict[str, Sign] | NotRead = _NO_CONTROLLERS
    if files:
        quorum = _probe_quorum(files, brokers)
    return MigrationFindings(
        brokers=brokers,
        zookeeper=tried(lambda: _read_zookeeper(sources)),
        controllers=files or _NO_CONTROLLERS,
        archive=archive,
        now=time.time(),
        quorum=quorum,
    )


def _probe_quorum(files: Iterable[ControllerFile], brokers: znodes.BrokerFindings | NotRead) -> dict[str, Sign]:
    """Return the sign of life at each address of a controller that controllers or brokers name."""
    named = [controller.properties for controller in files]
    if not isinstance(brokers, NotRead):
        for broker in brokers.brokers:
            if not isinstance(broker.configs, NotRead):
                named.append(broker.configs)
    addresses = set[str]()
    for properties in named:
        addresses |= quorum_addresses(properties)
    return probe_valid(sorted(addresses))


def read_brokers(sources: Sources) -> znodes.BrokerFindings:
    """Read the state of the brokers and of partitions from the brokers."""
    admin = BrokerAdmin(sources.kafka, "source")
    brokers = admin.brokers()
    moving = admin.reassignments()
    live: list[znodes.LiveBroker] = []
    for broker in sorted(brokers.addresses):
        # No config and no request tells a broker's release. The newest version of Fetch that it speaks does.
        version = admin.fetch_version(broker)
        fetch_version: int | NotRead
        if isinstance(version, int):
            fetch_version = version
        else:
            fetch_version = NotRead(version.why, "is the broker reachable from here?")
        configs = tried(partial(admin.configs, broker))
        live.append(znodes.LiveBroker(broker, fetch_version, configs))
    # A broker that denies its reassignments leaves them to ZooKeeper.
    reassigning = tuple(moving) if isinstance(moving, list) else NotRead(moving.why, _NO_ZOOKEEPER.hint)
    return znodes.BrokerFindings(
        cluster_id=brokers.cluster_id,
        brokers=tuple(live),
        assigned=brokers.assigned,
        offline=brokers.offline,
        reassigning=reassigning,
    )


def _read_zookeeper(sources: Sources) -> znodes.ZooKeeperFindings | NotRead:
    if sources.zookeeper is None:
        return _NO_ZOOKEEPER
    with open_session(sources.zookeeper) as zookeeper:
        return znodes.read_findings(zookeeper)


def read_controller(file: Path) -> ControllerFile:
    """Return a controller's properties and, if its storage is on this machine, what it holds."""
    properties = read_properties(file)
    # Kafka takes metadata.log.dir, else the first of log.dirs, which wins over log.dir.
    folders: list[Path] = []
    for name in ("metadata.log.dir", "log.dirs", "log.dir"):
        folders += [Path(folder) for folder in words_of(properties.get(name, ""))]
    version = tried(lambda: _metadata_version(folders) or _no_storage(file, folders, NAME))
    cluster_id: str | NotRead = _no_storage(file, folders, META)
    for folder in folders:
        meta = folder / META
        # A folder of another machine is not there: then the next one counts.
        with suppress(OSError):
            cluster_id = parse_properties(meta.read_bytes(), str(meta)).get("cluster.id", "")
            break
    return ControllerFile(str(file), properties, cluster_id, version)


def read_properties(file: Path) -> dict[str, str]:
    """Read a controller's properties file; `UsageError` if it can't be read."""
    try:
        return parse_properties(file.read_bytes(), str(file))
    except OSError as error:
        why = (error.strerror or "").lower()
        raise UsageError(f"can't read {file}: {why}", "name a controller's properties file") from None


def _metadata_version(folders: Sequence[Path]) -> int | None:
    """Return the level of metadata.version in a controller's log; before its first start, in the file that it starts
    from."""
    for folder in folders:
        log = read_image_of(Sources(kafka={}, metadata_log=str(folder)))
        image = MetadataImage() if isinstance(log, NotRead) else log
        # A controller that never ran has no log yet: its first start reads the version from the bootstrap file.
        if "metadata.version" not in image.features:
            with suppress(UnreachableError):
                for record in read_snapshot(folder / NAME):
                    image.replay(record.record)
        level = image.features.get("metadata.version")
        if level:
            return level
    return None


def _no_storage(file: Path, folders: Sequence[Path], name: str) -> NotRead:
    paths = [str(folder / name) for folder in folders]
    listed = " or ".join(paths) or "its storage"
    return NotRead(
        f"{file}: {listed} can't be read here", "run it where the controller's storage is formatted and readable"
    )


def read_archive(store: Store) -> znodes.ArchiveFindings | None:
    """Return the newest restore point's metadata; None if there is none."""
    try:
        archive = open_archive(store)
    except NoArchiveError:
        return None
    head = archive.head
    if head is None:
        return None
    metadata = archive.metadata(head)
    captured_at = datetime.fromisoformat(metadata.captured_at).timestamp()
    missing = missing_metadata(metadata)
    return znodes.ArchiveFindings(head.number, captured_at, metadata.cluster_id, missing)


def missing_metadata(metadata: Metadata) -> tuple[str, ...]:
    """Return the kinds of ZooKeeper's metadata that a restore point lacks and the cluster may have."""
    # What no source can tell ("not supported") is no reason to hold a migration up.
    missing = {entry.what for entry in metadata.not_carried if entry.reason in ("denied", "failed", "secret")}
    if any(user.stored_key is None for user in metadata.scram_users or ()):
        missing.add(SCRAM_SECRETS)
    # What brokers don't use at all is not missing: without an authorizer there are no ACLs.
    absent = {entry.part for entry in metadata.not_carried if entry.reason == "not there"}
    for part in _ESSENTIAL:
        if getattr(metadata, part) is None and part not in absent:
            missing.add(LABELS[part])
    return tuple(sorted(missing))
