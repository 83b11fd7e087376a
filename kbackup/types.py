"""The values that backups and restores pass on: partitions, ranges, record blocks, and the Arrow view of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

Incarnation = tuple[str, int]
"""(topic, incarnation)"""
IncarnationPartition = tuple[str, int, int]
"""(topic, incarnation, partition)"""
Offsets = tuple[tuple[int, int], ...]
"""Ranges of offsets: start inclusive, end exclusive; disjoint, rising."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp_type", pa.int8(), nullable=False),
    pa.field("timestamp", pa.int64()),
    pa.field("key", pa.large_binary()),
    pa.field("value", pa.large_binary()),
    pa.field(
        "headers",
        pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.large_binary())])),
        nullable=False,
    ),
]
RECORDS: pa.Schema = pa.schema(_FIELDS)
"""Records as people and tables see them. `timestamp` is in ms since the epoch, null if the type is -1 or -2."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of a partition: the next one to read. `leader_epoch` is None if none was committed."""

    tp: TopicPartition
    offset: int
    leader_epoch: int | None
    metadata: str


class OffsetRange(NamedTuple):
    """Offsets `start` (inclusive) to `end` (exclusive) of a partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start},{self.end})"


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Whole records in the encoding of formats/, one directly after the other, with their index.

    `data` is uint8[nbytes] and starts with the first record (no magic byte); `offsets`, `positions` and `lengths` are
    int64[n]: source offset, start within `data`, encoded length. Positions are contiguous from 0.
    `min_timestamp` and `max_timestamp` are in ms, None if no record has a timestamp; `largest` is the
    longest encoded record in bytes.
    """

    data: Bytes
    offsets: Int64Array
    positions: Int64Array
    lengths: Int64Array
    min_timestamp: int | None
    max_timestamp: int | None
    largest: int

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        return len(self.data)
