"""Offset syncs, from which MirrorMaker 2's own readers translate: made from the flow's offset map, thinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.internal.topics import InternalTopics
from kbackup.jobs.mirror.positions.translation import Maps
from kbackup.types import Int64Array, TopicPartition

Runs = tuple[Int64Array, Int64Array, Int64Array]
"""(source, target, count), each int64[n]: record `source + i` is at `target + i`, 0 <= i < count."""


def emit_offset_syncs(
    flow: Flow,
    target: InternalTopics,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    runs: Mapping[TopicPartition, Runs],
    maps: Maps,
) -> int:
    """Write the offset syncs of a round, and return their number.

    `positions`, `runs` (those of this round) and `maps` are by remote partition. A partition that this process meets
    for the first time is read from `maps`, so that what a killed process did not write is made good.
    """
    raise NotImplementedError
