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
from kbackup.systems import MetadataSource, metadata_sources
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
    """A difference in a field of an entity. `one` and `other` are the values of the sides, None if there is none. If
    `field` is empty, one of the sides has no such entity. Secrets are hidden."""

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
    """Return the differences in all parts that both sides have. With `topics`, no other topics are compared."""
    differences: list[MetadataDifference] = []
    running = _running(one.metadata, other.metadata)
    for part in COMPARED:
        ours = _comparable(one.metadata, part)
        theirs = _comparable(other.metadata, part)
        if ours is None or theirs is None:
            continue
        if part.name == "next_producer_id":
            differences += _producer_ids(one, other)
        else:
            our_entities = _chosen(part, ours, topics, running)
            their_entities = _chosen(part, theirs, topics, running)
            differences += _entities(part, our_entities, their_entities)
    return differences


def not_compared(one: MetadataSide, other: MetadataSide) -> list[str]:
    """Return the labels of the parts that one of the sides lacks."""
    labels: list[str] = []
    for part in COMPARED:
        if _comparable(one.metadata, part) is None or _comparable(other.metadata, part) is None:
            labels.append(part.label)
    return labels


def in_words(difference: MetadataDifference, one: str, other: str) -> str:
    """Return one line: the entity, and the value of each side. `one` and `other` are the names of the sides."""
    entity = f"{difference.part}: {difference.entity}"
    if not difference.field:
        has, lacks = (one, other) if difference.other is None else (other, one)
        return f"{entity}: in {has}, not in {lacks}"
    ours = "not set" if difference.one is None else difference.one
    theirs = "not set" if difference.other is None else difference.other
    return f"{entity}: {difference.field} is {ours} in {one}, {theirs} in {other}"


def _comparable(metadata: Reading | Metadata, part: MetadataPart) -> Any:
    """Return the value of a part, None if it can't be compared."""
    # Brokers don't use the part, though another source may still hold something of it.
    if any(entry.reason == "not there" and entry.part == part.name for entry in metadata.not_carried):
        return None
    # Brokers list only the tokens that our user may describe.
    if part.name == "delegation_tokens" and metadata.source_of(part.name) == "brokers":
        return None
    return getattr(metadata, part.name)


def _running(*sides: Reading | Metadata) -> set[int] | None:
    """Return the running brokers, if one side has its configs from brokers: they report no configs of others. None if
    no side has."""
    running: set[int] | None = None
    for side in sides:
        if side.source_of("broker_configs") != "brokers" or side.registrations is None:
            continue
        alive = {each.id for each in side.registrations if each.role == "broker" and each.alive is not False}
        running = alive if running is None else running & alive
    return running


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
        ours = _value(one, field)
        theirs = _value(other, field)
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
    value = getattr(entity, field)
    if field == "id" and isinstance(value, str):
        # Older restore points have the ids of topics in another base64 than Kafka itself.
        return value.translate(_URL_SAFE)
    return value


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
    """Yield a difference if ZooKeeper's next block is earlier than the log's: a broker would hand it out twice after a
    rollback. A later block is right, since the migration moves it ahead."""
    firsts: dict[str | None, int | None] = {}
    for side in (one, other):
        firsts[side.metadata.source_of("next_producer_id")] = side.metadata.next_producer_id
    zookeeper = firsts.get("zookeeper")
    log = firsts.get("controller log")
    if zookeeper is not None and log is not None and zookeeper < log:
        ours = str(one.metadata.next_producer_id)
        theirs = str(other.metadata.next_producer_id)
        yield MetadataDifference("producer ids", "next block", "first id", ours, theirs)


# Merge the metadata of several sources into one document. Pure.


_NAMED = 5


@dataclass(frozen=True)
class Merged:
    """The metadata of all sources. `warnings` name what the sources disagree about, and the sources that don't speak
    for the cluster. `damage` names the damaged sources, whose metadata is missing."""

    metadata: Metadata
    warnings: tuple[str, ...]
    damage: tuple[str, ...] = ()


def mark_outdated(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings, of which one may be marked as outdated: ZooKeeper's if the migration has ended in the
    metadata log, the log's if a broker is the controller in ZooKeeper, as after a rollback."""
    if any(reading.migration == "POST_MIGRATION" for reading in readings):
        source = "zookeeper"
        why = "the migration has ended, and no controller writes to it"
    elif any(reading.is_led_by_broker for reading in readings):
        source = "controller log"
        why = "a broker is the controller, and no KRaft controller writes to it"
    else:
        return list(readings)
    marked: list[Reading] = []
    for reading in readings:
        if reading.source == source:
            reading = dataclasses.replace(reading, outdated=reading.outdated or why)
        marked.append(reading)
    return marked


def merge(readings: Sequence[Reading], captured_at: str, brokers: int) -> Merged:
    """Take each part from the first source in the part's order that has it completely, else from the first that has any
    of it. A null field of an entity is filled from another source. The topics are the brokers', if brokers listed any.
    `MismatchError` for sources of several clusters."""
    check_one_cluster(readings)
    readings = mark_outdated(readings)
    # Outdated metadata is better than none: a source that is the only one counts all the same.
    current = [reading for reading in readings if not reading.outdated] or list(readings)
    chosen: dict[MetadataPartName, Reading] = {}
    values: dict[MetadataPartName, Any] = {}
    for part in PARTS:
        reading = _choose(part, current)
        if reading is not None:
            chosen[part.name] = reading
            values[part.name] = _filled(part, reading, current)
    # They have the same id, as far as they know one at all.
    cluster_ids = [reading.cluster_id for reading in readings if reading.cluster_id]
    cluster_id = cluster_ids[0] if cluster_ids else ""
    registered = sum(each.role == "broker" for each in values.get("registrations", ()))
    sources = {name: reading.source for name, reading in chosen.items()}
    metadata = Metadata(
        captured_at=captured_at,
        cluster_id=cluster_id,
        brokers=brokers or registered,
        sources=sources,
        not_carried=_not_carried(chosen, current, values),
        **{"topics": (), **values},
    )
    warnings: list[str] = []
    for reading in readings:
        if reading not in current:
            warnings.append(f"{entities.source_name(reading.source)} is not read: {reading.outdated}")
    warnings += _disagreements(current, chosen.get("topics"))
    return Merged(metadata, tuple(warnings))


def check_one_cluster(readings: Sequence[Reading]) -> None:
    """Raise `MismatchError` if the sources have different cluster ids."""
    known = {reading.cluster_id: reading.source for reading in readings if reading.cluster_id}
    if len(known) > 1:
        ids = ", ".join(f"{entities.source_name(source)} {cluster_id}" for cluster_id, source in known.items())
        raise MismatchError(
            f"the sources of [source] belong to several clusters: {ids}",
            "check bootstrap.servers, the chroot of zookeeper.connect, and metadata.log.dir",
        )


def _choose(part: MetadataPart, readings: Sequence[Reading]) -> Reading | None:
    """Return the reading that a part is taken from, None if no source has any of it."""
    having: list[Reading] = []
    for source in part.order:
        for reading in readings:
            if reading.source == source and getattr(reading, part.name) is not None:
                having.append(reading)
    if not part.is_partial:
        for reading in having:
            if not any(entry.part == part.name for entry in reading.not_carried):
                return reading
    return having[0] if having else None


def _filled(part: MetadataPart, chosen: Reading, readings: Sequence[Reading]) -> Any:
    """Return the value of a part. Fields that are null in the chosen reading are filled from the others."""
    value = getattr(chosen, part.name)
    if not isinstance(value, tuple) or not value or isinstance(value[0], str):
        return value
    others: dict[str, list[Any]] = {}
    for reading in readings:
        if reading is not chosen:
            for entity in getattr(reading, part.name) or ():
                others.setdefault(part.identity(entity), []).append(entity)
    filled: list[Any] = []
    for entity in value:
        same_elsewhere = others.get(part.identity(entity), [])
        filled.append(_fill(entity, same_elsewhere))
    return tuple(filled)


def _fill(entity: Any, others: Sequence[Any]) -> Any:
    """Return the entity, with the first value that `others` have of each field that is null."""
    known: dict[str, Any] = {}
    for field in entity.__struct_fields__:
        if getattr(entity, field) is not None:
            continue
        for other in others:
            value = getattr(other, field)
            if value is not None:
                known[field] = value
                break
    return replace(entity, **known) if known else entity


def _not_carried(
    chosen: dict[MetadataPartName, Reading], readings: Sequence[Reading], values: dict[MetadataPartName, Any]
) -> tuple[NotCarried, ...]:
    """Return the entries of metadata that is not carried. An entry of secrets stays if no source has filled them all.
    The reason of a source that should have them counts more than the reason of a source that never has them."""
    kept: dict[tuple[MetadataPartName | None, str], NotCarried] = {}
    # A field that is still null is a secret that no source has told.
    lacks_tokens = any(token.hmac is None for token in values.get("delegation_tokens", ()))
    lacks_configs = any(config.value is None for config in values.get("broker_configs", ()))
    missing = {entities.TOKEN_SECRETS: lacks_tokens, entities.BROKER_SECRETS: lacks_configs}
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
    topics: set[str] | None = None
    if topics_of is not None:
        topics = {topic.name for topic in topics_of.topics or ()}
    warnings: list[str] = []
    for first, second in combinations(readings, 2):
        one = MetadataSide(entities.source_name(first.source), first)
        other = MetadataSide(entities.source_name(second.source), second)
        words = [in_words(difference, one.name, other.name) for difference in compare(one, other, topics)]
        if words:
            named = join_names(words, _NAMED, "; ")
            warnings.append(f"{one.name} and {other.name} disagree ({named}): run 'kbackup migrate verify'")
    return warnings


# Read a cluster's metadata from every source that [source] names.


def read_brokers(sources: Sources) -> tuple[Reading, int]:
    """Read every topic and the cluster from the brokers; also return the number of brokers."""
    cluster = Cluster(sources.kafka, "source")
    cluster_id, brokers = cluster.connect()
    topics = cluster.topics(cluster.topic_names())
    listed, _ = cluster.groups.listed()
    groups = sorted(group.group for group in listed)
    return capture.read_brokers(cluster, topics, cluster_id, groups), brokers


def read_all(sources: Sources) -> Merged:
    """Read the whole metadata of a cluster. A source that can't be read is an error."""
    readings: list[Reading] = []
    brokers = 0
    if sources.kafka.get("bootstrap.servers"):
        of_brokers, brokers = read_brokers(sources)
        readings.append(of_brokers)
    readings += [asked.read() for asked in metadata_sources(sources)]
    return merge(readings, now(), brokers)


def with_sources(of_brokers: Reading, brokers: int, others: Iterable[MetadataSource]) -> Merged:
    """Complete the brokers' metadata by the other sources. A source that can't be read is a warning, and damage if it
    is corrupt: the records of a backup are worth more."""
    captured_at = now()
    readings = [of_brokers]
    warnings: list[str] = []
    damage: list[str] = []
    for asked in others:
        try:
            readings.append(asked.read())
        except MismatchError:
            raise
        except KbackupError as error:
            hint = error.hint or "try it: kbackup check"
            warnings.append(f"{asked.name} is not read: {error.message}; {hint}")
            if isinstance(error, CorruptError):
                damage.append(asked.name)
    merged = merge(readings, captured_at, brokers)
    return Merged(merged.metadata, (*warnings, *merged.warnings), tuple(damage))
