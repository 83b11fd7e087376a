"""Units of a restore with the same offsets, made by hand: segments in a directory, and the logs that are to become.

As a program it fills the logs of a unit, so that a test can kill it: `python -m tests.support.same_offsets FOLDER`.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import LogBounds, SameOffsets, UnitRange
from kbackup.archive.segments.table import Segment
from kbackup.jobs.restore.same_offsets.task import SameOffsetsWork
from kbackup.jobs.restore.task import UnitResult
from kbackup.spark.tasks import ProgressSender
from kbackup.store.file import FileStore
from tests.support import made_segments
from tests.unit.formats.reference import Record

_DESCRIPTION = "unit.json"


@dataclass(frozen=True)
class MadeLog:
    """The log of a partition: the offsets of its records, and where it begins and ends."""

    offsets: Sequence[int]
    start: int
    end: int


@dataclass(frozen=True)
class MadeUnit:
    """A unit with the partitions of one topic. All tries of it share a producer id."""

    folder: str
    bootstrap: str
    target: str
    logs: Sequence[MadeLog]
    producer_id: int
    producer_epoch: int
    fill: Literal["markers", "aborted", "tombstones"] = "markers"

    @cached_property
    def store(self) -> FileStore:
        """The archive of this process: each writes the same segments, into a folder of its own."""
        return FileStore(Path(self.folder) / secrets.token_hex(8))

    @cached_property
    def ranges(self) -> tuple[UnitRange, ...]:
        ranges: list[UnitRange] = []
        for number, log in enumerate(self.logs):
            segments: Sequence[Segment] = ()
            if log.offsets:
                to = made_segments.target(partition=number, threshold=4000)
                segments = made_segments.write(self.store, to, log.offsets)
            made = UnitRange(
                topic=made_segments.TOPIC,
                partition=number,
                target=self.target,
                segments=tuple(segments),
                log=LogBounds(start=log.start, end=log.end),
            )
            ranges.append(made)
        return tuple(ranges)

    def records(self, number: int) -> list[Record]:
        """Return the records of a partition, as a consumer is to get them."""
        return made_segments.records(self.logs[number].offsets)

    def run(self) -> UnitResult:
        """Fill the logs, as a task does."""
        same = SameOffsets(fill=self.fill, producer_id=self.producer_id, producer_epoch=self.producer_epoch)
        target = {"bootstrap.servers": self.bootstrap}
        work = SameOffsetsWork(
            target=target, store=self.store, journal=RestoreJournal(self.store, self.target), same=same
        )
        (result,) = work([(0, self.ranges)], ProgressSender(None, 0))
        return result

    def describe(self) -> None:
        """Write down what the program needs."""
        (Path(self.folder) / _DESCRIPTION).write_text(json.dumps(asdict(self), default=list))


def _described(folder: Path) -> MadeUnit:
    told = json.loads((folder / _DESCRIPTION).read_text())
    logs = [MadeLog(**log) for log in told.pop("logs")]
    return MadeUnit(logs=logs, **told)


if __name__ == "__main__":
    result = _described(Path(sys.argv[1])).run()
    assert not result.failed, result.failed
