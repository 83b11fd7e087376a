"""Topics, records and restore points as the oracle of a walk knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """The content of a record that a restore preserves."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


Partitions = Mapping[int, Mapping[int, Record]]
"""By partition and offset."""


class Offset(NamedTuple):
    """One offset of a life."""

    life: int
    partition: int
    offset: int


@dataclass(frozen=True)
class Log:
    """A topic as Kafka shows it: records, and by partition where the log starts and ends, and where the group is."""

    records: Partitions
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    positions: Mapping[int, int]


@dataclass(eq=False)
class Life:
    """A topic between its creation and its deletion, and every record of it that any backup may have archived."""

    number: int
    topic: str
    records: dict[int, dict[int, Record]] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """A topic in a restore point: records of its life below `ends`. `positions` are of the group, None: unknown."""

    life: Life
    ends: Mapping[int, int]
    positions: Mapping[int, int] | None


Views = dict[str, View]


@dataclass(frozen=True)
class Expiration:
    """The restore points, labels and records that an expiration removed."""

    points: Mapping[int, Views]
    labels: Mapping[str, int]
    records: frozenset[Offset]


@dataclass(frozen=True)
class Restored:
    """A topic as a restore wrote it: records by partition and offset of the target, and where the group is."""

    records: Partitions
    positions: Mapping[int, int]
