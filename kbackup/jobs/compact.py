"""Leave superseded records out of the compacted topics of an archive: a later record of the same key is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive.catalog.compacting import Candidate, Superseded, candidates, compactions
from kbackup.archive.catalog.rewriting import NOTHING_ERASED, Swap
from kbackup.archive.models import Metadata
from kbackup.archive.reader import Archive
from kbackup.archive.segments.anew import write_anew
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment
from kbackup.formats.block import select_records
from kbackup.formats.fields import FieldSpans, gather, locate_fields
from kbackup.formats.key_digests import keys_of
from kbackup.jobs.spread import TaskProgress
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, Int64Array, RecordBlock

_THREADS = 4
_AT_ONCE = 2_000_000
"""Records whose keys are in memory at once. A larger partition is read once for each so many."""

Seen = Callable[[int, int], None]
"""Called with the number of records that were looked at, and their bytes."""


def cleanup_policies(metadata: Metadata) -> dict[str, str]:
    """Return the clean-up policy of each topic. A topic without one has the policy of the brokers; if brokers differ, a
    policy that compacts counts."""
    default = "delete"
    for config in metadata.broker_configs or ():
        if config.name == "log.cleanup.policy" and config.value and "compact" in config.value:
            default = config.value
            break
    return {topic.name: topic.configs.get("cleanup.policy") or default for topic in metadata.topics}


@dataclass
class _Policies:
    """Which topics are compacted, by the settings of restore points. Each document is read once, and each answer is
    found once: many partitions ask."""

    archive: Archive
    _last_points: Mapping[Incarnation, int] = field(init=False)
    _answers: dict[tuple[Incarnation, int], bool] = field(default_factory=dict)
    _topics: dict[int, Mapping[Incarnation, int]] = field(default_factory=dict)
    _policies: dict[int, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last_points = self.archive.state.last_points()

    def is_compacted(self, incarnation: Incarnation, since: int) -> bool:
        """Return whether a topic is compacted by the first restore point that has it from `since` on, and by the last.
        In one that is not, somebody may want each record; so a topic whose settings are not known is not compacted."""
        asked = (incarnation, since)
        if asked not in self._answers:
            self._answers[asked] = self._find(incarnation, since)
        return self._answers[asked]

    def _find(self, incarnation: Incarnation, since: int) -> bool:
        last = self._last_points.get(incarnation)
        if last is None:
            return False
        # An expired restore point may be the oldest that an undo brings back: the first that is listed has to do.
        numbers = self.archive.state.numbers
        numbers = numbers[(numbers >= since) & (numbers <= last)]
        ends = {int(number) for number in numbers[[0, -1]]} if len(numbers) else {last}
        return all(self._is_compacted_at(incarnation, number) for number in ends)

    def _is_compacted_at(self, incarnation: Incarnation, number: int) -> bool:
        if number not in self._topics:
            topics = self.archive.manifest(number).incarnations()
            self._topics[number] = {key: topic.captured for key, topic in topics.items()}
        captured = self._topics[number].get(incarnation)
        if captured is None:
            return False
        if captured not in self._policies:
            self._policies[captured] = cleanup_policies(self.archive.metadata(captured))
        policy = self._policies[captured].get(incarnation[0], "")
        return "compact" in policy.split(",")


def due(archive: Archive, kept: set[int], ends: Mapping[IncarnationPartition, int]) -> list[Candidate]:
    """Return the partitions in which a compaction has to look, by the catalog and the settings of topics alone."""
    policies = _Policies(archive)
    return list(candidates(archive.state, kept, ends, policies.is_compacted))


class Compacted(NamedTuple):
    """Segments that were written anew without `superseded` records, and the swap that puts the new one in their place;
    None if nothing was written."""

    segments: tuple[Segment, ...]
    superseded: int
    swap: Swap | None


@dataclass(frozen=True)
class CompactWork:
    """Looks through partitions, and writes segments anew without their superseded records, up to `largest` bytes. With
    the number of a `rewrite` for their names; without one (0) nothing is written."""

    store: Store
    largest: int
    rewrite: int

    def __call__(self, candidate: Candidate, progress: TaskProgress) -> Iterator[Compacted]:
        superseded = find_superseded(self.store, candidate.segments, progress.add)
        for each in compactions(candidate, superseded, self.largest):
            swap: Swap | None = None
            if self.rewrite:
                new = write_anew(self.store, each.segments, each.superseded, self.rewrite, each.point)
                swap = Swap(each.segments, new, NOTHING_ERASED)
            yield Compacted(each.segments, len(each.superseded), swap)


class _Keyed(NamedTuple):
    """Records with a key: their keys, offsets and lengths in bytes."""

    keys: Any
    offsets: Int64Array
    lengths: Int64Array


def find_superseded(store: Store, segments: Sequence[Segment], seen: Seen, at_once: int = _AT_ONCE) -> Superseded:
    """Return the records of a partition that have a later one of the same key. Keys are compared byte by byte; a record
    without a key has none. `segments` are all of the partition that count.

    Keys are looked at in groups of about `at_once`, chosen by digest, and the segments are read once for each group.
    """
    total = sum(segment.count for segment in segments)
    groups = 1 + total // at_once
    offsets: list[Int64Array] = [np.empty(0, np.int64)]
    lengths: list[Int64Array] = [np.empty(0, np.int64)]
    for group in range(groups):
        read = partial(_keyed_records, store, groups, group, seen if group == 0 else _unseen)
        with ThreadPoolExecutor(_THREADS, "compact") as threads:
            parts = [part for of_segment in threads.map(read, segments) for part in of_segment]
        found = _superseded(parts)
        offsets.append(found.offsets)
        lengths.append(found.lengths)
    joined = np.concatenate(offsets)
    order = np.argsort(joined)
    return Superseded(joined[order], np.concatenate(lengths)[order])


def _unseen(records: int, size: int) -> None:
    """Count nothing: these records were counted when they were read before."""


def _keyed_records(store: Store, groups: int, group: int, seen: Seen, segment: Segment) -> list[_Keyed]:
    """Return the records of a segment whose keys are of a group."""
    parts: list[_Keyed] = []
    for block in read_segment(store, segment):
        seen(len(block), block.nbytes)
        chosen = block if groups == 1 else _of_group(block, segment.key, groups, group)
        fields = locate_fields(chosen, segment.key, 0)
        has_key = np.flatnonzero(fields.keys.length >= 0)
        spans = FieldSpans(fields.keys.start[has_key], fields.keys.length[has_key])
        keys = gather(chosen.data, spans)
        parts.append(_Keyed(keys, chosen.offsets[has_key], chosen.lengths[has_key].astype(np.int64)))
    return parts


def _of_group(block: RecordBlock, name: str, groups: int, group: int) -> RecordBlock:
    """Return the records of a block whose keys have digests of a group. Equal keys are of one group."""
    keys = keys_of(block, name)
    offsets = keys["offset"][keys["digest"] % np.uint64(groups) == group]
    return select_records(block, np.isin(block.offsets, offsets))


def _superseded(parts: Sequence[_Keyed]) -> Superseded:
    """Return the records that are not the last of their key."""
    if not parts:
        none = np.empty(0, np.int64)
        return Superseded(none, none)
    offsets = np.concatenate([part.offsets for part in parts])
    lengths = np.concatenate([part.lengths for part in parts])
    keys = pa.chunked_array([part.keys for part in parts], pa.large_binary())
    by_key: Any = pa.table([keys, pa.chunked_array([offsets])], ["key", "offset"]).group_by("key")
    last = by_key.aggregate([("offset", "max")])
    is_superseded = ~np.isin(offsets, last["offset_max"].to_numpy())
    return Superseded(offsets[is_superseded], lengths[is_superseded])
