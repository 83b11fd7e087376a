"""Compare whole compacted logs with the archive, to find records whose keys were deleted at the source unseen.

A key was deleted if its last archived record has a value, and the log has no record of the key any more although it
still reaches back to that record: only a later record of the key lets compaction remove one, so there was a deletion,
which compaction has removed as well. Below the log's start nobody can tell a deletion from retention, so those records
stay.

A task holds one partition's keys as digests, in files, and compares one bucket of them at a time. Keys that share a
digest count as one key: then a deleted key may stay in restores, and no other record is ever left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kbackup.archive import layout
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment, sum_of
from kbackup.archive.segments.window import ranges_of
from kbackup.errors import CorruptError
from kbackup.formats.key_digests import KEYS, keys_of
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import Int64Array, OffsetRange, Offsets, TopicPartition

_BUCKET = 4_000_000  # records, of 17 bytes, that are sorted at once
_PASSES = 10

Keys = npt.NDArray[np.void]
"""Rows of `formats.key_digests.KEYS`."""


class CheckedPartition(NamedTuple):
    """A partition to recheck. The archive has its offsets [`start`, `end`) in `segments`, apart from `held`: what the
    restore point leaves to the next one, and what was erased."""

    tp: TopicPartition
    incarnation: int
    segments: tuple[Segment, ...]
    start: int
    end: int
    held: Offsets


class DeletedKeys(NamedTuple):
    """The archived records with a value whose keys were deleted, as ranges of offsets. `failure` is the reason why the
    log could not be compared with the archive: then nothing is known."""

    tp: TopicPartition
    incarnation: int
    offsets: Offsets = ()
    failure: str = ""


@dataclass(frozen=True)
class RecheckWork:
    """The function of all tasks. With `exact`, the archive has every record that the log shows below the archived
    end."""

    source: Properties = field(repr=False)
    store: Store
    isolation: str
    group: str
    poll_timeout: float
    exact: bool

    def __call__(self, task: CheckedPartition, progress: ProgressSender) -> Iterator[DeletedKeys]:
        with ExitStack() as stack:
            buckets = 1 + sum_of(task.segments, "count") // _BUCKET
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="kbackup-recheck-")))
            archived = stack.enter_context(DigestFiles(folder / "archived", buckets))
            present = stack.enter_context(DigestFiles(folder / "present", buckets))
            try:
                self._read_archive(task, archived, progress)
            except CorruptError as error:
                yield DeletedKeys(task.tp, task.incarnation, failure=error.message)
                return
            log_start = self._read_log(task, present, progress)
            yield self._compare(task, archived, present, log_start)

    def _read_archive(self, task: CheckedPartition, archived: DigestFiles, progress: ProgressSender) -> None:
        for segment in task.segments:
            for block in read_segment(self.store, segment):
                keys = keys_of(block, segment.key)
                inside = (keys["offset"] >= task.start) & (keys["offset"] < task.end)
                archived.add(keys[inside])
                progress.add(len(block), block.nbytes)

    def _read_log(self, task: CheckedPartition, present: DigestFiles, progress: ProgressSender) -> int:
        """Read the log up to its end at that time, and return its start then.

        Compaction removes a record only if the log has a later one of its key. A reader that goes forward meets the
        later one, if it follows the log's end to the last: hence the passes. To be missed, a record of the last pass
        would have to be written, leave the active segment and be compacted within that pass.
        """
        cluster = Cluster(self.source, "source")
        tp = task.tp
        at = cluster.log_starts([tp])[tp]
        with closing(RangeReader(self.source, self.isolation, self.group, self.poll_timeout)) as reader:
            for _ in range(_PASSES):
                end = cluster.log_ends([tp], self.isolation)[tp]
                if end <= at:
                    break
                for _, block in reader.read([OffsetRange(*tp, at, end)]):
                    present.add(keys_of(block))
                    progress.add(len(block), block.nbytes)
                at = end
        # Asked again: what retention deleted meanwhile is not in `present`, and must not count as deleted.
        return cluster.log_starts([tp])[tp]

    def _compare(
        self, task: CheckedPartition, archived: DigestFiles, present: DigestFiles, log_start: int
    ) -> DeletedKeys:
        offsets: list[Int64Array] = []
        compared = OffsetRange(*task.tp, max(task.start, log_start), task.end)
        compacted: list[tuple[int, int]] = []
        for segment in task.segments:
            if layout.compacted_of(segment.key):
                compacted.append((segment.first, segment.last + 1))
        for bucket in range(archived.buckets):
            ours = archived.load(bucket)
            theirs = present.load(bucket)
            strange = strangers(ours, theirs, compared, task.held, compacted)
            if self.exact and len(strange):
                # The log is another one than the archived log: what it lacks says nothing of deletions.
                failure = f"the log has a record at offset {int(strange[0])} that the archive lacks"
                return DeletedKeys(task.tp, task.incarnation, failure=failure)
            offsets.append(deleted_records(ours, theirs, log_start))
        deleted = np.sort(np.concatenate(offsets))
        return DeletedKeys(task.tp, task.incarnation, ranges_of(deleted))


class DigestFiles:
    """Keys in files of a folder, one file for each bucket of digests: both sides have a key in the same bucket."""

    def __init__(self, folder: Path, buckets: int) -> None:
        folder.mkdir()
        self.buckets = buckets
        self._paths = [folder / str(number) for number in range(buckets)]
        self._files = [path.open("wb") for path in self._paths]

    def __enter__(self) -> DigestFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def add(self, keys: Keys) -> None:
        if self.buckets == 1:
            self._files[0].write(keys.tobytes())
            return
        bucket = keys["digest"] % np.uint64(self.buckets)
        for number in np.unique(bucket).tolist():
            self._files[number].write(keys[bucket == number].tobytes())

    def load(self, bucket: int) -> Keys:
        self._files[bucket].close()
        return np.fromfile(self._paths[bucket], KEYS)


def deleted_records(archived: Keys, present: Keys, log_start: int) -> Int64Array:
    """Return the offsets of the archived values whose keys were deleted, in no order. `present` are the keys in the
    log, which begins at `log_start`."""
    order = np.lexsort((archived["offset"], archived["digest"]))
    records = archived[order]
    digests = records["digest"]
    # Sorted so, the last record of each key is the one before another digest begins.
    is_last = np.ones(len(records), np.bool_)
    is_last[:-1] = digests[1:] != digests[:-1]
    last = records[is_last]
    is_deleted = last["has_value"] & (last["offset"] >= log_start) & ~np.isin(last["digest"], present["digest"])
    deleted = last["digest"][is_deleted]
    # Earlier values of the key as well: without the last one, a restore would bring back the one before.
    chosen = np.isin(digests, deleted) & records["has_value"]
    offsets: Int64Array = records["offset"][chosen].astype(np.int64)
    return offsets


def strangers(
    archived: Keys, present: Keys, compared: OffsetRange, held: Offsets, compacted: Sequence[tuple[int, int]] = ()
) -> Int64Array:
    """Return the offsets inside `compared` and outside `held` at which the log has a record that the archive lacks, or
    has with another key. Inside `compacted`, the archive may lack records of keys of which it has others."""
    inside = (present["offset"] >= compared.start) & (present["offset"] < compared.end)
    for start, end in held:
        inside &= (present["offset"] < start) | (present["offset"] >= end)
    is_superseded = np.zeros(len(present), np.bool_)
    for start, end in compacted:
        is_superseded |= (present["offset"] >= start) & (present["offset"] < end)
    if compacted:
        is_superseded &= ~np.isin(present["offset"], archived["offset"])
        is_superseded &= np.isin(present["digest"], archived["digest"])
    seen = present[inside & ~is_superseded]
    offsets: Int64Array = seen["offset"].astype(np.int64)
    known = archived[np.argsort(archived["offset"])]
    if not len(known):
        return offsets
    # Offsets behind the last known one are compared with that: they differ from it.
    at = np.minimum(np.searchsorted(known["offset"], offsets), len(known) - 1)
    is_other = (known["offset"][at] != offsets) | (known["digest"][at] != seen["digest"])
    strange: Int64Array = offsets[is_other]
    return strange
