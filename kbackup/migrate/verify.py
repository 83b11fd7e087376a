"""The job of `kbackup migrate verify`: compare ZooKeeper, KRaft and the archive, entity by entity."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from kbackup.archive.models import Metadata
from kbackup.archive.query.selection import is_internal
from kbackup.archive.reader import Archive
from kbackup.errors import UsageError
from kbackup.jobs.metadata import (
    COMPARED,
    MetadataDifference,
    MetadataSide,
    check_one_cluster,
    compare,
    in_words,
    mark_outdated,
    merge,
    not_compared,
    read_brokers,
)
from kbackup.metadata.entities import BROKER_SECRETS, Reading, source_name
from kbackup.metadata.sources import Sources
from kbackup.systems import metadata_sources

_LEADERS = "leaders and in-sync replicas"
_PAUSE = 1.0  # s between two looks


@dataclass(frozen=True)
class SideReport:
    """`entities` counts them by part. `outdated`: why the side is not compared, or ""."""

    name: str
    entities: dict[str, int]
    outdated: str


@dataclass(frozen=True, order=True)
class SidesDifference:
    """A difference of an entity between two sides; `text` describes it in words."""

    sides: tuple[str, str]
    difference: MetadataDifference
    text: str


@dataclass(frozen=True)
class MigrationVerifyReport:
    """`restore_point` is None if no archive was compared. `not_compared` maps two sides to what was not compared
    between them. `looks` counts how often the sides were read."""

    restore_point: int | None
    sides: tuple[SideReport, ...]
    differences: tuple[SidesDifference, ...]
    not_compared: dict[str, list[str]] = field(default_factory=dict)
    looks: int = 1


def verify_migration(sources: Sources, archive: Archive | None, backup: str, lag: float) -> MigrationVerifyReport:
    """Compare the sources with each other, and restore point `backup` with them.

    While the controllers write to ZooKeeper, ZooKeeper may be some seconds behind: a difference between sources is
    reported only if every reading within `lag` seconds has it. `UsageError` if there is nothing to compare.
    """
    point = archive.find_point(backup) if archive is not None else None
    began, looks = time.monotonic(), 1
    readings = _read_sides(sources)
    if len(readings) + (point is not None) < 2:
        raise UsageError(
            "there is one side alone, and nothing to compare it with",
            "set zookeeper.connect or metadata.log.dir in [source], or name an archive",
        )
    differing = _differences(readings)
    while differing and time.monotonic() - began < lag:
        time.sleep(_PAUSE)
        readings, looks = _read_sides(sources), looks + 1
        differing &= _differences(readings)
    differences = sorted(differing)
    pairs = list(combinations(_current(readings), 2))
    sides = [_report(source_name(reading.source), reading, reading.outdated) for reading in readings]
    if archive is not None and point is not None:
        cluster = MetadataSide("the cluster", merge(readings, "", 0).metadata)
        archived = MetadataSide(f"restore point {point.number}", archive.metadata(point.number))
        pairs.append((cluster, archived))
        # a backup takes internal topics only where it is configured to
        topics = {t.name for t in cluster.metadata.topics or () if not is_internal(t.name)}
        topics |= {t.name for t in archived.metadata.topics or ()}
        differences += _between(cluster, archived, topics)
        sides.append(_report(archived.name, archived.metadata))
    return MigrationVerifyReport(
        restore_point=point.number if point is not None else None,
        sides=tuple(sides),
        differences=tuple(differences),
        not_compared={f"{a.name} and {b.name}": parts for a, b in pairs if (parts := _not_compared(a, b))},
        looks=looks,
    )


def _not_compared(one: MetadataSide, other: MetadataSide) -> list[str]:
    """Return what is not compared: parts that one of the sides lacks, values that it has encrypted, and leaders, which
    no side keeps for long."""
    parts = not_compared(one, other)
    configs = (config for side in (one, other) for config in side.metadata.broker_configs or ())
    if any(config.value is None for config in configs):
        parts.append(BROKER_SECRETS)
    return [*parts, _LEADERS]


def _read_sides(sources: Sources) -> list[Reading]:
    """Read every source that is set."""
    readings: list[Reading] = []
    if sources.kafka.get("bootstrap.servers"):
        readings.append(read_brokers(sources)[0])
    readings += [asked.read() for asked in metadata_sources(sources)]
    check_one_cluster(readings)
    return mark_outdated(readings)


def _current(readings: Iterable[Reading]) -> list[MetadataSide]:
    return [MetadataSide(source_name(reading.source), reading) for reading in readings if not reading.outdated]


def _differences(readings: Iterable[Reading]) -> set[SidesDifference]:
    return {each for one, other in combinations(_current(readings), 2) for each in _between(one, other)}


def _between(
    one: MetadataSide, other: MetadataSide, topics: Collection[str] | None = None
) -> Iterator[SidesDifference]:
    for each in compare(one, other, topics):
        yield SidesDifference((one.name, other.name), each, in_words(each, one.name, other.name))


def _report(name: str, metadata: Reading | Metadata, outdated: str = "") -> SideReport:
    entities = {part.label: len(value) for part in COMPARED if isinstance(value := getattr(metadata, part.name), tuple)}
    return SideReport(name, entities, outdated)
