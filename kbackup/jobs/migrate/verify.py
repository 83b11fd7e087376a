"""The job of `kbackup migrate verify`: compare ZooKeeper, KRaft and the archive, entity by entity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

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
    sources_beside,
)
from kbackup.metadata.entities import BROKER_SECRETS, Reading, source_name
from kbackup.metadata.sources import Sources

_LEADERS = "leaders and in-sync replicas"
_PAUSE = 1.0  # s between two looks


class WaitClock(NamedTuple):
    """Both in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class SideReport:
    """`entities` counts them by part. `outdated`: why the side is not compared, or ""."""

    name: str
    entities: dict[str, int]
    outdated: str


@dataclass(frozen=True)
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


def verify_migration(
    sources: Sources, archive: Archive | None, backup: str, lag: float, clock: WaitClock | None = None
) -> MigrationVerifyReport:
    """Compare the sources with each other, and restore point `backup` with them.

    While the controllers write to ZooKeeper, ZooKeeper may be some seconds behind: a difference between sources is
    reported only if every reading within `lag` seconds has it. `UsageError` if there is nothing to compare.
    """
    clock = clock or WaitClock()
    point = archive.find_point(backup) if archive is not None else None
    began, looks = clock.now(), 1
    readings = _read_sides(sources)
    if len(readings) + (point is not None) < 2:
        raise UsageError(
            "there is one side alone, and nothing to compare it with",
            "set zookeeper.connect or metadata.log.dir in [source], or name an archive",
        )
    differing = _differences(readings)
    while differing and clock.now() - began < lag:
        clock.sleep(_PAUSE)
        readings, looks = _read_sides(sources), looks + 1
        differing &= _differences(readings)
    every = sorted(differing)
    pairs = list(combinations(_current(readings), 2))
    sides = [_report(source_name(reading.source), reading, reading.outdated) for reading in readings]
    if archive is not None and point is not None:
        archived = MetadataSide(f"restore point {point.number}", archive.metadata(point.number))
        pair = (MetadataSide("the cluster", merge(readings, "", 0).metadata), archived)
        pairs.append(pair)
        topics = _archivable(*pair)
        every += [_Difference(pair[0].name, pair[1].name, difference) for difference in compare(*pair, topics)]
        sides.append(_report(archived.name, archived.metadata))
    return MigrationVerifyReport(
        restore_point=point.number if point is not None else None,
        sides=tuple(sides),
        differences=tuple(map(_in_full, every)),
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


class _Difference(NamedTuple):
    one: str
    other: str
    difference: MetadataDifference


def _in_full(between: _Difference) -> SidesDifference:
    return SidesDifference(
        (between.one, between.other), between.difference, in_words(between.difference, between.one, between.other)
    )


def _read_sides(sources: Sources) -> list[Reading]:
    """Read every source that is set."""
    readings: list[Reading] = []
    if sources.kafka.get("bootstrap.servers"):
        readings.append(read_brokers(sources)[0])
    readings += [asked.read() for asked in sources_beside(sources)]
    check_one_cluster(readings)
    return mark_outdated(readings)


def _current(readings: Iterable[Reading]) -> list[MetadataSide]:
    return [MetadataSide(source_name(reading.source), reading) for reading in readings if not reading.outdated]


def _differences(readings: Iterable[Reading]) -> set[_Difference]:
    return {
        _Difference(one.name, other.name, difference)
        for one, other in combinations(_current(readings), 2)
        for difference in compare(one, other)
    }


def _archivable(cluster: MetadataSide, archived: MetadataSide) -> set[str]:
    """Return the topics to compare: a backup takes internal topics only where it is configured to."""
    there = {t.name for t in cluster.metadata.topics or () if not is_internal(t.name)}
    return there | {t.name for t in archived.metadata.topics or ()}


def _report(name: str, metadata: Reading | Metadata, outdated: str = "") -> SideReport:
    entities = {part.label: len(value) for part in COMPARED if isinstance(value := getattr(metadata, part.name), tuple)}
    return SideReport(name, entities, outdated)
