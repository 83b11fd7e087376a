"""Read the situation of a rollback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbackup.archive.reader import open_archive
from kbackup.errors import KbackupError, UsageError
from kbackup.jobs.migrate.lag import is_written_by_kraft, read_lag
from kbackup.jobs.migrate.preflight.controllers import is_enabled
from kbackup.jobs.migrate.preflight.read import read_properties
from kbackup.jobs.migrate.rollback.addresses import logged_addresses, own_addresses, probe, quorum_addresses
from kbackup.jobs.migrate.rollback.situation import BrokerModes, Controllers, Situation
from kbackup.jobs.migrate.states.judge import judge
from kbackup.jobs.migrate.states.read import read_image_of, read_log, read_metrics_of
from kbackup.jobs.migrate.states.witnesses import KafkaState, Witnesses
from kbackup.jobs.migrate.unread import NotRead
from kbackup.jobs.migrate.znodes import ZnodeReader, read_witness
from kbackup.kafka.admin.brokers import BrokerAdmin
from kbackup.metadata.sources import Sources
from kbackup.store import Store

_NO_ARCHIVE = NotRead("no archive is named", "give --archive")
_NO_ZNODES = NotRead(
    "the newest restore point holds no znodes", "run 'kbackup migrate archive' with zookeeper.connect"
)
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
        lag=read_lag(zookeeper, _folders(sources, options), witness)
        if is_written_by_kraft(witness)
        else None,
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
    """The znodes of the newest restore point, by path."""
    try:
        archive = open_archive(store())
        metadata = archive.metadata(archive.head) if archive.head is not None else None
    except KbackupError as error:
        return NotRead(error.message, error.hint)
    if metadata is None or metadata.znodes is None:
        return _NO_ZNODES
    return {znode.path: znode.content for znode in metadata.znodes}
