"""Read files that another program wrote in the documented format, and write the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kbackup.formats import index as indexes
from kbackup.formats import record
from kbackup.types import RecordBlock
from tests.golden.java_archive import PARTITIONS, ROOT, Partition
from tests.support.record_blocks import index_of
from tests.unit.formats.reference import Record, from_batch, to_batch

THRESHOLD = 2500
"""`max.segment.size.bytes` that the archive was written with; a test below derives it from the segments."""


def index_path(records: Path) -> Path:
    return records.with_name(records.name.removesuffix("_records") + "_index")


def each() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("partition", PARTITIONS, ids=str)


def test_the_archive_is_whole() -> None:
    assert len(PARTITIONS) == 9
    assert sum(len(partition.truth()) for partition in PARTITIONS) == 131 + 14 + 200 + 20 + 20
    topics = {path.name for path in (ROOT / "archive").iterdir()}
    assert topics == {partition.topic for partition in PARTITIONS}


@each()
@pytest.mark.parametrize("indexed", [True, False])
def test_records_are_the_truth(partition: Partition, indexed: bool) -> None:
    records: list[Record] = []
    for path in partition.segments():
        data = path.read_bytes()
        index = indexes.decode_index(index_path(path).read_bytes(), str(path)) if indexed else None
        for block in record.blocks([data[:100], data[100:]], index, name=str(path)):
            records += from_batch(record.decode(block))
    assert records == partition.truth()


@each()
def test_an_index_is_what_its_records_say(partition: Partition) -> None:
    for path in partition.segments():
        block = record.scan(path.read_bytes()[1:], name=path.name, base=1)
        assert indexes.encode_index(index_of([block])) == index_path(path).read_bytes()
        read = indexes.decode_index(index_path(path).read_bytes(), path.name)
        assert np.array_equal(read.offsets, block.offsets)
        assert read.file_size == path.stat().st_size


def rotated(block: RecordBlock) -> list[RecordBlock]:
    """The segments that a partition's records make; a partition without records has one, empty."""
    segments, rest = [], block
    while len(rest):
        count = record.rotation_cut(rest.lengths, 1, THRESHOLD)
        segments.append(record.slice_block(rest, 0, count))
        rest = record.slice_block(rest, count, len(rest))
    return segments or [block]


@each()
def test_writing_the_truth_gives_the_same_files(partition: Partition) -> None:
    segments = rotated(record.encode(to_batch(partition.truth())))
    paths = partition.segments()
    assert len(segments) == len(paths)
    entries = []
    for block, path in zip(segments, paths, strict=True):
        start = int(block.offsets[0]) if len(block) else 0
        name = f"segment_partition_{partition.number:03d}_from_offset_{start:010d}"
        assert path.name == f"{name}_records"
        assert path.read_bytes() == b"\x01" + block.data.tobytes()
        assert index_path(path).read_bytes() == indexes.encode_index(index_of([block]))
        entries.append(indexes.PartitionIndexEntry(name, start))
    assert partition.index_bytes() == indexes.encode_partition_index(entries)
    assert indexes.decode_partition_index(partition.index_bytes(), str(partition)) == entries


def test_the_threshold_explains_the_segments_of_the_archive() -> None:
    """2500 is the one round number between the closed segments' sizes without and with their last records."""
    low, high = 0, 1 << 62
    for partition in PARTITIONS:
        for path in partition.segments()[:-1]:
            lengths = indexes.decode_index(index_path(path).read_bytes(), path.name).lengths
            size = path.stat().st_size
            low, high = max(low, size - int(lengths[-1])), min(high, size - 1)
    assert low <= THRESHOLD == high


@each()
def test_group_offsets_both_ways(partition: Partition) -> None:
    data = partition.group_bytes()
    offsets = indexes.decode_group_offsets(data, str(partition))
    assert offsets == json.loads(data)
    assert indexes.encode_group_offsets(offsets) == data
    last = max((made.offset for made in partition.truth()), default=-1)
    # The tool's own position: past the last record, and past the transaction marker behind it, if there is one.
    assert offsets["connect-backup-sink"] - last - 1 in (0, 1)


def test_a_group_with_a_name_that_is_not_ascii() -> None:
    data = Partition("orders.v1", 0).group_bytes()
    expected = {"connect-backup-sink": 131, "cg-100": 100, "cg-end ü": 100}
    assert indexes.decode_group_offsets(data, "orders.v1-0") == expected
