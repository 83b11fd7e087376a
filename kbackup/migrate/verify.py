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
    point = None if archive is None else archive.find_point(backup)
    restore_point = None if point is None else point.number
    began = time.monotonic()
    looks = 1
    readings = _read_sides(sources)
    number_of_sides = len(readings)
    if point is not None:
        number_of_sides += 1
    if number_of_sides < 2:
        raise UsageError(
            "there is one side alone, and nothing to compare it with",
            "set zookeeper.connect or metadata.log.dir in [source], or name an archive",
        )
    # A difference has to be there at every look: one that comes and goes is ZooKeeper catching up.
    differing = _differences(readings)
    while differing and time.monotonic() - began < lag:
        time.sleep(_PAUSE)
        readings = _read_sides(sources)
        looks += 1
        differing &= _differences(readings)
    differences = sorted(differing)
    current = _current(readings)
    pairs = list(combinations(current, 2))
    sides = [_report(source_name(reading.source), reading, reading.outdated) for reading in readings]
    if archive is not None and point is not None:
        # Once, after the looks: a restore point does not move, so a difference from it does not go away by waiting.
        cluster = MetadataSide("the cluster", merge(readings, "", 0).metadata)
        archived = MetadataSide(f"restore point {point.number}", archive.metadata(point.number))
        pairs.append((cluster, archived))
        differences += _between(cluster, archived, _topics_to_compare(cluster, archived))
        sides.append(_report(archived.name, archived.metadata))
    not_compared_parts: dict[str, list[str]] = {}
    for one, other in pairs:
        not_compared_parts[f"{one.name} and {other.name}"] = _not_compared(one, other)
    return MigrationVerifyReport(
        restore_point=restore_point,
        sides=tuple(sides),
        differences=tuple(differences),
        not_compared=not_compared_parts,
        looks=looks,
    )


def _topics_to_compare(cluster: MetadataSide, archived: MetadataSide) -> set[str]:
    """Return the topics to compare between a cluster and a restore point. Internal topics of the cluster are left out,
    unless the restore point has them: a backup takes them only where it is configured to."""
    names = {topic.name for topic in archived.metadata.topics or ()}
    for topic in cluster.metadata.topics or ():
        if not is_internal(topic.name):
            names.add(topic.name)
    return names


def _not_compared(one: MetadataSide, other: MetadataSide) -> list[str]:
    """Return what is not compared: parts that one of the sides lacks, values that it has encrypted, and leaders, which
    no side keeps for long."""
    parts = not_compared(one, other)
    if _has_encrypted_configs(one) or _has_encrypted_configs(other):
        parts.append(BROKER_SECRETS)
    parts.append(_LEADERS)
    return parts


def _has_encrypted_configs(side: MetadataSide) -> bool:
    return any(config.value is None for config in side.metadata.broker_configs or ())


def _read_sides(sources: Sources) -> list[Reading]:
    """Read every source that is set."""
    readings: list[Reading] = []
    if sources.kafka.get("bootstrap.servers"):
        of_brokers, _ = read_brokers(sources)
        readings.append(of_brokers)
    for source in metadata_sources(sources):
        readings.append(source.read())
    check_one_cluster(readings)
    return mark_outdated(readings)


def _current(readings: Iterable[Reading]) -> list[MetadataSide]:
    current = [reading for reading in readings if not reading.outdated]
    return [MetadataSide(source_name(reading.source), reading) for reading in current]


def _differences(readings: Iterable[Reading]) -> set[SidesDifference]:
    found = set[SidesDifference]()
    for one, other in combinations(_current(readings), 2):
        found.update(_between(one, other))
    return found


def _between(
    one: MetadataSide, other: MetadataSide, topics: Collection[str] | None = None
) -> Iterator[SidesDifference]:
    for each in compare(one, other, topics):
        yield SidesDifference((one.name, other.name), each, in_words(each, one.name, other.name))


def _report(name: str, metadata: Reading | Metadata, outdated: str = "") -> SideReport:
    entities: dict[str, int] = {}
    for part in COMPARED:
        value = getattr(metadata, part.name)
        if isinstance(value, tuple):
            entities[part.label] = len(value)
    return SideReport(name, entities, outdated)
