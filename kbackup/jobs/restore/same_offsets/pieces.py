"""The log of a partition as it is to become: records at their source offsets, and gaps between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from kbackup.archive.restores.map_parts import NOTHING, Cut
from kbackup.archive.restores.offset_map import Runs
from kbackup.archive.restores.plan import LogBounds, UnitRange
from kbackup.formats.block import slice_block
from kbackup.jobs.replay import read_range
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.transform import Transform
from kbackup.store.base import Store
from kbackup.types import Int64Array, RecordBlock


class RecordRun(NamedTuple):
    """Records whose offsets follow one another."""

    block: RecordBlock

    @property
    def first(self) -> int:
        return int(self.block.offsets[0])

    @property
    def end(self) -> int:
        return int(self.block.offsets[-1]) + 1


class Gap(NamedTuple):
    """Offsets from `first` to `end` (exclusive) without a record."""

    first: int
    end: int


def runs_of(block: RecordBlock) -> Iterator[RecordRun]:
    """Yield the parts of a block whose offsets follow one another."""
    edges = np.flatnonzero(np.diff(block.offsets) != 1) + 1
    first = 0
    for edge in [*edges.tolist(), len(block)]:
        yield RecordRun(slice_block(block, first, edge))
        first = edge


def pieces(blocks: Iterable[RecordBlock], log: LogBounds) -> Iterator[RecordRun | Gap]:
    """Yield the records of a partition and the gaps between them, from the start of the log to its end."""
    at = log.start
    for block in blocks:
        for run in runs_of(block):
            if run.first > at:
                yield Gap(at, run.first)
            yield run
            at = run.end
    if at < log.end:
        yield Gap(at, log.end)


@dataclass
class RunCollector:
    """Puts together the offset map of a partition whose offsets stay as they are, from its runs in order."""

    firsts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, first: int, end: int) -> None:
        if self.firsts and self.firsts[-1] + self.counts[-1] == first:
            self.counts[-1] += end - first
        else:
            self.firsts.append(first)
            self.counts.append(end - first)

    @property
    def runs(self) -> Runs:
        offsets: Int64Array = np.array(self.firsts, np.int64)
        return offsets, offsets, np.array(self.counts, np.int64)


@dataclass
class SelectedBlocks:
    """The records of a range that its window selects, block by block, as `transform` makes them. `cut` counts them if
    there is a window, the records that the transform left out, and those whose schemas could not be mapped; all once
    all was read."""

    store: Store
    range_: UnitRange
    schemas: SchemaRewrite | None = None
    transform: Transform | None = None
    cut: Cut = NOTHING

    def __iter__(self) -> Iterator[RecordBlock]:
        for step in read_range(self.store, self.range_, schemas=self.schemas, transform=self.transform):
            if self.range_.window is not None or step.unmapped or step.left_out:
                self.cut = self.cut.plus(step.cut(self.range_))
            if step.block is not None:
                yield step.block


# What has to be known of a partition before the first record is written.


class LogShape(NamedTuple):
    """The records of a partition: how many, the first offset and the one behind the last; None for both without
    records. `gaps` are the gaps between them, `missing` the offsets in these, `largest` those of the largest gap."""

    records: int
    first: int | None
    end: int | None
    gaps: int = 0
    missing: int = 0
    largest: int = 0

    def within(self, log: LogBounds) -> LogShape:
        """Return the shape with the gaps before the first record and behind the last one, inside a log."""
        if self.first is None or self.end is None:
            edges = [log.end - log.start]
        else:
            edges = [self.first - log.start, log.end - self.end]
        shape = self
        for size in edges:
            if size > 0:
                shape = shape._replace(
                    gaps=shape.gaps + 1, missing=shape.missing + size, largest=max(shape.largest, size)
                )
        return shape


def shape_of(store: Store, range_: UnitRange, transform: Transform | None = None) -> LogShape:
    """Return the shape of a range's records, as `transform` leaves them. Segments are read only if their descriptors
    leave it open."""
    shape = LogShape(0, None, None)
    for segment in range_.segments:
        selects_all = range_.window is None and transform is None
        if selects_all and segment.count == segment.last + 1 - segment.first:
            shape = _with_run(shape, segment.first, segment.last + 1)
            continue
        alone = msgspec.structs.replace(range_, segments=(segment,))
        for block in SelectedBlocks(store, alone, transform=transform):
            for run in runs_of(block):
                shape = _with_run(shape, run.first, run.end)
    return shape


def _with_run(shape: LogShape, first: int, end: int) -> LogShape:
    """Return the shape with one more run behind it."""
    records = shape.records + end - first
    if shape.end is None:
        return shape._replace(records=records, first=first, end=end)
    size = first - shape.end
    if size == 0:
        return shape._replace(records=records, end=end)
    return shape._replace(
        records=records, end=end, gaps=shape.gaps + 1, missing=shape.missing + size, largest=max(shape.largest, size)
    )
