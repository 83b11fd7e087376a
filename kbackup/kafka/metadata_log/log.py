"""The files of a metadata log: segments `<base offset>.log` and snapshots `<end offset>-<epoch>.checkpoint`.

A snapshot holds all that the records below its end offset add up to. A log is its newest snapshot and every record
from there on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kbackup.errors import CorruptError, UnreachableError, UsageError
from kbackup.kafka.metadata_log.batches import Batch, LogRecord, TornError, read_batches
from kbackup.kafka.metadata_log.cursor import HINT, corrupt

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_WHOLE = "copy the whole folder __cluster_metadata-0 of a controller, its newest .checkpoint first"


class Snapshot(NamedTuple):
    """A snapshot's file. It stands for the records below `end_offset`."""

    end_offset: int
    epoch: int
    path: Path


@dataclass
class MetadataLog:
    """A folder `__cluster_metadata-0`, read by iterating over `snapshot_records` and then `later_records`.

    `end_offset` and `epoch` are those after the last record read so far. `torn` names the file and the byte where the
    log ends within a batch, if it does. Only the newest segment may. Records at the end may be ones that the quorum
    has not committed: no file says which.
    """

    folder: Path
    snapshot: Snapshot | None
    segments: list[tuple[int, Path]]
    end_offset: int = 0
    epoch: int = 0
    torn: str | None = field(default=None)

    def snapshot_records(self) -> Iterator[LogRecord]:
        """Yield the newest snapshot's records. Their offsets are those within the snapshot."""
        if self.snapshot is not None:
            self.end_offset, self.epoch = self.snapshot.end_offset, self.snapshot.epoch
            yield from read_snapshot(self.snapshot.path)

    def later_records(self) -> Iterator[LogRecord]:
        """Yield the records of the segments from the snapshot's end on. `CorruptError` where one is missing."""
        start = 0 if self.snapshot is None else self.snapshot.end_offset
        self.end_offset = start
        for number, (base_offset, path) in enumerate(self.segments):
            following = self.segments[number + 1 : number + 2]
            if following and following[0][0] <= start:
                continue  # the snapshot has all of it
            yield from self._segment(path, base_offset, start, newest=not following)

    def _segment(self, path: Path, base_offset: int, start: int, newest: bool) -> Iterator[LogRecord]:
        expected = base_offset
        if base_offset > self.end_offset:
            raise CorruptError(
                f"{self.folder}: the records from offset {self.end_offset} to {base_offset} are missing",
                _WHOLE,
            )
        try:
            for batch in read_segment(path):
                if batch.base_offset != expected:
                    problem = f"a batch at offset {batch.base_offset}, after the one that ends at {expected}"
                    raise corrupt(path.name, batch.position, problem)
                expected = batch.last_offset + 1
                for record in batch.records:
                    if record.offset >= start:
                        yield record
                        self.end_offset, self.epoch = record.offset + 1, record.epoch
        except TornError as torn:
            if not newest:
                raise corrupt(path.name, torn.position, "the file ends within a batch") from None
            self.torn = f"{path.name}: byte {torn.position}"


def open_log(folder: Path) -> MetadataLog:
    """Return the log in a folder: its newest snapshot, its segments. `UsageError` where there is neither."""
    snapshots, segments = [], []
    with file_errors(folder):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in paths:
        if match := _SNAPSHOT.fullmatch(path.name):
            snapshots.append(Snapshot(int(match[1]), int(match[2]), path))
        elif match := _SEGMENT.fullmatch(path.name):
            segments.append((int(match[1]), path))
    if not snapshots and not segments:
        raise UsageError(f"{folder}: no metadata log of a controller", "name a copy of __cluster_metadata-0")
    return MetadataLog(folder, max(snapshots, default=None), segments)


def read_segment(path: Path) -> Iterator[Batch]:
    """Yield a segment's batches. `TornError` where the last one is cut off."""
    with file_errors(path):
        file = path.open("rb")
    with file:
        yield from read_batches(file, path.name, path.stat().st_size)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an error of the file system into `UnreachableError`."""
    try:
        yield
    except OSError as error:
        hint = "let kbackup's user read the files; if the controller has just deleted one, run again"
        raise UnreachableError(f"{path}: {error.strerror}", hint) from None


def read_snapshot(path: Path) -> Iterator[LogRecord]:
    """Yield a snapshot's records, from its header to its footer. `CorruptError` where it has no footer."""
    last = None
    try:
        for batch in read_segment(path):
            for record in batch.records:
                if last is None and record.record.name != "SnapshotHeaderRecord":
                    raise corrupt(path.name, 0, f"a snapshot begins with a {record.record.name}")
                last = record.record.name
                yield record
    except TornError as torn:
        raise corrupt(path.name, torn.position, "the file ends within a batch") from None
    if last != "SnapshotFooterRecord":
        raise CorruptError(f"{path.name}: the snapshot has no footer", HINT)
