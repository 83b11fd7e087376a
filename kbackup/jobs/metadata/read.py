"""Read a cluster's metadata from every source that [source] names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kbackup.errors import CorruptError, KbackupError, MismatchError
from kbackup.jobs.capture import cluster as capture
from kbackup.jobs.metadata.merge import Merged, merge
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.metadata_log.entities import read_metadata_log
from kbackup.metadata.entities import Source
from kbackup.metadata.reading import Reading
from kbackup.metadata.sources import Sources
from kbackup.util.times import now
from kbackup.zookeeper.read import read_zookeeper


class Asked(NamedTuple):
    """A source beside the brokers: `name` for messages, and the function that reads it."""

    source: Source
    name: str
    read: Callable[[], Reading]


def sources_beside(sources: Sources) -> Iterator[Asked]:
    """The sources that are set, beside the brokers."""
    if zookeeper := sources.zookeeper:
        yield Asked("zookeeper", f"ZooKeeper at {zookeeper.connect}", lambda: read_zookeeper(zookeeper))
    if folder := sources.metadata_log:
        yield Asked(
            "controller log", f"the metadata log in {folder}", lambda: read_metadata_log(Path(folder))
        )


def read_brokers(sources: Sources) -> tuple[Reading, int]:
    """Read every topic and the cluster from the brokers; also return the number of brokers."""
    cluster = Cluster(sources.kafka, "source")
    cluster_id, brokers = cluster.connect()
    topics = cluster.topics(cluster.topic_names())
    groups = sorted(group.group for group in cluster.groups.listed()[0])
    return capture.read_brokers(cluster, topics, cluster_id, groups), brokers


def read_all(sources: Sources) -> Merged:
    """Read the whole metadata of a cluster. A source that can't be read is an error."""
    brokers = read_brokers(sources) if sources.kafka.get("bootstrap.servers") else None
    readings = [brokers[0]] if brokers is not None else []
    readings += [asked.read() for asked in sources_beside(sources)]
    return merge(readings, now(), brokers[1] if brokers is not None else 0)


def with_sources(of_brokers: Reading, brokers: int, sources: Sources) -> Merged:
    """Complete the brokers' metadata by the other sources. A source that can't be read is a warning, and damage where
    it is corrupt: the records of a backup are worth more."""
    captured_at, readings, warnings, damage = now(), [of_brokers], [], []
    for asked in sources_beside(sources):
        try:
            readings.append(asked.read())
        except MismatchError:
            raise
        except KbackupError as error:
            warnings.append(
                f"{asked.name} is not read: {error.message}; {error.hint or 'try it: kbackup check'}"
            )
            if isinstance(error, CorruptError):
                damage.append(asked.name)
    merged = merge(readings, captured_at, brokers)
    return Merged(merged.metadata, (*warnings, *merged.warnings), tuple(damage))
