"""Offset syncs, from which MirrorMaker 2's own readers translate: made from the flow's offset map, thinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kbackup.archive.restores.remap import OffsetMap
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.internal.topics import InternalTopics
from kbackup.jobs.mirror.positions.translation import Maps
from kbackup.kafka.mirror_records import OffsetSync
from kbackup.types import Int64Array, TopicPartition

_EVEN = 32
"""Syncs at the end of a round with `offset.lag.max` between them; before those, the distance doubles from sync to sync.
Java's readers keep 64, ever sparser, so that more would be of no use to them."""


def emit_offset_syncs(
    flow: Flow,
    target: InternalTopics,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    maps: Maps,
) -> int:
    """Write the offset syncs of records that were applied since the last ones, and return their number.

    `positions` and `maps` are by remote partition. A partition whose position is that of the round before costs
    nothing. What a killed process did not write is made good: the topic itself says what the last sync was.
    """
    if not flow.emit_offset_syncs:
        return 0
    sources = {topic.remote: topic.source for topic in topics}
    due = {tp: p for tp, p in sorted(positions.items()) if tp.topic in sources and target.synced.get(tp) != p}
    last = target.sync_journal.last() if due else {}
    syncs: list[OffsetSync] = []
    for remote, position in due.items():
        runs = maps.partition(remote, position.incarnation)
        if runs is not None:
            tp = TopicPartition(sources[remote.topic], remote.partition)
            syncs += offset_syncs(tp, runs, last.get(OffsetSync(tp, 0, 0).key), flow.offset_lag_max)
    target.sync_journal.append(syncs)
    target.synced.update(due)
    return len(syncs)


def offset_syncs(tp: TopicPartition, runs: OffsetMap, last: OffsetSync | None, lag: int) -> list[OffsetSync]:
    """Return the syncs for records of `runs` behind the `last` sync: one every `lag` + 1 target offsets, and one for
    the last record. Where `last` is no record of `runs`, another log begins: its first record gets one, too."""
    if not len(runs.source):
        return []
    begins = np.concatenate(
        [[0], np.cumsum(runs.count)]
    )  # number of each run's first record, and of all records
    total = int(begins[-1])
    known = -1 if last is None else _number(runs, begins, last)
    base = int(runs.target[0]) if last is None or known < 0 else last.offset
    newest = int(runs.target[-1] + runs.count[-1]) - 1
    offsets = base + (lag + 1) * _steps((newest - base) // (lag + 1))
    at = np.maximum(np.searchsorted(runs.target, offsets, side="right") - 1, 0)
    numbers = begins[at] + np.clip(
        offsets - runs.target[at], 0, runs.count[at]
    )  # at the offset, or the next record
    candidates = np.concatenate([[known + 1] if known < 0 else [], numbers, [total - 1]]).astype(np.int64)
    chosen = np.unique(candidates[(candidates > known) & (candidates < total)])
    at = np.searchsorted(begins, chosen, side="right") - 1
    into = chosen - begins[at]
    pairs = zip((runs.source[at] + into).tolist(), (runs.target[at] + into).tolist(), strict=True)
    return [OffsetSync(tp, upstream, offset) for upstream, offset in pairs]


def _number(runs: OffsetMap, begins: Int64Array, sync: OffsetSync) -> int:
    """Return the number of the record of a sync among those of `runs`, -1 where it is none of them."""
    at = int(np.searchsorted(runs.source, sync.upstream, side="right")) - 1
    into = sync.upstream - int(runs.source[at])
    there = at >= 0 and into < runs.count[at] and int(runs.target[at]) + into == sync.offset
    return int(begins[at]) + into if there else -1


def _steps(count: int) -> Int64Array:
    """Return which of the numbers 1 to `count` get a sync, in order."""
    even = np.arange(max(1, count - _EVEN + 1), count + 1, dtype=np.int64)
    back = np.int64(_EVEN) << np.arange(58, dtype=np.int64)
    return np.concatenate([np.sort(count - back[back < count]), even])
