"""One task of a backup: reads its ranges, writes segments, says what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kbackup.archive.models import LastRecord
from kbackup.archive.segments.last_record import last_of, with_epoch
from kbackup.archive.segments.read import salvage_segment
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTakenError, Target
from kbackup.errors import CorruptError, StoreError
from kbackup.kafka.client.client import Properties
from kbackup.kafka.consume.read import RangeReader, Vanished
from kbackup.kafka.kernel import Kernel, selected_kernel
from kbackup.spark.progress import ProgressSender
from kbackup.store.base import Store
from kbackup.types import OffsetRange, RecordBlock, TopicPartition


class LastRead(NamedTuple):
    """The last record of a range, as it was read from the source."""

    tp: TopicPartition
    record: LastRecord


_HELD_BYTES = (
    64 << 20
)  # blocks of small partitions that are read together, before they are written one by one

_WRITERS = 8
_SPARE_NAMES = 100
"""A file name has at most 255 bytes."""


@dataclass(frozen=True)
class BackupWork:
    """What every task of a run needs. `incarnations` names the folder of each topic; `since` is when this run
    began, in seconds by the store's clock. `salvage`: every run that ever wrote read records alike."""

    source: Properties = field(repr=False)
    store: Store
    isolation: str
    group: str
    segment_bytes: int
    compression: str
    poll_timeout: float
    incarnations: dict[str, int]
    since: float
    salvage: bool

    def target(self, tp: TopicPartition, spare: int = 0) -> Target:
        return Target(
            tp.topic, self.incarnations[tp.topic], tp.partition, self.segment_bytes, self.compression, spare
        )

    def __call__(
        self, task: Sequence[OffsetRange], progress: ProgressSender
    ) -> Iterator[Segment | LastRead | Vanished | Kernel]:
        """`task` has one range, or several small ones of different partitions."""
        yield selected_kernel()
        reader = RangeReader(self.source, self.isolation, self.group, self.poll_timeout, len(task))
        try:
            if len(task) == 1:
                yield from self._write(reader, task[0], [], False, progress)
            else:
                yield from self._together(reader, task, progress)
            yield from dict.fromkeys(reader.vanished)
        finally:
            reader.close()

    def _together(
        self, reader: RangeReader, task: Sequence[OffsetRange], progress: ProgressSender
    ) -> Iterator[Segment | LastRead]:
        """Small ranges at once into memory, then written by a few threads, since that is all waiting for the store;
        where they turn out not to be small, each one after the other."""
        held: dict[TopicPartition, list[RecordBlock]] = {r.tp: [] for r in task}
        size, whole = 0, True
        for tp, block in reader.read(task):
            held[tp].append(block)
            size += block.nbytes
            progress.add(len(block), block.nbytes)
            if size > _HELD_BYTES:
                whole = False
                break
        if not whole:
            for wanted in task:
                yield from self._write(reader, wanted, held.pop(wanted.tp), False, progress)
            return
        with ThreadPoolExecutor(_WRITERS, "kbackup-write") as pool:
            tries = pool.map(lambda wanted: self._try(reader, wanted, held.pop(wanted.tp)), task)
            for wanted, (segments, taken) in zip(task, tries, strict=True):
                yield from segments
                if taken is not None:
                    found, rest, spare = self._pass_taken(wanted, taken, 0)
                    yield from found
                    yield from self._write(reader, rest, [], False, progress, spare)

    def _write(
        self,
        reader: RangeReader,
        wanted: OffsetRange,
        blocks: list[RecordBlock],
        whole: bool,
        progress: ProgressSender,
        spare: int = 0,
    ) -> Iterator[Segment | LastRead]:
        """`blocks` are what is read already of the range; `whole` says that this is all of it."""
        while True:
            try:
                yield from self._segments(
                    reader, wanted, self._blocks(reader, wanted, blocks, whole, progress), spare
                )
            except SegmentTakenError as taken:
                found, wanted, spare = self._pass_taken(wanted, taken, spare)
            else:
                return
            yield from found
            blocks, whole = [], False

    def _try(
        self, reader: RangeReader, wanted: OffsetRange, blocks: list[RecordBlock]
    ) -> tuple[list[Segment | LastRead], SegmentTakenError | None]:
        """The segments of a range that is read whole, and the one on the way that is there already."""
        segments: list[Segment | LastRead] = []
        try:
            for segment in self._segments(reader, wanted, blocks):
                segments.append(segment)
        except SegmentTakenError as taken:
            return segments, taken
        return segments, None

    def _segments(
        self, reader: RangeReader, wanted: OffsetRange, blocks: Iterable[RecordBlock], spare: int = 0
    ) -> Iterator[Segment | LastRead]:
        with PartitionWriter(self.store, self.target(wanted.tp, spare)) as writer:
            at, last = wanted.start - 1, None
            for block in blocks:
                if _loss_between(reader.vanished, wanted.tp, at, int(block.offsets[0])):
                    # whoever takes the segment over after a crash must come upon the loss as well
                    yield from writer.finish()
                last = last_of(block)  # before its buffer is used again
                yield from writer.append(block)
                at = last.offset
            yield from writer.finish()
        if last is not None:
            epoch = reader.epochs.get(wanted.tp, -1)
            yield LastRead(wanted.tp, with_epoch(last, epoch))

    def _blocks(
        self,
        reader: RangeReader,
        wanted: OffsetRange,
        held: list[RecordBlock],
        whole: bool,
        progress: ProgressSender,
    ) -> Iterator[RecordBlock]:
        yield from held
        if whole:
            return
        start = int(held[-1].offsets[-1]) + 1 if held else wanted.start
        for _, block in reader.read([wanted._replace(start=start)]):
            progress.add(len(block), block.nbytes)
            yield block

    def _pass_taken(
        self, wanted: OffsetRange, taken: SegmentTakenError, spare: int
    ) -> tuple[list[Segment], OffsetRange, int]:
        """How to go on where the name of a segment is taken: the segment if another attempt of this run wrote it, the
        rest of the range, and the spare number of the names there.

        An orphan of an earlier run stays: nobody deletes or replaces what lies beyond an end, so no run that slept can
        hit a segment of a later one. The segment gets another name.
        """
        if self.salvage and self.store.stat(taken.key).modified >= self.since:
            with suppress(CorruptError):
                found = salvage_segment(self.store, self.target(wanted.tp, spare), taken.key)
                if found.last < wanted.end:
                    return [found], wanted._replace(start=found.last + 1), spare
        if spare == _SPARE_NAMES:
            raise StoreError(
                f"object {taken.key} and {spare} others of interrupted runs are in the way",
                "delete them by hand while nothing writes to the archive",
            )
        return [], wanted._replace(start=taken.first), spare + 1


def _loss_between(vanished: Sequence[Vanished], tp: TopicPartition, last: int, first: int) -> bool:
    return any(v.tp == tp and last < v.end <= first for v in vanished)
