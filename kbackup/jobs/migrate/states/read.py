"""Read the three witnesses of a migration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.errors import CorruptError, KbackupError
from kbackup.jobs.migrate.states.metrics import read_metrics
from kbackup.jobs.migrate.states.witnesses import (
    KafkaState,
    LogWitness,
    MetricsWitness,
    Witnesses,
    ZnodesWitness,
)
from kbackup.jobs.migrate.unread import NotRead
from kbackup.jobs.migrate.znodes import read_assigned, read_witness
from kbackup.metadata.sources import Sources
from kbackup.zookeeper.connection import open_session

if TYPE_CHECKING:
    from kbackup.kafka.metadata_log.image import MetadataImage

_NO_METRICS = NotRead("metrics: no exporter is named", "give --metrics-url URL for each controller")
_NO_ZOOKEEPER = NotRead("znodes: no ZooKeeper is named", "set zookeeper.connect in [source]")
_NO_LOG = NotRead("metadata log: none is named", "set metadata.log.dir in [source]")


def read_witnesses(sources: Sources, metrics_urls: Iterable[str]) -> Witnesses:
    """Read every witness; one that can't be read is `NotRead`, with the reason."""
    return Witnesses(read_metrics_of(metrics_urls, sources), read_znodes(sources), read_log(sources))


def read_metrics_of(urls: Iterable[str], sources: Sources) -> tuple[MetricsWitness | NotRead, ...]:
    """Read the metrics at each URL."""
    return tuple(read_metrics(url, sources.metrics) for url in urls) or (_NO_METRICS,)


def read_znodes(sources: Sources) -> ZnodesWitness | NotRead:
    """Read from ZooKeeper which controller controls the cluster; before the copy, also the brokers it waits for."""
    if sources.zookeeper is None:
        return _NO_ZOOKEEPER
    try:
        with open_session(sources.zookeeper) as zookeeper:
            witness = read_witness(zookeeper)[0]
            if witness.migration is None or witness.migration.offset >= 0:
                return witness
            return replace(witness, assigned=read_assigned(zookeeper))
    except KbackupError as error:
        return NotRead(f"znodes: {error.message}", error.hint)


def read_log(sources: Sources) -> LogWitness | NotRead:
    """Read the state of the migration and the brokers from the metadata log."""
    image = read_image_of(sources)
    if isinstance(image, NotRead):
        return image
    zk_brokers = frozenset(b for b, data in image.brokers.items() if data.get("isMigratingZkBroker"))
    kraft_brokers = frozenset(image.brokers) - zk_brokers
    return LogWitness(KafkaState(image.migration_state or 0), zk_brokers, kraft_brokers, image.offset)


def read_image_of(sources: Sources) -> MetadataImage | NotRead:
    """Read the metadata that the log in metadata.log.dir adds up to. The folder is a controller's, or a copy of
    `__cluster_metadata-0`. `CorruptError` where the log is damaged: its end may be missing, and say otherwise."""
    from kbackup.kafka.metadata_log.image import read_image
    from kbackup.kafka.metadata_log.log import find_log

    if not sources.metadata_log:
        return _NO_LOG
    try:
        return read_image(find_log(Path(sources.metadata_log)))
    except CorruptError:
        raise
    except KbackupError as error:
        return NotRead(f"metadata log: {error.message}", error.hint)
