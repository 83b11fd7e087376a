"""Compare the records of two partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from kbackup.jobs.compare.partition import Open, PartitionComparer, Side, TargetOffsets
from kbackup.jobs.compare.report import Comparison
from kbackup.types import RecordBlock
from tests.support.plain_records import Plain, block_of

T0 = 1_700_000_000_000


def distinct(number: int) -> Plain:
    """Record `number` of its own kind: null keys, empty values, headers, times that fall and none at all."""
    key = None if number % 5 == 4 else f"key-{number % 3}".encode()
    kind = -2 if number % 7 == 6 else 0
    headers = tuple((f"h{n}".encode(), None if n else b"x") for n in range(number % 3))
    return Plain(key, f"value {number}".encode() * (number % 4 + 1), kind, T0 - 1000 * (number % 9), headers)


def opened(records: Sequence[Plain], offsets: Sequence[int], cuts: Sequence[int]) -> Open:
    """The records in blocks that end at `cuts`; a new read begins at the first record at or after the offset."""

    def blocks(start: int) -> Iterator[RecordBlock]:
        first = int(np.searchsorted(np.array(offsets, np.int64), start))
        edges = sorted({first, *(c for c in cuts if first < c < len(records)), len(records)})
        for low, high in pairwise(edges):
            yield block_of(records[low:high], offsets[low:high])

    return blocks


def compared(
    archive: Sequence[Plain],
    topic: Sequence[Plain],
    *,
    sources: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    cuts: tuple[Sequence[int], Sequence[int]] = ((), ()),
    target_offsets: TargetOffsets | None = None,
    stamps: bool = True,
    show: int = 100,
) -> Comparison:
    ours = list(range(len(archive))) if sources is None else list(sources)
    present = list(range(1000, 1000 + len(topic))) if targets is None else list(targets)
    one = Side(opened(archive, ours, cuts[0]), 0, stamps=stamps, restored=True)
    other = Side(opened(topic, present, cuts[1]), 0, stamps=stamps)
    seen = [0, 0]

    def count(records: int, size: int) -> None:
        seen[0] += records
        seen[1] += size

    found = PartitionComparer(one, other, target_offsets, show, count).run("t", 3, "restored.t")
    assert seen == [found.records, found.bytes]
    return found


cuts = st.lists(st.integers(0, 60), max_size=6)


def changed(record: Plain, field: str) -> Plain:
    if field == "timestamp":
        return record._replace(kind=0, timestamp=record.timestamp + 1 if record.kind >= 0 else T0)
    if field == "headers":
        return record._replace(headers=(*record.headers, (b"more", b"")))
    return record._replace(key=b"changed") if field == "key" else record._replace(value=b"changed")
