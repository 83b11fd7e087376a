"""Windows on a folder that the Java tool wrote: no restore points, and no segment's timestamps are known."""

from __future__ import annotations

import msgspec
import pytest

from kbackup.archive.query.content import NO_POINTS
from kbackup.archive.restores.plan import UnitRange
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from kbackup.formats.record import decode
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.plan import select_content
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.unit.formats.reference import Record, from_batch

STORE = FileStore(ROOT / "archive")
STAMPS = sorted(r.timestamp for p in PARTITIONS for r in p.truth() if r.timestamp is not None)


def found(**options: object) -> dict[tuple[str, int], list[Record]]:
    """Return the records that a restore would write, by topic and partition."""
    content = select_content(msgspec.convert(options, Restore), STORE)
    assert content.choice is not None
    assert content.choice.notes == (NO_POINTS,)
    records: dict[tuple[str, int], list[Record]] = {}
    for topic in content.topics:
        for p in topic.partitions:
            part = UnitRange(
                topic=topic.name, partition=p.partition, target="t", segments=p.segments, window=p.window
            )
            blocks = [piece.block for piece in read_range(STORE, part) if piece.block is not None]
            records[topic.name, p.partition] = [r for b in blocks for r in from_batch(decode(b))]
            assert len(records[topic.name, p.partition]) <= p.records
    return records


@pytest.mark.parametrize("index", [0, len(STAMPS) // 3, len(STAMPS) // 2, len(STAMPS) - 1])
def test_by_time(index: int) -> None:
    low, high = STAMPS[index // 2], STAMPS[index]
    assert low >= 0
    assert found(from_time=str(low), to_time=str(high)) == {
        (p.topic, p.number): [r for r in p.truth() if r.timestamp is not None and low <= r.timestamp <= high]
        for p in PARTITIONS
    }


def test_by_offset() -> None:
    one = max(PARTITIONS, key=lambda p: len(p.truth()))
    truth = one.truth()
    low, high = truth[len(truth) // 4].offset, truth[-1].offset
    chosen = found(range=[f"{one.topic}:{one.number}:{low}-{high}"])
    assert chosen[one.topic, one.number] == [r for r in truth if low <= r.offset < high]
    assert [records for key, records in chosen.items() if key != (one.topic, one.number) and records] == []
    with pytest.raises(UsageError, match=f"is archived from {truth[0].offset} to {high + 1}"):
        found(range=[f"{one.topic}:{one.number}:{low}-{high + 2}"])
