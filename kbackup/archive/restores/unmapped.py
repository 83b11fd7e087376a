"""Records whose keys or values name schemas that they could not be mapped to: counted where they were restored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kbackup.archive.models import Member
from kbackup.util.text import plural


class UnmappedRecords(Member, frozen=True, kw_only=True):
    """Keys, or values, of a topic of the source that were restored as they are. `unknown` of them name a schema that
    the restore point lacks, and `undecoded` of them do not decode by the schema that they name. `partition` and
    `offset` are of one such record."""

    topic: str
    part: Literal["key", "value"]
    unknown: int = 0
    undecoded: int = 0
    partition: int
    offset: int

    @property
    def records(self) -> int:
        return self.unknown + self.undecoded

    @property
    def words(self) -> str:
        """Return in words what was left as it is, and why."""
        reasons = []
        if self.unknown:
            reasons.append(f"{self.unknown:,} with a schema that the restore point lacks")
        if self.undecoded:
            reasons.append(f"{self.undecoded:,} that the schema with their id does not decode")
        return (
            f"{plural(self.records, self.part)} of topic {self.topic} left as archived, without an id of the target: "
            f"{' and '.join(reasons)}; one is {self.topic}:{self.partition}:{self.offset}"
        )


def sum_unmapped(counts: Iterable[UnmappedRecords]) -> tuple[UnmappedRecords, ...]:
    """Return one count per topic and part, in order."""
    sums: dict[tuple[str, str], UnmappedRecords] = {}
    for each in counts:
        key = (each.topic, each.part)
        if key in sums:
            each = _added(sums[key], each)
        sums[key] = each
    return tuple(sums[key] for key in sorted(sums))


def _added(one: UnmappedRecords, other: UnmappedRecords) -> UnmappedRecords:
    """Return the sum of two counts of the same topic and part."""
    partition, offset = min((one.partition, one.offset), (other.partition, other.offset))
    return UnmappedRecords(
        topic=one.topic,
        part=one.part,
        unknown=one.unknown + other.unknown,
        undecoded=one.undecoded + other.undecoded,
        partition=partition,
        offset=offset,
    )


def encode_unmapped(counts: tuple[UnmappedRecords, ...]) -> bytes:
    return msgspec.json.encode(counts)


def decode_unmapped(data: bytes) -> tuple[UnmappedRecords, ...]:
    return msgspec.json.decode(data, type=tuple[UnmappedRecords, ...])
