"""Compare two sources of a cluster's metadata, entity by entity. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from kbackup.archive.models import Metadata
from kbackup.archive.secrets import is_sensitive
from kbackup.config import HIDDEN
from kbackup.metadata.parts import PARTS, MetadataPart
from kbackup.metadata.reading import Reading

COMPARED = tuple(p for p in PARTS if p.name not in ("registrations", "features", "deletions", "znodes"))
"""Parts of the metadata that both sides of a migration must agree on. Other parts describe one side alone."""

_SECRETS = {"salt", "stored_key", "server_key", "hmac"}
_LOOSE = {"internal"}
"""Brokers and kbackup itself decide it by the name of a topic."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """`field` "": one of the sides has no such entity. `one` and `other` are the values there; None: nothing. A secret
    is hidden."""

    part: str
    entity: str
    field: str
    one: str | None
    other: str | None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison, a source or a restore point, and its name in messages."""

    name: str
    metadata: Reading | Metadata


def compare(one: Side, other: Side, topics: Collection[str] | None = None) -> list[Difference]:
    """Return the differences in all parts that both sides have. `topics`: no other topics are compared."""
    differences: list[Difference] = []
    running = _running(one.metadata, other.metadata)
    for part in COMPARED:
        values = _comparable(one.metadata, part), _comparable(other.metadata, part)
        if values[0] is None or values[1] is None:
            continue
        if part.name == "next_producer_id":
            differences += _producer_ids(one, other)
        else:
            differences += _entities(part, *(_chosen(part, entities, topics, running) for entities in values))
    return differences


def not_compared(one: Side, other: Side) -> list[str]:
    """Return the labels of the parts that one of the sides lacks."""
    return [
        p.label for p in COMPARED if None in (_comparable(one.metadata, p), _comparable(other.metadata, p))
    ]


def in_words(difference: Difference, one: str, other: str) -> str:
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
    """Return the value of a part; None also where brokers don't use the part, which other sources may hold all the
    same; and for tokens, of which brokers tell those that our user may describe."""
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
    part: MetadataPart,
    entities: Iterable[Any],
    topics: Collection[str] | None,
    running: Collection[int] | None,
) -> dict[str, Any]:
    """Return the entities to compare, by identity."""
    if part.name == "topics" and topics is not None:
        entities = [each for each in entities if each.name in topics]
    if part.name == "broker_configs" and running is not None:
        entities = [each for each in entities if each.broker is None or each.broker in running]
    return {part.identity(each): each for each in entities}


def _entities(part: MetadataPart, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            yield Difference(
                part.label, name, "", "there" if name in one else None, "there" if name in other else None
            )
        else:
            yield from _fields(part, name, one[name], other[name])


def _fields(part: MetadataPart, name: str, one: Any, other: Any) -> Iterator[Difference]:
    """A field that is null on a side is unknown there."""
    for field in one.__struct_fields__:
        values = _value(one, field), _value(other, field)
        if field in _LOOSE or None in values or values[0] == values[1]:
            continue
        if isinstance(values[0], dict):
            for key in sorted(values[0].keys() | values[1].keys()):
                inner = values[0].get(key), values[1].get(key)
                if inner[0] != inner[1]:
                    yield _difference(part, name, key, *inner)
        else:
            shown = getattr(one, "name", field) if field == "value" else field
            yield _difference(part, name, shown, *values)


_URL_SAFE = str.maketrans("+/", "-_")


def _value(entity: Any, field: str) -> Any:
    """The client library writes ids of topics in another base64 than Kafka itself."""
    value = getattr(entity, field)
    return value.translate(_URL_SAFE) if field == "id" and isinstance(value, str) else value


def _difference(part: MetadataPart, entity: str, field: str, one: Any, other: Any) -> Difference:
    hidden = field in _SECRETS or is_sensitive(field)
    texts = [None if value is None else HIDDEN if hidden else _text(value) for value in (one, other)]
    return Difference(part.label, entity, field, *texts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _producer_ids(one: Side, other: Side) -> Iterator[Difference]:
    """The migration gives ZooKeeper a later block than the log says. An earlier one would be handed out twice after a
    way back."""
    ids = [
        (side.metadata.source_of("next_producer_id"), side.metadata.next_producer_id) for side in (one, other)
    ]
    by_source = dict(ids)
    zookeeper, log = by_source.get("zookeeper"), by_source.get("controller log")
    if zookeeper is not None and log is not None and zookeeper < log:
        yield Difference("producer ids", "next block", "first id", *(str(first) for _, first in ids))
