"""Segments read back without a catalog: the records come from the records object, and its index is checked against
them.

A backup takes over whole orphan segments of an interrupted run; a repair and an adoption list whole segments that no
catalog lists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from kbackup.archive import layout
from kbackup.archive.segments.read import StoredRecords, crc_of
from kbackup.archive.segments.table import Segment, in_order
from kbackup.archive.segments.writer import SegmentTarget, greatest, least
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError
from kbackup.formats.index import SegmentIndex, decode_index, encode_index
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition, Int64Array, RecordBlock

MOST_PARTITIONS = 1_000_000  # a name with a higher number is not of a partition

T = TypeVar("T")

See = Callable[[RecordBlock], object]

IndexState = Literal["whole", "missing", "damaged"]


class RecordsObject(NamedTuple):
    """A records object by its key: of partition `target`, with records from offset `start` on."""

    target: SegmentTarget
    key: str
    start: int


class ReadBack(NamedTuple):
    """A segment, the bytes of its index, and the state of the index object. If the stored index goes on behind the last
    record of the segment, `end` is the offset after the last entry."""

    segment: Segment
    index_data: bytes
    state: IndexState
    end: int | None = None


def parse_records_object(key: str) -> RecordsObject | None:
    """Return the records object that has this key; None for the key of anything else."""
    parsed = layout.parse_topic_key(key)
    name = layout.parse_segment(parsed[1]) if parsed is not None else None
    if parsed is None or name is None or name.kind == "index" or name.partition >= MOST_PARTITIONS:
        return None
    # the threshold plays no part in reading
    target = SegmentTarget(*parsed[0], name.partition, 0, layout.compression_of(key))
    return RecordsObject(target, key, name.start)


def drop_overlaps(items: Iterable[T], segment_of: Callable[[T], Segment]) -> tuple[list[T], list[T]]:
    """Split items with a segment each, in order, into kept and overlapping ones. Of two that overlap, the one of the
    later rewrite is kept, which was written in place of the other; else the one that begins first, and of two that
    begin alike the longer one."""

    def preference(item: T) -> tuple[object, ...]:
        segment = segment_of(item)
        return (-layout.rewrite_of(segment.key), *in_order(segment), -segment.last)

    kept: list[T] = []
    overlapping: list[T] = []
    taken: dict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    for item in sorted(items, key=preference):
        segment = segment_of(item)
        ranges = taken[segment.incarnation_partition]
        # The ranges rise and don't overlap: only the one before the place of this segment and the one behind can.
        at = bisect_left(ranges, (segment.first, segment.last))
        beside = ranges[max(0, at - 1) : at + 1]
        if any(first <= segment.last and segment.first <= last for first, last in beside):
            overlapping.append(item)
        else:
            kept.append(item)
            ranges.insert(at, (segment.first, segment.last))
    kept.sort(key=lambda item: in_order(segment_of(item)))
    return kept, overlapping


def salvage_segment(store: Store, target: SegmentTarget, key: str, see: See = len) -> Segment:
    """Return the descriptor of a segment that another attempt wrote; write its index if it is missing. `see` gets the
    blocks of the segment as they are read. `CorruptError` if the object or its index is not a whole segment."""
    segment, index, state, _ = _read_by_index(store, target, key, see)
    index_key = layout.index_key_of(key)
    if state == "missing":
        try:
            store.put_new(index_key, index)
        except AlreadyExistsError as error:  # that attempt is still at work, and has written its own index meanwhile
            if store.get(index_key) != index:
                raise _disagreement(index_key) from error
    return segment


def read_unlisted(store: Store, target: SegmentTarget, key: str) -> ReadBack:
    """Read a segment whole: by its index, or without the index if the two don't fit. `CorruptError` for damaged
    records."""
    try:
        return _read_by_index(store, target, key)
    except CorruptError:
        segment, data = _read_whole(store, target, key, None)
    end = None
    index_key = layout.index_key_of(key)
    # An index that goes on behind the last record shows that records were cut off: then the caller knows how many.
    with suppress(NotFoundError, CorruptError):
        stored = store.get(index_key)
        index = decode_index(stored, index_key)
        if len(stored) > len(data) and stored.startswith(data):
            end = int(index.offsets[-1]) + 1
    return ReadBack(segment, data, "damaged", end)


def _read_by_index(store: Store, target: SegmentTarget, key: str, see: See = len) -> ReadBack:
    """Read a segment by its index, which checks as much as record by record and is thirty times as fast. Without an
    index it is read record by record. `CorruptError` where records and index don't fit."""
    index_key = layout.index_key_of(key)
    try:
        stored = store.get(index_key)
    except NotFoundError:
        return ReadBack(*_read_whole(store, target, key, None, see), "missing")
    segment, data = _read_whole(store, target, key, decode_index(stored, index_key), see)
    if data != stored:
        raise _disagreement(index_key)
    return ReadBack(segment, data, "whole")


def _read_whole(
    store: Store, target: SegmentTarget, key: str, by: SegmentIndex | None, see: See = len
) -> tuple[Segment, bytes]:
    """Return the descriptor of a records object, and the bytes of an index made from its records. With the index `by`
    the records are read by it. `CorruptError` if the object is no whole segment, or does not fit `by`."""
    info = store.stat(key)
    stored = StoredRecords(store, key, info.size)
    entries: list[Int64Array] = []
    low: int | None = None
    high: int | None = None
    largest = 0
    size = 1  # the magic byte
    for block in stored.blocks(by):
        see(block)
        entries.append(np.stack((block.offsets, block.positions + size, block.lengths)))
        size += block.nbytes
        low = least(low, block.min_timestamp)
        high = greatest(high, block.max_timestamp)
        largest = max(largest, block.largest)
    if not entries:
        raise CorruptError(f"file {key} has no record", "check which tool wrote it: no segment is empty")
    index = SegmentIndex(*np.concatenate(entries, axis=1))
    data = encode_index(index)
    segment = Segment(
        *target.incarnation_partition,
        first=int(index.offsets[0]),
        last=int(index.offsets[-1]),
        count=len(index),
        bytes=size,
        stored=info.size,
        min_timestamp=low,
        max_timestamp=high,
        largest=largest,
        crc=f"{stored.crc:016x}",
        index_crc=crc_of(data),
        key=key,
    )
    return segment, data


def _disagreement(key: str) -> CorruptError:
    return CorruptError(f"file {key} disagrees with its records", "run 'kbackup verify', which lists every finding")
