"""Compare restored records and positions with those of the source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.support.truth import Records
from tests.unit.formats.reference import Record

Content = tuple[int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def content(record: Record) -> Content:
    """Return the content that a restore preserves: timestamp, key, value and headers.

    librdkafka can't send timestamp 0: it becomes 1.
    """
    return record.timestamp or (1 if record.timestamp == 0 else None), *record[3:]


def assert_restored(source: Records, target: Records) -> None:
    """The same records in the same partitions and order; offsets and the kind of timestamp may differ."""
    assert source.keys() == target.keys()
    for partition, records in source.items():
        expected, restored = list(map(content, records)), list(map(content, target[partition]))
        assert len(restored) == len(expected), f"partition {partition}"
        for number, (a, b) in enumerate(zip(expected, restored, strict=True)):
            assert a == b, f"partition {partition}, record {number}, source offset {records[number].offset}"


def expected_offset(committed: int, source: Sequence[Record], target: Sequence[Record], end: int) -> int:
    """Return the expected position of a group: the first restored record at or after `committed`, else `end`.

    `target` are the restored records, in the source's order.
    """
    pairs: Iterable[tuple[Record, Record]] = zip(source, target, strict=True)
    return next((t.offset for s, t in pairs if s.offset >= committed), end)
