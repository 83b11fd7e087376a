"""Read the witnesses of a migration: metrics, znodes, metadata logs, addresses, and what an archive holds of them."""

from __future__ import annotations

import base64
import errno
import math
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.config.clients import parse_properties
from kbackup.errors import CorruptError, KbackupError, NoArchiveError, UnreachableError, UsageError
from kbackup.kafka.control.cluster import BrokerAdmin
from kbackup.metadata.entities import LABELS, SCRAM_SECRETS, MetadataPartName
from kbackup.metadata.sources import MetricsAccess, Sources
from kbackup.migrate import states, znodes
from kbackup.migrate.metadata_log.image import NAME, MetadataImage, read_image
from kbackup.migrate.metadata_log.log import find_log, read_snapshot
from kbackup.migrate.states import NotRead
from kbackup.migrate.znodes import ControllerFile, MigrationFindings, Sign
from kbackup.migrate.zookeeper.session import open_session
from kbackup.store import Store
from kbackup.util.system import in_threads
from kbackup.util.text import words_of


def archived_state(metadata: Metadata) -> states.StateReport | None:
    """Return the state of a migration by the znodes of a restore point; None if it holds none. Only ZooKeeper's own
    registrations show which brokers run with it."""
    if metadata.znodes is None:
        return None
    registered = metadata.registrations if metadata.sources.get("registrations") == "zookeeper" else None
    brokers = frozenset(each.id for each in registered or () if each.role == "broker")
    contents: dict[str, bytes | str] = {znode.path: znode.content for znode in metadata.znodes}
    metrics, log = (
        NotRead(f"a restore point holds no {what}", "run 'kbackup migrate status'")
        for what in ("metrics", "state of a metadata log")
    )
    return states.judge(states.Witnesses((metrics,), znodes.witness_of(contents, brokers), log))


# The witness metrics: a node's state by its Prometheus exporter.
#
# Exporters make different names of `kafka.controller:type=KafkaController,name=ZkMigrationState`, such as
# `kafka_controller_KafkaController_Value{name="ZkMigrationState"}`,
# `kafka_controller_kafkacontroller_zkmigrationstate` and `kafka_controller_KafkaController_ZkMigrationState_Value`.


_TIMEOUT = 5.0  # s
_LARGEST = 64 << 20  # bytes of one answer
_HINT = "give the URL of a Prometheus exporter in a controller, such as http://controller-1:9404/metrics"
_HINT_LOGIN = "set controller.metrics.username and controller.metrics.password in [source]"
_HINT_DOWN = "is the controller running, and the exporter in it?"
_BEAN = "kafkacontroller"


def read_metrics(url: str, access: MetricsAccess) -> states.MetricsWitness | NotRead:
    """Ask an exporter. `UsageError` if `url` is none of http or https, or a file of `access` can't be used."""
    shown = shown_url(url)
    tls = None
    if url.lower().startswith("https:"):
        try:
            tls = ssl.create_default_context(cafile=access.certificates or None)
        except OSError as error:
            raise UsageError(
                f"controller.metrics.ssl.truststore.location: can't use {access.certificates}: "
                f"{error.strerror or error}",
                "name a readable PEM file of certificates",
            ) from None
    request = urllib.request.Request(url)  # noqa: S310 (shown_url refuses other schemes)
    if access.user:
        login = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")  # no other server gets it
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=tls) as answer:  # noqa: S310 (the same)
            text = answer.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        refused = isinstance(error, HTTPError) and error.code in (401, 403)
        if isinstance(error, HTTPError):
            error.close()
        return NotRead(f"{shown} gave no metrics: {why}", _HINT_LOGIN if refused else _HINT_DOWN)
    return tried(lambda: parse_metrics(text, shown))


def shown_url(url: str) -> str:
    """Return `url` without its query. `UsageError` if its scheme is neither http nor https, or where it has a
    password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--metrics-url is no http or https URL", _HINT)
    if "@" in parts.netloc:
        raise UsageError("--metrics-url has a user or a password", _HINT_LOGIN)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def parse_metrics(text: str, url: str) -> states.MetricsWitness:
    """Return the witness in an answer in Prometheus' text format. `CorruptError` for another format, and for metrics
    that are not of a Kafka controller."""
    values: dict[str, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if (name := _gauge(sample.name, sample.labels)) and math.isfinite(sample.value):
                    values.setdefault(name, int(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise CorruptError(f"{url} gave no Prometheus metrics: {error}", _HINT) from None
    number = values.get("zkmigrationstate")
    if number is None or number not in {_NO_LEADER, *states.KafkaState}:
        raise CorruptError(f"{url} has no ZkMigrationState", f"{_HINT}, and let it export kafka.controller")
    active = values.get("activecontrollercount")
    return states.MetricsWitness(
        url=url,
        state=None if number == _NO_LEADER else states.KafkaState(number),
        is_active=None if active is None else active == 1,
        zk_brokers=values.get("migratingzkbrokercount"),
        lag=values.get("zkwritebehindlag"),
    )


_NO_LEADER = -1  # of a controller that has seen no metadata since it started
_GAUGES = ("zkmigrationstate", "migratingzkbrokercount", "zkwritebehindlag", "activecontrollercount")


def _gauge(name: str, labels: dict[str, str]) -> str:
    """Return the lower-case name of the gauge of the KafkaController bean that a sample has; '' for other samples."""
    plain = name.replace("_", "").lower().removesuffix("value")
    if _BEAN not in plain and labels.get("type", "").lower() != _BEAN:
        return ""
    attribute = labels.get("name", "").lower()
    return next((gauge for gauge in _GAUGES if attribute == gauge or plain.endswith(gauge)), "")


# Read the three witnesses of a migration.


_NO_METRICS = NotRead("metrics: no exporter is named", "give --metrics-url URL for each controller")
_NO_ZNODES = NotRead("znodes: no ZooKeeper is named", "set zookeeper.connect in [source]")
_NO_LOG = NotRead("metadata log: none is named", "set metadata.log.dir in [source]")


def read_witnesses(sources: Sources, metrics_urls: Iterable[str]) -> states.Witnesses:
    """Read every witness; one that can't be read is `NotRead`, with the reason."""
    return states.Witnesses(read_metrics_of(metrics_urls, sources), read_znodes(sources), read_log(sources))


def read_metrics_of(urls: Iterable[str], sources: Sources) -> tuple[states.MetricsWitness | NotRead, ...]:
    """Read the metrics at each URL."""
    return tuple(read_metrics(url, sources.metrics) for url in urls) or (_NO_METRICS,)


def read_znodes(sources: Sources) -> states.ZnodesWitness | NotRead:
    """Read from ZooKeeper which controller controls the cluster; before the copy, also the brokers it waits for."""
    if sources.zookeeper is None:
        return _NO_ZNODES
    try:
        with open_session(sources.zookeeper) as zookeeper:
            witness = znodes.read_witness(zookeeper)[0]
            if witness.migration is None or witness.migration >= 0:
                return witness
            return replace(witness, assigned=znodes.read_assigned(zookeeper))
    except KbackupError as error:
        return NotRead(f"znodes: {error.message}", error.hint)


def read_log(sources: Sources) -> states.LogWitness | NotRead:
    """Read the state of the migration and the brokers from the metadata log."""
    image = read_image_of(sources)
    if isinstance(image, NotRead):
        return image
    zk_brokers = frozenset(b for b, data in image.brokers.items() if data.get("isMigratingZkBroker"))
    kraft_brokers = frozenset(image.brokers) - zk_brokers
    return states.LogWitness(states.KafkaState(image.migration_state or 0), zk_brokers, kraft_brokers, image.offset)


def read_image_of(sources: Sources) -> MetadataImage | NotRead:
    """Read the metadata that the log in metadata.log.dir adds up to. The folder is a controller's, or a copy of
    `__cluster_metadata-0`. `CorruptError` if the log is damaged: its missing end may contradict what was read."""
    if not sources.metadata_log:
        return _NO_LOG
    try:
        return read_image(find_log(Path(sources.metadata_log)))
    except CorruptError:
        raise
    except KbackupError as error:
        return NotRead(f"metadata log: {error.message}", error.hint)


# The addresses of controllers, and whether anybody lives there.


_PROBE_SECONDS = 3.0  # s
_NOBODY_LISTENS = {errno.ECONNREFUSED}


def quorum_addresses(properties: Mapping[str, str]) -> set[str]:
    """Return the controllers' addresses in the properties of a broker or a controller."""
    servers = words_of(properties.get("controller.quorum.bootstrap.servers", ""))
    voters = (voter.partition("@")[2] for voter in words_of(properties.get("controller.quorum.voters", "")))
    return {*servers, *(voter for voter in voters if voter)}


def own_addresses(properties: Mapping[str, str]) -> set[str]:
    """Return the advertised addresses of a controller's own listeners, without listeners on every interface."""
    names = {name.upper() for name in words_of(properties.get("controller.listener.names", ""))}
    text = properties.get("advertised.listeners") or properties.get("listeners", "")
    pairs = (listener.partition("://") for listener in words_of(text))
    return {
        address
        for name, _, address in pairs
        if name.upper() in names and address.rpartition(":")[0] not in ("", "0.0.0.0", "[::]")  # noqa: S104 (compared)
    }


def logged_addresses(controllers: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield the addresses that controllers registered with, by a metadata log's RegisterControllerRecord."""
    for controller in controllers:
        endpoints = controller.get("endPoints")
        for endpoint in endpoints if isinstance(endpoints, list | tuple) else ():
            yield f"{endpoint['host']}:{endpoint['port']}"


def probe(addresses: Collection[str], stopped: Collection[str]) -> dict[str, Sign]:
    """Try to connect to each address. `stopped` are the addresses that the user declares stopped. That counts only if
    nothing answers."""
    signs = dict(zip(addresses, in_threads(_sign, addresses), strict=True))
    return {address: "stopped" if sign == "silent" and address in stopped else sign for address, sign in signs.items()}


def _sign(address: str) -> Sign:
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=_PROBE_SECONDS):
            return "answers"
    except OSError as error:
        return "stopped" if error.errno in _NOBODY_LISTENS else "silent"


def split_address(address: str) -> tuple[str, int]:
    """Host and port; `UsageError` if it is no host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address} is no address of a controller", "write host:port")
    return host.strip("[]"), int(port)


# Read the findings of the preflight. A source that can't be read becomes `NotRead`; checks of other sources still
# run.


T = TypeVar("T")

_ADDRESS = re.compile(r".+:(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3})")
NO_BROKERS = NotRead("no brokers are named", "set bootstrap.servers in [source], or give --bootstrap-server")
_NO_ZOOKEEPER = NotRead("no ZooKeeper is named", "set zookeeper.connect in [source]")
_NO_CONTROLLERS = NotRead("no controller is named", "give --controller-config FILE for each controller")
NO_ARCHIVE = NotRead("no archive is named", "give --archive")
_ESSENTIAL: tuple[MetadataPartName, ...] = (
    *("acls", "scram_users", "broker_configs", "client_quotas", "delegation_tokens"),
)


def read_preflight(
    sources: Sources, controllers: Sequence[Path], store: Callable[[], Store] | None
) -> MigrationFindings:
    """`controllers` are properties files; `UsageError` if one can't be read. `store` opens the archive's store."""
    brokers = tried(lambda: read_brokers(sources)) if sources.kafka.get("bootstrap.servers") else NO_BROKERS
    files = tuple(map(read_controller, controllers))
    named = [controller.properties for controller in files]
    if files and not isinstance(brokers, NotRead):
        named += [broker.configs for broker in brokers.brokers if not isinstance(broker.configs, NotRead)]
    addresses = sorted({address for properties in named for address in quorum_addresses(properties)})
    valid = [address for address in addresses if _ADDRESS.fullmatch(address)]
    return MigrationFindings(
        brokers,
        tried(lambda: _read_zookeeper(sources)),
        files or _NO_CONTROLLERS,
        NO_ARCHIVE if store is None else tried(lambda: read_archive(store())),
        time.time(),
        # nobody can live at a malformed address
        {**dict.fromkeys(addresses, "silent"), **probe(valid, ())} if files else _NO_CONTROLLERS,
    )


def tried(read: Callable[[], T | NotRead]) -> T | NotRead:
    """Return what `read` does; for an error of kbackup's tree, why it was not read."""
    try:
        return read()
    except KbackupError as error:
        return NotRead(error.message, error.hint)


def read_brokers(sources: Sources) -> znodes.BrokerFindings:
    """Read the state of the brokers and of partitions from the brokers."""
    admin = BrokerAdmin(sources.kafka, "source")
    brokers, moving = admin.brokers(), admin.reassignments()
    live = []
    for broker in sorted(brokers.addresses):
        version = admin.fetch_version(broker)
        fetch = version if isinstance(version, int) else NotRead(version.why, "is the broker reachable from here?")
        live.append(znodes.LiveBroker(broker, fetch, tried(partial(admin.configs, broker))))
    return znodes.BrokerFindings(
        brokers.cluster_id,
        tuple(live),
        brokers.assigned,
        brokers.offline,
        tuple(moving) if isinstance(moving, list) else NotRead(moving.why, _NO_ZOOKEEPER.hint),
    )


def _read_zookeeper(sources: Sources) -> znodes.ZooKeeperFindings | NotRead:
    if sources.zookeeper is None:
        return _NO_ZOOKEEPER
    with open_session(sources.zookeeper) as zookeeper:
        return znodes.read_findings(zookeeper)


def read_controller(file: Path) -> ControllerFile:
    """Return a controller's properties and, if its storage is on this machine, what it holds."""
    properties = read_properties(file)
    names = ("metadata.log.dir", "log.dirs", "log.dir")
    folders = [Path(folder) for name in names for folder in words_of(properties.get(name, ""))]
    version = tried(lambda: _metadata_version(folders) or _no_storage(file, folders, NAME))
    cluster_id: str | NotRead = _no_storage(file, folders, "meta.properties")
    for meta in (folder / "meta.properties" for folder in folders):
        with suppress(OSError):
            cluster_id = parse_properties(meta.read_bytes(), str(meta)).get("cluster.id", "")
            break
    return ControllerFile(str(file), properties, cluster_id, version)


def read_properties(file: Path) -> dict[str, str]:
    """Read a controller's properties file; `UsageError` if it can't be read."""
    try:
        return parse_properties(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(
            f"can't read {file}: {(error.strerror or '').lower()}", "name a controller's properties file"
        ) from None


def _metadata_version(folders: Sequence[Path]) -> int | None:
    """Return the level of metadata.version in a controller's log; before its first start, in the file that it starts
    from."""
    for folder in folders:
        log = read_image_of(Sources(kafka={}, metadata_log=str(folder)))
        image = MetadataImage() if isinstance(log, NotRead) else log
        if "metadata.version" not in image.features:
            with suppress(UnreachableError):
                for record in read_snapshot(folder / NAME):
                    image.replay(record.record)
        if level := image.features.get("metadata.version"):
            return level
    return None


def _no_storage(file: Path, folders: Sequence[Path], name: str) -> NotRead:
    listed = " or ".join(str(folder / name) for folder in folders) or "its storage"
    return NotRead(
        f"{file}: {listed} can't be read here", "run it where the controller's storage is formatted and readable"
    )


def read_archive(store: Store) -> znodes.ArchiveFindings | None:
    """Return the newest restore point's metadata; None if there is none."""
    try:
        archive = open_archive(store)
    except NoArchiveError:
        return None
    if (head := archive.head) is None:
        return None
    metadata = archive.metadata(head)
    captured_at = datetime.fromisoformat(metadata.captured_at).timestamp()
    return znodes.ArchiveFindings(head.number, captured_at, metadata.cluster_id, missing_metadata(metadata))


def missing_metadata(metadata: Metadata) -> tuple[str, ...]:
    """Return the kinds of ZooKeeper's metadata that a restore point lacks and the cluster may have."""
    missing = {entry.what for entry in metadata.not_carried if entry.reason in ("denied", "failed", "secret")}
    if any(user.stored_key is None for user in metadata.scram_users or ()):
        missing.add(SCRAM_SECRETS)
    absent = {entry.part for entry in metadata.not_carried if entry.reason == "not there"}
    missing |= {LABELS[part] for part in _ESSENTIAL if getattr(metadata, part) is None and part not in absent}
    return tuple(sorted(missing))
