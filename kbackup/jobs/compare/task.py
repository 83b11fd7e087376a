"""The task of `verify --against`: some partitions of an archive, each compared with a partition of a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from kbackup.archive.restores.plan import UnitPart
from kbackup.jobs.compare.partition import Comparing
from kbackup.jobs.compare.result import Comparison, Places
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
class ComparedPart:
    """A part of a plan from source offset `first` on, and the offsets [`start`, `end`) of its target partition;
    `start` = `end` where that isn't there. `places` as in `Comparing`."""

    part: UnitPart
    first: int
    start: int
    end: int
    stamps: bool
    places: Places | None


@dataclass(frozen=True)
class CompareWork:
    """What every task needs. `role` says which cluster it is; `restored` that its records went through a restore.
    `timeout` in seconds as `RangeReader` has it."""

    cluster: Properties = field(repr=False)
    role: str
    isolation: str
    restored: bool
    store: Store
    show: int
    timeout: float

    def __call__(self, task: tuple[ComparedPart, ...], progress: ProgressSender) -> Iterator[Comparison]:
        group = f"kbackup-verify-{uuid.uuid4().hex}"
        reader = RangeReader(self.cluster, self.isolation, group, self.timeout, role=self.role)
        try:
            for part in task:
                yield self._compare(part, reader, progress)
        finally:
            reader.close()

    def _compare(self, wanted: ComparedPart, reader: RangeReader, progress: ProgressSender) -> Comparison:
        part = wanted.part
        archive = Side(self._archived(part), wanted.first, Rules(wanted.stamps, self.restored))
        topic = Side(topic_blocks(reader, wanted), wanted.start, Rules(wanted.stamps))
        try:
            comparing = Comparing(archive, topic, wanted.places, self.show, progress.add)
            return comparing.run(part.topic, part.partition, part.target)
        finally:
            archive.close()
            topic.close()

    def _archived(self, part: UnitPart) -> Open:
        def blocks(start: int) -> Iterator[RecordBlock]:
            for piece in read_range(self.store, part, start):
                if piece.block is not None:
                    yield piece.block

        return lambda start: ahead(blocks(start), _AHEAD)


def topic_blocks(reader: RangeReader, wanted: ComparedPart) -> Open:
    """The target's records by `reader`, which reads one partition at a time."""

    def blocks(start: int) -> Iterator[RecordBlock]:
        for _, block in reader.read([OffsetRange(*wanted.part.tp, start, wanted.end)]):
            yield block

    return blocks
