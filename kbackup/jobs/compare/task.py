"""Compare partitions of an archive with partitions of a cluster, in a Spark task of `verify --against`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from kbackup.archive import layout
from kbackup.archive.restores.plan import UnitRange
from kbackup.jobs.compare.partition import PartitionComparer
from kbackup.jobs.compare.result import Comparison, TargetOffsets
from kbackup.jobs.compare.side import Open, Rules, Side
from kbackup.jobs.replay.prefetch import ahead
from kbackup.jobs.replay.read import read_range
from kbackup.kafka.client.client import Properties
from kbackup.kafka.consume.read import RangeReader
from kbackup.spark.progress import ProgressSender
from kbackup.store.base import Store
from kbackup.types import OffsetRange, RecordBlock

_AHEAD = 1  # blocks of the archive that wait while one is compared


@dataclass(frozen=True, slots=True)
class ComparedPartition:
    """A partition of the archive from source offset `first` on, and the offsets [`start`, `end`) of the target.

    `start` = `end` where the target partition does not exist. `target_offsets` as in `PartitionComparer`.
    """

    archived: UnitRange
    first: int
    start: int
    end: int
    stamps: bool
    target_offsets: TargetOffsets | None


@dataclass(frozen=True)
class CompareWork:
    """Function of all tasks.

    `role` is the cluster's; `restored`: the cluster's records come from a restore. `timeout` in seconds, as
    `RangeReader` has it.
    """

    cluster: Properties = field(repr=False)
    role: str
    isolation: str
    restored: bool
    store: Store
    show: int
    timeout: float

    def __call__(self, task: tuple[ComparedPartition, ...], progress: ProgressSender) -> Iterator[Comparison]:
        group = layout.reader_group("verify", uuid.uuid4().hex)
        reader = RangeReader(self.cluster, self.isolation, group, self.timeout, role=self.role)
        try:
            for part in task:
                yield self._compare(part, reader, progress)
        finally:
            reader.close()

    def _compare(
        self, compared: ComparedPartition, reader: RangeReader, progress: ProgressSender
    ) -> Comparison:
        part = compared.archived
        archive = Side(self._archived(part), compared.first, Rules(compared.stamps, self.restored))
        topic = Side(topic_blocks(reader, compared), compared.start, Rules(compared.stamps))
        try:
            comparing = PartitionComparer(archive, topic, compared.target_offsets, self.show, progress.add)
            return comparing.run(part.topic, part.partition, part.target)
        finally:
            archive.close()
            topic.close()

    def _archived(self, part: UnitRange) -> Open:
        def blocks(start: int) -> Iterator[RecordBlock]:
            for piece in read_range(self.store, part, start):
                if piece.block is not None:
                    yield piece.block

        return lambda start: ahead(blocks(start), _AHEAD)


def topic_blocks(reader: RangeReader, compared: ComparedPartition) -> Open:
    """Return a function that reads the target's records; `reader` reads one partition at a time."""

    def blocks(start: int) -> Iterator[RecordBlock]:
        for _, block in reader.read([OffsetRange(*compared.archived.tp, start, compared.end)]):
            yield block

    return blocks
