"""The metadata of a cluster from several sources: read, compared, and merged into one document."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec
from msgspec.structs import replace

from kbackup.archive.models import Metadata
from kbackup.archive.secrets import is_sensitive
from kbackup.config import HIDDEN
from kbackup.errors import CorruptError, KbackupError, MismatchError
from kbackup.jobs import capture
from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata import entities
from kbackup.metadata.differences import changed_values
from kbackup.metadata.entities import PARTS, MetadataPart, MetadataPartName, NotCarried, Reading
from kbackup.metadata.sources import Sources
from kbackup.systems import metadata_sources
from kbackup.util.text import join_names
from kbackup.util.times import now

# Compare two sources of a cluster's metadata, entity by entity. Pure.


COMPARED = tuple(p for p in PARTS if p.name not in ("registrations", "features", "deletions", "znodes"))
"""Parts of the metadata that both sides of a migration must agree on. Other parts describe one side alone."""

_SECRETS = {"salt", "stored_key", "server_key", "hmac"}
_LOOSE = {"internal"}
"""Brokers and kbackup itself decide it by the name of a topic."""


@dataclass(frozen=True, slots=True, order=True)
class MetadataDifference:
    """`field` "": one of the sides has no such entity. `one` and `other` are the values there; None: nothing. A secret
    is hidden."""

    part: str
    entity: str
    field: str
    one: str | None
    other: str | None


@dataclass(frozen=True, slots=True)
class MetadataSide:
    """One side of a comparison, a source or a restore point, and its name in messages."""

    name: str
    metadata: Reading | Metadata


def compare(one: MetadataSide, other: MetadataSide, topics: Collection[str] | None = None) -> list[MetadataDifference]:
    """Return the differences in all parts that both sides have. `topics`: no other topics are compared."""
    differences: list[MetadataDifference] = []
    running = _running(one.metadata, other.metadata)
    for part in COMPARED:
        values = _comparable(one.metadata, part), _comparable(other.metadata, part)
        if values[0] is None or values[1] is None:
            continue
        if part.name == "next_producer_id":
            differences += _producer_ids(one, other)
        else:
            differences += _entities(part, *(_chosen(part, found, topics, running) for found in values))
    return differences


def not_compared(one: MetadataSide, other: MetadataSide) -> list[str]:
    """Return the labels of the parts that one of the sides lacks."""
    return [p.label for p in COMPARED if None in (_comparable(one.metadata, p), _comparable(other.metadata, p))]


def in_words(difference: MetadataDifference, one: str, other: str) -> str:
    """Return one line: the entity, and the value of each side. `one` and `other` are the names of the sides."""
    entity = f"{difference.part}: {difference.entity}"
    if not difference.field:
        has, lacks = (one, other) if difference.other is None else (other, one)
        return f"{entity}: in {has}, not in {lacks}"
    values = (
        f"{'not set' if value is None else value} in {side}"
        for value, side in ((difference.one, one), (difference.other, other))
    )
    return f"{entity}: {difference.field} is {', '.join(values)}"


def _comparable(metadata: Reading | Metadata, part: MetadataPart) -> Any:
    """Return the value of a part; None also if brokers don't use the part (other sources may still hold it), and for
    tokens: brokers list only tokens that our user may describe."""
    unused = any(entry.reason == "not there" and entry.part == part.name for entry in metadata.not_carried)
    incomplete = part.name == "delegation_tokens" and metadata.source_of(part.name) == "brokers"
    return None if unused or incomplete else getattr(metadata, part.name)


def _running(*sides: Reading | Metadata) -> set[int] | None:
    """Return the running brokers, where one side has its configs from brokers, which report no configs of others."""
    ids = [
        {each.id for each in side.registrations if each.role == "broker" and each.alive is not False}
        for side in sides
        if side.source_of("broker_configs") == "brokers" and side.registrations is not None
    ]
    return set.intersection(*ids) if ids else None


def _chosen(
    part: MetadataPart, found: Iterable[Any], topics: Collection[str] | None, running: Collection[int] | None
) -> dict[str, Any]:
    """Return the entities to compare, by identity."""
    if part.name == "topics" and topics is not None:
        found = [each for each in found if each.name in topics]
    if part.name == "broker_configs" and running is not None:
        found = [each for each in found if each.broker is None or each.broker in running]
    return {part.identity(each): each for each in found}


def _entities(part: MetadataPart, one: dict[str, Any], other: dict[str, Any]) -> Iterator[MetadataDifference]:
    for entity in changed_values(one, other):
        if entity.kind == "changed":
            yield from _fields(part, entity.key, entity.before, entity.after)
        else:
            ours = "there" if entity.kind == "gone" else None
            theirs = "there" if entity.kind == "appeared" else None
            yield MetadataDifference(part.label, entity.key, "", ours, theirs)


def _fields(part: MetadataPart, name: str, one: Any, other: Any) -> Iterator[MetadataDifference]:
    """Yield the differences of an entity that both sides have. A field that is null on a side is unknown there."""
    for field in one.__struct_fields__:
        ours, theirs = _value(one, field), _value(other, field)
        if field in _LOOSE or ours is None or theirs is None or ours == theirs:
            continue
        if isinstance(ours, dict):
            for each in changed_values(ours, theirs):
                yield _difference(part, name, each.key, each.before, each.after)
        else:
            shown = getattr(one, "name", field) if field == "value" else field
            yield _difference(part, name, shown, ours, theirs)


_URL_SAFE = str.maketrans("+/", "-_")


def _value(entity: Any, field: str) -> Any:
    """The client library writes ids of topics in another base64 than Kafka itself."""
    value = getattr(entity, field)
    return value.translate(_URL_SAFE) if field == "id" and isinstance(value, str) else value


def _difference(part: MetadataPart, entity: str, field: str, one: Any, other: Any) -> MetadataDifference:
    hidden = field in _SECRETS or is_sensitive(field)
    return MetadataDifference(part.label, entity, field, _shown(one, hidden), _shown(other, hidden))


def _shown(value: Any, hidden: bool) -> str | None:
    if value is None:
        return None
    if hidden:
        return HIDDEN
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _producer_ids(one: MetadataSide, other: MetadataSide) -> Iterator[MetadataDifference]:
    """Return ZooKeeper's block if it is later than the log's: the migration moves it ahead. An earlier block would be
    handed out twice after a rollback."""
    ids = [(side.metadata.source_of("next_producer_id"), side.metadata.next_producer_id) for side in (one, other)]
    by_source = dict(ids)
    zookeeper, log = by_source.get("zookeeper"), by_source.get("controller log")
    if zookeeper is not None and log is not None and zookeeper < log:
        yield MetadataDifference("producer ids", "next block", "first id", *(str(first) for _, first in ids))


# Merge the metadata of several sources into one document. Pure.


_NAMED = 5


@dataclass(frozen=True)
class Merged:
    """`warnings` name what the sources disagree about, and the sources that don't speak for the cluster; `damage` names
    the damaged ones, whose metadata is missing."""

    metadata: Metadata
    warnings: tuple[str, ...]
    damage: tuple[str, ...] = ()


def mark_outdated(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings. ZooKeeper's is marked as outdated if the migration has ended in the metadata log; the log's
    is, if a broker is the controller in ZooKeeper, as after a rollback."""
    if any(reading.migration == "POST_MIGRATION" for reading in readings):
        source, why = "zookeeper", "the migration has ended, and no controller writes to it"
    elif any(reading.is_led_by_broker for reading in readings):
        source, why = "controller log", "a broker is the controller, and no KRaft controller writes to it"
    else:
        return list(readings)
    return [
        dataclasses.replace(each, outdated=each.outdated or why) if each.source == source else each for each in readings
    ]


def merge(readings: Sequence[Reading], captured_at: str, brokers: int) -> Merged:
    """Take each part from the first source in the part's order that has it completely, else from the first that has any
    of it. A null field of an entity is filled from another source. The topics are the brokers', if brokers listed any.
    `MismatchError` for sources of several clusters."""
    check_one_cluster(readings)
    readings = mark_outdated(readings)
    current = [reading for reading in readings if not reading.outdated] or list(readings)
    chosen = {part.name: reading for part in PARTS if (reading := _choose(part, current)) is not None}
    values = {part.name: _filled(part, chosen[part.name], current) for part in PARTS if part.name in chosen}
    metadata = Metadata(
        captured_at=captured_at,
        cluster_id=next((r.cluster_id for r in readings if r.cluster_id), ""),
        brokers=brokers or sum(each.role == "broker" for each in values.get("registrations", ())),
        sources={name: reading.source for name, reading in chosen.items()},
        not_carried=_not_carried(chosen, current, values),
        **{"topics": (), **values},
    )
    outdated = [f"{entities.source_name(r.source)} is not read: {r.outdated}" for r in readings if r not in current]
    return Merged(metadata, (*outdated, *_disagreements(current, chosen.get("topics"))))


def check_one_cluster(readings: Sequence[Reading]) -> None:
    """Raise `MismatchError` if the sources have different cluster ids."""
    known = {reading.cluster_id: reading.source for reading in readings if reading.cluster_id}
    if len(known) > 1:
        ids = ", ".join(f"{entities.source_name(source)} {cluster_id}" for cluster_id, source in known.items())
        raise MismatchError(
            f"the sources of [source] are of several clusters: {ids}",
            "check bootstrap.servers, the chroot of zookeeper.connect, and metadata.log.dir",
        )


def _choose(part: MetadataPart, readings: Sequence[Reading]) -> Reading | None:
    having = [r for source in part.order for r in readings if r.source == source and getattr(r, part.name) is not None]
    complete = [r for r in having if not any(entry.part == part.name for entry in r.not_carried)]
    return next(iter(having if part.is_partial else [*complete, *having]), None)


def _filled(part: MetadataPart, chosen: Reading, readings: Sequence[Reading]) -> Any:
    value = getattr(chosen, part.name)
    if not isinstance(value, tuple) or not value or isinstance(value[0], str):
        return value
    others = [
        {part.identity(entity): entity for entity in getattr(r, part.name) or ()} for r in readings if r is not chosen
    ]
    return tuple(_fill(entity, [o[name] for o in others if (name := part.identity(entity)) in o]) for entity in value)


def _fill(entity: Any, others: Sequence[Any]) -> Any:
    known = {
        field: next((v for o in others if (v := getattr(o, field)) is not None), None)
        for field in entity.__struct_fields__
        if getattr(entity, field) is None
    }
    return replace(entity, **known) if any(v is not None for v in known.values()) else entity


def _not_carried(
    chosen: dict[MetadataPartName, Reading], readings: Sequence[Reading], values: dict[MetadataPartName, Any]
) -> tuple[NotCarried, ...]:
    """Return the entries of metadata that is not carried. One of secrets stays where no source has filled them all; the
    reason of a source that should have them counts before one of a source that never has them."""
    kept: dict[tuple[MetadataPartName | None, str], NotCarried] = {}
    missing = {
        entities.TOKEN_SECRETS: any(token.hmac is None for token in values.get("delegation_tokens", ())),
        entities.BROKER_SECRETS: any(config.value is None for config in values.get("broker_configs", ())),
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
    """Return one line for each two sources that disagree."""
    topics = {t.name for t in topics_of.topics or ()} if topics_of is not None else None
    warnings = []
    for first, second in combinations(readings, 2):
        one, other = (
            MetadataSide(entities.source_name(first.source), first),
            MetadataSide(entities.source_name(second.source), second),
        )
        words = [in_words(difference, one.name, other.name) for difference in compare(one, other, topics)]
        if words:
            warnings.append(
                f"{one.name} and {other.name} disagree ({join_names(words, _NAMED, '; ')}): "
                "run 'kbackup migrate verify'"
            )
    return warnings


# Read a cluster's metadata from every source that [source] names.


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
    readings += [asked.read() for asked in metadata_sources(sources)]
    return merge(readings, now(), brokers[1] if brokers is not None else 0)


def with_sources(of_brokers: Reading, brokers: int, sources: Sources) -> Merged:
    """Complete the brokers' metadata by the other sources. A source that can't be read is a warning, and damage where
    it is corrupt: the records of a backup are worth more."""
    captured_at, readings, warnings, damage = now(), [of_brokers], [], []
    for asked in metadata_sources(sources):
        try:
            readings.append(asked.read())
        except MismatchError:
            raise
        except KbackupError as error:
            warnings.append(f"{asked.name} is not read: {error.message}; {error.hint or 'try it: kbackup check'}")
            if isinstance(error, CorruptError):
                damage.append(asked.name)
    merged = merge(readings, captured_at, brokers)
    return Merged(merged.metadata, (*warnings, *merged.warnings), tuple(damage))
