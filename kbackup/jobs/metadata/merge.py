"""Merge the metadata of several sources into one document. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from msgspec.structs import replace

from kbackup.archive.models import Metadata
from kbackup.errors import MismatchError
from kbackup.jobs.metadata.compare import Side, compare, in_words
from kbackup.metadata.entities import MetadataPartName, NotCarried, source_name
from kbackup.metadata.parts import BROKER_SECRETS, PARTS, TOKEN_SECRETS, MetadataPart
from kbackup.metadata.reading import Reading
from kbackup.util.text import shorten
from kbackup.zookeeper.decode import document

_NAMED = 5


@dataclass(frozen=True)
class Merged:
    """`warnings` name what the sources disagree about, and the sources that don't speak for the cluster; `damage` names
    the damaged ones, whose metadata is missing."""

    metadata: Metadata
    warnings: tuple[str, ...]
    damage: tuple[str, ...] = ()


def mark_outdated(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings. Where the metadata log says that the migration has ended, ZooKeeper's is marked as
    outdated; else the log's, where ZooKeeper says that a broker is the controller, as after a rollback."""
    if any(reading.migration == "POST_MIGRATION" for reading in readings):
        source, why = "zookeeper", "the migration has ended, and no controller writes to it"
    elif any(_has_broker_as_controller(reading) for reading in readings):
        source, why = "controller log", "a broker is the controller, and no KRaft controller writes to it"
    else:
        return list(readings)
    return [
        dataclasses.replace(each, outdated=each.outdated or why) if each.source == source else each
        for each in readings
    ]


def _has_broker_as_controller(reading: Reading) -> bool:
    contents = (znode.content for znode in reading.znodes or () if znode.path == "/controller")
    return any(int(document("/controller", each).get("kraftControllerEpoch", -1)) < 0 for each in contents)


def merge(readings: Sequence[Reading], captured_at: str, brokers: int) -> Merged:
    """Take each part from the first source in the part's order that tells the part completely, else from the first that
    tells it at all. A null field of an entity is filled from another source. The topics are those that brokers told,
    where brokers told any. `MismatchError` for sources of several clusters."""
    check_one_cluster(readings)
    readings = mark_outdated(readings)
    current = [reading for reading in readings if not reading.outdated] or list(readings)
    chosen = {part.name: reading for part in PARTS if (reading := _choose(part, current)) is not None}
    values = {part.name: _filled(part, chosen[part.name], current) for part in PARTS if part.name in chosen}
    metadata = Metadata(
        captured_at=captured_at,
        cluster_id=next((r.cluster_id for r in readings if r.cluster_id), ""),
        brokers=brokers or _brokers(values),
        sources={name: reading.source for name, reading in chosen.items()},
        not_carried=_not_carried(chosen, current, values),
        **{"topics": (), **values},
    )
    outdated = [f"{source_name(r.source)} is not read: {r.outdated}" for r in readings if r not in current]
    return Merged(metadata, (*outdated, *_disagreements(current, chosen.get("topics"))))


def check_one_cluster(readings: Sequence[Reading]) -> None:
    """Raise `MismatchError` where the sources tell several cluster ids."""
    known = {reading.cluster_id: reading.source for reading in readings if reading.cluster_id}
    if len(known) > 1:
        ids = ", ".join(f"{source_name(source)} {cluster_id}" for cluster_id, source in known.items())
        raise MismatchError(
            f"the sources of [source] are of several clusters: {ids}",
            "check bootstrap.servers, the chroot of zookeeper.connect, and metadata.log.dir",
        )


def _choose(part: MetadataPart, readings: Sequence[Reading]) -> Reading | None:
    having = [
        r
        for source in part.order
        for r in readings
        if r.source == source and getattr(r, part.name) is not None
    ]
    complete = [r for r in having if not any(entry.part == part.name for entry in r.not_carried)]
    return next(iter(having if part.is_partial else [*complete, *having]), None)


def _filled(part: MetadataPart, chosen: Reading, readings: Sequence[Reading]) -> Any:
    value = getattr(chosen, part.name)
    if not isinstance(value, tuple) or not value or isinstance(value[0], str):
        return value
    others = [
        {part.identity(entity): entity for entity in getattr(r, part.name) or ()}
        for r in readings
        if r is not chosen
    ]
    return tuple(
        _fill(entity, [o[name] for o in others if (name := part.identity(entity)) in o]) for entity in value
    )


def _fill(entity: Any, others: Sequence[Any]) -> Any:
    known = {
        field: next((v for o in others if (v := getattr(o, field)) is not None), None)
        for field in entity.__struct_fields__
        if getattr(entity, field) is None
    }
    return replace(entity, **known) if any(v is not None for v in known.values()) else entity


def _brokers(values: dict[MetadataPartName, Any]) -> int:
    return sum(r.role == "broker" for r in values.get("registrations", ()))


def _not_carried(
    chosen: dict[MetadataPartName, Reading], readings: Sequence[Reading], values: dict[MetadataPartName, Any]
) -> tuple[NotCarried, ...]:
    """Return the entries of metadata that is not carried. One of secrets stays where no source has filled them all; the
    reason of a source that should have them counts before one of a source that never has them."""
    kept: dict[tuple[MetadataPartName | None, str], NotCarried] = {}
    missing = {
        TOKEN_SECRETS: any(token.hmac is None for token in values.get("delegation_tokens", ())),
        BROKER_SECRETS: any(config.value is None for config in values.get("broker_configs", ())),
    }
    for reading in readings:
        for entry in reading.not_carried:
            key = entry.part, entry.what
            if entry.what in missing:
                is_missing = missing[entry.what]
            else:
                is_missing = entry.part is None or chosen.get(entry.part) in (None, reading)
            if is_missing and (key not in kept or entry.reason == "failed"):
                kept[key] = entry
    return tuple(kept.values())


def _disagreements(readings: Sequence[Reading], topics_of: Reading | None) -> list[str]:
    """A line for each two sources that say different things."""
    topics = {t.name for t in topics_of.topics or ()} if topics_of is not None else None
    warnings = []
    for first, second in combinations(readings, 2):
        one, other = Side(source_name(first.source), first), Side(source_name(second.source), second)
        words = [in_words(difference, one.name, other.name) for difference in compare(one, other, topics)]
        if words:
            warnings.append(
                f"{one.name} and {other.name} disagree ({shorten(words, _NAMED, '; ')}): "
                "run 'kbackup migrate verify'"
            )
    return warnings
