"""Writing one partition's blocks as segments: records object first, then its index, both write-once.

Memory is bounded by the uploads' parts, whatever the size of a segment: the index streams beside the records.
Blocks are not copied: an upload (or the compressor) holds on to their data until it is stored, and to nothing else.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from kbackup.archive import layout
from kbackup.archive.segments.table import Segment
from kbackup.errors import AlreadyExistsError, KbackupError
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.formats.frames import FrameCompressor
from kbackup.formats.index import encode_entries
from kbackup.store.base import Store, Upload
from kbackup.types import IncarnationPartition, RecordBlock

_MAGIC = b"\x01"


class SegmentTarget(NamedTuple):
    """The topic, partition and form in which segments are written. `threshold` is `segment_bytes`; `compression` is
    'none' or 'zstd'; `extra_zeros` pad the offset in the segments' names, and `rewrite` and `compacted` stand behind it
    (`layout.segment_stem`)."""

    topic: str
    incarnation: int
    partition: int
    threshold: int
    compression: str
    extra_zeros: int = 0
    rewrite: int = 0
    compacted: int = 0

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self[:3]

    @property
    def directory(self) -> str:
        return layout.topic_dir(self.topic, self.incarnation)


class SegmentTakenError(KbackupError):
    """The name of the segment that begins at `first` is taken: salvage the segment (`read.salvage_segment`) and go on
    after it, or write it with one more extra zero in its name."""

    def __init__(self, key: str, first: int) -> None:
        super().__init__(f"object {key} exists already", "another attempt wrote it")
        self.key = key
        self.first = first


class PartitionWriter:
    """A context manager; leaving it without `finish` leaves nothing behind but the segments that were returned."""

    def __init__(self, store: Store, target: SegmentTarget) -> None:
        self._store = store
        self._target = target
        self._open: _OpenSegment | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.abort()

    def append(self, block: RecordBlock) -> list[Segment]:
        """Write a block. Return the segments that ended with it. `SegmentTakenError` if one is there already."""
        ended: list[Segment] = []
        rest = block
        while len(rest):
            if self._open is None:
                self._open = _OpenSegment(self._store, self._target, int(rest.offsets[0]))
            fits = rotation_cut(rest.lengths, self._open.size, self._target.threshold)
            if fits == len(rest):  # nearly always: a segment has many blocks
                self._open.write(rest)
                return ended
            if fits:
                self._open.write(slice_block(rest, 0, fits))
                rest = slice_block(rest, fits, len(rest))
            ended.append(self._close())
        return ended

    def finish(self) -> list[Segment]:
        """End the last segment."""
        return [self._close()] if self._open is not None else []

    def _close(self) -> Segment:
        opened, self._open = self._open, None
        assert opened is not None  # noqa: S101 (both callers just looked)
        try:
            return opened.close()
        finally:
            opened.abort()


class _OpenSegment:
    """A segment that is being written: its two uploads, and what its descriptor will say."""

    def __init__(self, store: Store, target: SegmentTarget, first: int) -> None:
        self._store, self._target = store, target
        self._first = self._last = first
        self._count = self._largest = 0
        self._min: int | None = None
        self._max: int | None = None
        self.size = len(_MAGIC)  # of the records file without compression
        self._key = layout.records_key(
            target.directory,
            target.partition,
            first,
            target.compression,
            target.extra_zeros,
            target.rewrite,
            target.compacted,
        )
        self._index_key = layout.index_key_of(self._key)
        self._frames = FrameCompressor() if target.compression == "zstd" else None
        self._records: Upload = store.upload(self._key)
        self._index: Upload = store.upload(self._index_key)
        self._index.write(_MAGIC)
        if self._frames is None:
            self._records.write(_MAGIC)

    def write(self, block: RecordBlock) -> None:
        if self._frames is None:
            self._records.write(block.data)
        else:
            for frame in self._frames.feed(block):
                self._records.write(frame)
        self._index.write(encode_entries(block.offsets, block.positions, block.lengths, self.size))
        self.size += block.nbytes
        self._last = int(block.offsets[-1])
        self._count += len(block)
        self._largest = max(self._largest, block.largest)
        self._min = least(self._min, block.min_timestamp)
        self._max = greatest(self._max, block.max_timestamp)

    def close(self) -> Segment:
        """Commit records, then index; return the descriptor. `SegmentTakenError` if one of them is there already."""
        if self._frames is not None:
            for frame in self._frames.finish():
                self._records.write(frame)
        try:
            # Whatever ends this process in between leaves records without an index. The next attempt meets their name,
            # reads them back and writes the index (`salvage.salvage_segment`).
            stored, crc = self._records.commit()
            _, index_crc = self._index.commit()
        except AlreadyExistsError as error:
            raise SegmentTakenError(self._key, self._first) from error
        return Segment(
            *self._target.incarnation_partition,
            first=self._first,
            last=self._last,
            count=self._count,
            bytes=self.size,
            stored=stored,
            min_timestamp=self._min,
            max_timestamp=self._max,
            largest=self._largest,
            crc=f"{crc:016x}",
            index_crc=f"{index_crc:016x}",
            key=self._key,
        )

    def abort(self) -> None:
        if self._frames is not None:
            self._frames.close()
        self._records.abort()
        self._index.abort()


def least(a: int | None, b: int | None) -> int | None:
    """Return the smaller value; None stands for no value."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def greatest(a: int | None, b: int | None) -> int | None:
    """Return the larger value; None stands for no value."""
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)
