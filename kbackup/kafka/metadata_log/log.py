"""The files of a metadata log: segments `<base offset>.log` and snapshots `<end offset>-<epoch>.checkpoint`.

A snapshot holds all that the records below its end offset add up to. A log is its newest snapshot and every record
from there on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kbackup.errors import CorruptError, UnreachableError, UsageError
from kbackup.kafka.metadata_log.batches import Batch, LogRecord, TornError, read_batches
from kbackup.kafka.metadata_log.cursor import HINT, corrupt

PARTITION = "__cluster_metadata-0"
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_WHOLE = "copy the whole folder __cluster_metadata-0 of a controller, its newest .checkpoint first"
_INDEX_ENTRY = 8  # bytes: an offset after the segment's first, and a position in it
_TORN = "the file ends within a batch"


class Snapshot(NamedTuple):
    """A snapshot's file. It stands for the records below `end_offset`."""

    end_offset: int
    epoch: int
    path: Path


@dataclass
class MetadataLog:
    """A folder `__cluster_metadata-0`, read by iterating over `snapshot_records` and then `later_records`.

    Once all is read, `end_offset` and `epoch` are those of the log's end, and `torn` names the file and the byte where
    it ends within a batch, if it does: only the newest segment may. Records at the end may be ones that the quorum has
    not committed: no file says which.
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
            self.epoch = self.snapshot.epoch
            yield from read_snapshot(self.snapshot.path)

    def later_records(self, start: int | None = None) -> Iterator[LogRecord]:
        """Yield the records of the segments from `start` on, by default the snapshot's end. `CorruptError` where one is
        missing."""
        snapshot_end = 0 if self.snapshot is None else self.snapshot.end_offset
        start = snapshot_end if start is None else start
        ends = [*(base_offset for base_offset, _ in self.segments[1:]), None]
        due = [each for each, end in zip(self.segments, ends, strict=False) if end is None or end > start]
        end, epoch = min(start, due[0][0]) if due else 0, 0
        for base_offset, path in due:
            if base_offset > end:
                raise CorruptError(
                    f"{self.folder}: the records from offset {end} to {base_offset} are missing", _WHOLE
                )
            if base_offset < end:
                raise corrupt(path.name, 0, f"the segment before it ends at {end}")
            for batch in self._batches(path, newest=path == due[-1][1]):
                if batch.base_offset != end:
                    raise corrupt(path.name, batch.position, _gap(batch, end))
                if batch.epoch < epoch:
                    problem = f"a batch of epoch {batch.epoch} after one of {epoch}, as of another log"
                    raise corrupt(path.name, batch.position, problem)
                end, epoch = batch.last_offset + 1, batch.epoch
                yield from (record for record in batch.records if record.offset >= start)
        if self.snapshot is not None and end < snapshot_end:
            raise CorruptError(
                f"{self.folder}: the log ends at offset {end}, before its snapshot {self.snapshot.path.name}: "
                "later records are missing",
                _WHOLE,
            )
        self.end_offset, self.epoch = end, epoch if end > start else self.epoch

    def _batches(self, path: Path, newest: bool) -> Iterator[Batch]:
        indexed = _last_indexed(path)  # before the batches: a running controller adds to both
        last = 0
        try:
            for batch in read_segment(path):
                last = batch.position
                yield batch
            if last < indexed:
                raise corrupt(path.name, last, f"the last batch, but the index has one at byte {indexed}")
        except TornError as torn:
            if not newest:
                raise corrupt(path.name, torn.position, _TORN) from None
            self.torn = f"{path.name}: byte {torn.position}"


def find_log(folder: Path) -> Path:
    """Return the folder of the log in `metadata.log.dir`, which may also be `__cluster_metadata-0` itself."""
    with file_errors(folder):
        return folder / PARTITION if (folder / PARTITION).is_dir() else folder


def read_identity(log: Path) -> dict[str, str]:
    """Return meta.properties beside a log, such as node.id and cluster.id; nothing where it was not copied."""
    path = log.parent / "meta.properties"
    with file_errors(path):
        lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


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
    with file_errors(path), path.open("rb") as file:
        yield from read_batches(file, path.name, path.stat().st_size)


def _last_indexed(path: Path) -> int:
    """Return the position of the last batch that a segment's index names; 0 without one, or if it was not copied."""
    index = path.with_suffix(".index")
    with file_errors(index):
        entries = index.read_bytes().rstrip(b"\0") if index.is_file() else b""
    end = (len(entries) + _INDEX_ENTRY - 1) // _INDEX_ENTRY * _INDEX_ENTRY
    return int.from_bytes(entries.ljust(end, b"\0")[end - 4 :])


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an error of the file system into `UnreachableError`."""
    try:
        yield
    except OSError as error:
        hint = "let kbackup's user read the files; if the controller has just deleted one, run again"
        raise UnreachableError(f"{path}: {error.strerror}", hint) from None


def read_snapshot(path: Path) -> Iterator[LogRecord]:
    """Yield the records of a snapshot, from its header to its footer. `CorruptError` where it is not whole."""
    match = _SNAPSHOT.fullmatch(path.name)
    for batch in check_snapshot(read_segment(path), path.name, int(match[2]) if match else None):
        yield from batch.records


def check_snapshot(batches: Iterable[Batch], name: str, epoch: int | None = None) -> Iterator[Batch]:
    """Yield the batches of a snapshot: offsets from 0 without a gap, the header first, the footer last, one epoch.

    `CorruptError` for anything else. `epoch` is the one in the file's name."""
    end, last = 0, ""
    try:
        for batch in batches:
            if batch.base_offset != end:
                raise corrupt(name, batch.position, _gap(batch, end))
            if epoch is not None and batch.epoch != epoch:
                problem = f"a batch of epoch {batch.epoch} in a snapshot of epoch {epoch}"
                raise corrupt(name, batch.position, problem)
            for offset, _, _, record in batch.records:
                if (record.name == "SnapshotHeaderRecord") != (offset == 0) or last == "SnapshotFooterRecord":
                    problem = f"the snapshot has a {record.name} at offset {offset}"
                    raise corrupt(name, batch.position, problem)
                last = record.name
            end = batch.last_offset + 1
            yield batch
    except TornError as torn:
        raise corrupt(name, torn.position, _TORN) from None
    if last != "SnapshotFooterRecord":
        raise CorruptError(f"{name}: the snapshot has no footer", HINT)


def _gap(batch: Batch, end: int) -> str:
    return f"a batch at offset {batch.base_offset}, after the one that ends at {end}"
