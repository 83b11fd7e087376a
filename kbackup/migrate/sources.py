"""The sources of a cluster's metadata that a migration brings: ZooKeeper, and the metadata log of a controller."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kbackup.metadata.sources import Sources
from kbackup.migrate.metadata_log.image import read_metadata_log
from kbackup.migrate.zookeeper.read import read_zookeeper
from kbackup.systems import MetadataSource


def metadata_sources(sources: Sources) -> Iterator[MetadataSource]:
    """Yield the sources that `[source]` names."""
    zookeeper = sources.zookeeper
    if zookeeper is not None:
        yield MetadataSource("zookeeper", f"ZooKeeper at {zookeeper.connect}", partial(read_zookeeper, zookeeper))
    if sources.metadata_log:
        folder = Path(sources.metadata_log)
        yield MetadataSource("controller log", f"the metadata log in {folder}", partial(read_metadata_log, folder))
