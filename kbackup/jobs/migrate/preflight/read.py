"""Read the findings of the preflight. A source that can't be read becomes `NotRead`; checks of other sources still
run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.config.properties import parse_properties
from kbackup.errors import KbackupError, NoArchiveError, UnreachableError, UsageError
from kbackup.jobs.migrate.preflight.findings import (
    ArchiveFindings,
    Broker,
    BrokerFindings,
    Controller,
    Findings,
    ZooKeeperFindings,
)
from kbackup.jobs.migrate.rollback.addresses import probe, quorum_addresses
from kbackup.jobs.migrate.rollback.situation import Sign
from kbackup.jobs.migrate.states.read import read_image_of
from kbackup.jobs.migrate.unread import NotRead
from kbackup.jobs.migrate.znodes import read_findings
from kbackup.kafka.admin.brokers import BrokerAdmin
from kbackup.kafka.metadata_log.bootstrap import NAME
from kbackup.kafka.metadata_log.image import MetadataImage
from kbackup.kafka.metadata_log.log import read_snapshot
from kbackup.metadata.entities import MetadataPartName
from kbackup.metadata.parts import LABELS, SCRAM_SECRETS
from kbackup.metadata.sources import Sources
from kbackup.store import Store
from kbackup.zookeeper.connection import open_session

T = TypeVar("T")

_ADDRESS = re.compile(r".+:(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3})")
_NO_BROKERS = NotRead("no brokers are named", "set bootstrap.servers in [source], or give --bootstrap-server")
_NO_ZOOKEEPER = NotRead("no ZooKeeper is named", "set zookeeper.connect in [source]")
_NO_CONTROLLERS = NotRead("no controller is named", "give --controller-config FILE for each controller")
_NO_ARCHIVE = NotRead("no archive is named", "give --archive")
_ESSENTIAL: tuple[MetadataPartName, ...] = (
    "acls",
    "scram_users",
    "broker_configs",
    "client_quotas",
    "delegation_tokens",
)


def read_preflight(
    sources: Sources, controllers: Sequence[Path], store: Callable[[], Store] | None
) -> Findings:
    """`controllers` are properties files; `UsageError` where one can't be read. `store` opens the archive's store."""
    brokers = _tried(lambda: read_brokers(sources)) if sources.kafka.get("bootstrap.servers") else _NO_BROKERS
    files = tuple(map(read_controller, controllers))
    return Findings(
        brokers,
        _tried(lambda: _read_zookeeper(sources)),
        files or _NO_CONTROLLERS,
        _NO_ARCHIVE if store is None else _tried(lambda: read_archive(store())),
        time.time(),
        _read_quorum(files, brokers) if files else _NO_CONTROLLERS,
    )


def _read_quorum(controllers: Iterable[Controller], brokers: BrokerFindings | NotRead) -> Mapping[str, Sign]:
    """Try every address of the quorum that controllers or brokers name. Nobody can live at a malformed one."""
    named = [controller.properties for controller in controllers]
    if not isinstance(brokers, NotRead):
        named += [broker.configs for broker in brokers.brokers if not isinstance(broker.configs, NotRead)]
    addresses = sorted({address for properties in named for address in quorum_addresses(properties)})
    valid = [address for address in addresses if _ADDRESS.fullmatch(address)]
    return {**dict.fromkeys(addresses, "silent"), **probe(valid, ())}


def _tried(read: Callable[[], T | NotRead]) -> T | NotRead:
    try:
        return read()
    except KbackupError as error:
        return NotRead(error.message, error.hint)


def read_brokers(sources: Sources) -> BrokerFindings:
    """Read the state of the brokers and of partitions from the brokers."""
    admin = BrokerAdmin(sources.kafka, "source")
    brokers, moving = admin.brokers(), admin.reassignments()
    return BrokerFindings(
        brokers.cluster_id,
        tuple(_broker(admin, broker, address) for broker, address in sorted(brokers.addresses.items())),
        brokers.assigned,
        brokers.offline,
        tuple(moving) if isinstance(moving, list) else NotRead(moving.why, _NO_ZOOKEEPER.hint),
    )


def _broker(admin: BrokerAdmin, broker: int, address: str) -> Broker:
    version = admin.fetch_version(address)
    return Broker(
        broker,
        version if isinstance(version, int) else NotRead(version.why, "is the broker reachable from here?"),
        _tried(lambda: admin.configs(broker)),
    )


def _read_zookeeper(sources: Sources) -> ZooKeeperFindings | NotRead:
    if sources.zookeeper is None:
        return _NO_ZOOKEEPER
    with open_session(sources.zookeeper) as zookeeper:
        return read_findings(zookeeper)


def read_controller(file: Path) -> Controller:
    """A controller's properties, and what its storage tells where that is on this machine."""
    properties = read_properties(file)
    names = (properties.get(name, "") for name in ("metadata.log.dir", "log.dirs", "log.dir"))
    folders = [Path(folder.strip()) for text in names for folder in text.split(",") if folder.strip()]
    version = _tried(lambda: _metadata_version(file, folders))
    return Controller(str(file), properties, _storage_id(file, folders), version)


def read_properties(file: Path) -> dict[str, str]:
    """Read a controller's properties file; `UsageError` where it can't be read."""
    try:
        return parse_properties(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(
            f"can't read {file}: {(error.strerror or '').lower()}", "name a controller's properties file"
        ) from None


def _storage_id(file: Path, folders: Sequence[Path]) -> str | NotRead:
    """`cluster.id` of meta.properties, in the first log directory that has it."""
    for folder in folders:
        meta = folder / "meta.properties"
        try:
            return parse_properties(meta.read_bytes(), str(meta)).get("cluster.id", "")
        except OSError:
            continue
    return _no_storage(file, folders, "meta.properties")


def _metadata_version(file: Path, folders: Sequence[Path]) -> int | NotRead:
    """The level of metadata.version in a controller's log; before its first start, in the file that it starts from."""
    for folder in folders:
        log = read_image_of(Sources(kafka={}, metadata_log=str(folder)))
        image = MetadataImage() if isinstance(log, NotRead) else log
        if "metadata.version" not in image.features:
            with suppress(UnreachableError):
                for record in read_snapshot(folder / NAME):
                    image.replay(record.record)
        if level := image.features.get("metadata.version"):
            return level
    return _no_storage(file, folders, NAME)


def _no_storage(file: Path, folders: Sequence[Path], name: str) -> NotRead:
    listed = " or ".join(str(folder / name) for folder in folders) or "its storage"
    return NotRead(
        f"{file}: {listed} can't be read here",
        "run it where the controller's storage is formatted and readable",
    )


def read_archive(store: Store) -> ArchiveFindings | None:
    """The newest restore point's metadata; None where there is none."""
    try:
        archive = open_archive(store)
    except NoArchiveError:
        return None
    head = archive.head
    if head is None:
        return None
    metadata = archive.metadata(head)
    return ArchiveFindings(
        head.number,
        datetime.fromisoformat(metadata.captured_at).timestamp(),
        metadata.cluster_id,
        missing_metadata(metadata),
    )


def missing_metadata(metadata: Metadata) -> tuple[str, ...]:
    """Return the kinds of ZooKeeper's metadata that a restore point lacks and the cluster may have."""
    missing = {entry.what for entry in metadata.not_carried if entry.reason in ("denied", "failed", "secret")}
    if any(user.stored_key is None for user in metadata.scram_users or ()):
        missing.add(SCRAM_SECRETS)
    absent = {entry.part for entry in metadata.not_carried if entry.reason == "not there"}
    missing |= {LABELS[part] for part in _ESSENTIAL if getattr(metadata, part) is None and part not in absent}
    return tuple(sorted(missing))
