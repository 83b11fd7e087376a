"""Segments read back without a catalog: the records come from the records object, and its index is checked against
them.

A backup takes over whole orphan segments of an interrupted run; a repair and an adoption list whole segments that no
catalog lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from kbackup.archive import layout
from kbackup.archive.segments.read import StoredRecords, crc_of
from kbackup.archive.segments.table import Segment, in_order
from kbackup.archive.segments.writer import SegmentTarget, greatest, least
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError
from kbackup.formats.index import SegmentIndex, decode_index, encode_index
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition

MOST_PARTITIONS = 1_000_000
"""A name with a higher number is not of a partition."""

T = TypeVar("T")

IndexState = Literal["whole", "missing", "damaged"]


class RecordsObject(NamedTuple):
    """A records object by its key: of partition `target`, with records from offset `start` on."""

    target: SegmentTarget
    key: str
    start: int


class ReadBack(NamedTuple):
    """A segment, the bytes of its index, and the state of the index object: it may go on, to before offset `end`."""

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
    """Divide items with a segment each, in order, into those that stay and those that overlap one that stays.

    Of two that overlap the one that begins first stays; of two that begin alike the longer one.
    """
    kept: list[T] = []
    overlapping: list[T] = []
    ends: dict[IncarnationPartition, int] = {}
    for item in sorted(items, key=lambda item: (*in_order(segment_of(item)), -segment_of(item).last)):
        segment = segment_of(item)
        key = segment.incarnation_partition
        if segment.first < ends.get(key, 0):
            overlapping.append(item)
        else:
            kept.append(item)
            ends[key] = segment.last + 1
    return kept, overlapping


def salvage_segment(store: Store, target: SegmentTarget, key: str) -> Segment:
    """Return the descriptor of a segment that another attempt wrote; write its index where it is missing.

    `CorruptError` if the object or its index is not a whole segment.
    """
    segment, index, state, _ = _read_by_index(store, target, key)
    if state == "missing":
        _publish_index(store, layout.index_key_of(key), index)
    return segment


def read_unlisted(store: Store, target: SegmentTarget, key: str) -> ReadBack:
    """Read a segment whole: by its index, or without it where the two don't fit. `CorruptError` for damaged records."""
    try:
        return _read_by_index(store, target, key)
    except CorruptError:
        segment, data = _read_whole(store, target, key, None)
    return ReadBack(segment, data, "damaged", _end_of_longer(store, layout.index_key_of(key), data))


def _read_by_index(store: Store, target: SegmentTarget, key: str) -> ReadBack:
    """Read a segment by its index, which checks as much as record by record and is thirty times as fast.

    Without an index it is read record by record. `CorruptError` where records and index don't fit.
    """
    index_key = layout.index_key_of(key)
    try:
        stored = store.get(index_key)
    except NotFoundError:
        return ReadBack(*_read_whole(store, target, key, None), "missing")
    segment, data = _read_whole(store, target, key, decode_index(stored, index_key))
    if data != stored:
        raise _disagreement(index_key)
    return ReadBack(segment, data, "whole")


def _end_of_longer(store: Store, key: str, data: bytes) -> int | None:
    """Return the offset behind the last record of an index that begins with `data` and goes on; else None."""
    try:
        stored = store.get(key)
        index = decode_index(stored, key)
    except (NotFoundError, CorruptError):
        return None
    return int(index.offsets[-1]) + 1 if len(stored) > len(data) and stored.startswith(data) else None


def _read_whole(store: Store, target: SegmentTarget, key: str, by: SegmentIndex | None) -> tuple[Segment, bytes]:
    """Return the descriptor of a records object, and the bytes of its index.

    `by` is an index that may be its own. `CorruptError` if the object is no whole segment, or does not fit `by`.
    """
    info = store.stat(key)
    stored = StoredRecords(store, key, info.size)
    parts: list[SegmentIndex] = []
    low: int | None = None
    high: int | None = None
    largest, size = 0, 1
    for block in stored.blocks(by):
        parts.append(SegmentIndex(block.offsets, block.positions + size, block.lengths))
        size += block.nbytes
        low, high = least(low, block.min_timestamp), greatest(high, block.max_timestamp)
        largest = max(largest, block.largest)
    if not parts:
        raise CorruptError(f"file {key} has no record", "check which tool wrote it: no segment is empty")
    index = encode_index(_joined(parts))
    segment = Segment(
        topic=target.topic,
        incarnation=target.incarnation,
        partition=target.partition,
        first=int(parts[0].offsets[0]),
        last=int(parts[-1].offsets[-1]),
        count=sum(map(len, parts)),
        bytes=size,
        stored=info.size,
        min_timestamp=low,
        max_timestamp=high,
        largest=largest,
        crc=f"{stored.crc:016x}",
        index_crc=crc_of(index),
        key=key,
    )
    return segment, index


def _joined(parts: list[SegmentIndex]) -> SegmentIndex:
    return SegmentIndex(
        np.concatenate([p.offsets for p in parts]),
        np.concatenate([p.positions for p in parts]),
        np.concatenate([p.lengths for p in parts]),
    )


def _publish_index(store: Store, key: str, index: bytes) -> None:
    try:
        store.put_new(key, index)
    except AlreadyExistsError as error:
        if store.get(key) != index:
            raise _disagreement(key) from error


def _disagreement(key: str) -> CorruptError:
    return CorruptError(f"file {key} disagrees with its records", "run 'kbackup verify', which lists every finding")
