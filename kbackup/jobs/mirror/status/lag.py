"""Measure how far a flow is behind its archive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kbackup.archive.catalog.state import State
from kbackup.archive.segments.table import SCHEMA, integers, of_topics
from kbackup.jobs.mirror.status.document import FlowStatus, TopicStatus
from kbackup.types import Int64Array

_COLUMNS = ("topic", "incarnation", "partition", "first", "last", "count")


@dataclass(frozen=True)
class FlowLag:
    """`records` of the archive are not applied yet, `topics` has them by remote topic; None where the flow's topics
    are not known yet. `seconds` have passed since the first restore point that is not applied was committed; 0 where
    the newest one, `newest`, is applied."""

    newest: int
    newest_at: str
    records: int | None
    seconds: float
    topics: dict[str, int]


def flow_lag(state: State, status: FlowStatus, at: datetime | None = None) -> FlowLag:
    """Compare the applied positions of a flow with an archive's state, at a time (default: now)."""
    topics = records_behind(state, status.topics)
    waiting = [point for point in state.restore_points if point.number > status.restore_point]
    since = datetime.fromisoformat(waiting[0].committed_at) if waiting else None
    at = at or datetime.now(UTC)
    newest = state.newest
    return FlowLag(
        newest=newest.number if newest is not None else 0,
        newest_at=newest.committed_at if newest is not None else "",
        records=sum(topics.values()) if status.is_planned else None,
        seconds=max(0.0, round((at - since).total_seconds(), 3)) if since is not None else 0.0,
        topics=topics,
    )


def round_lag(state: State, status: FlowStatus) -> FlowLag:
    """The lag at the end of a round. Where a flow has applied the newest restore point and holds no topic back, only
    the records of topics that it has not begun with are counted."""
    newest = state.newest
    if newest is None or newest.number > status.restore_point or any(t.held_back for t in status.topics):
        return flow_lag(state, status)
    topics = {topic.remote: 0 for topic in status.topics}
    topics |= records_behind(state, tuple(topic for topic in status.topics if topic.incarnation < 0))
    return FlowLag(newest.number, newest.committed_at, sum(topics.values()), 0.0, topics)


def records_behind(state: State, topics: tuple[TopicStatus, ...]) -> dict[str, int]:
    """Return, by remote topic, the number of archived records beyond the applied positions. A topic that was never
    applied begins with its newest incarnation. In a segment that is applied in part, records are taken to be spread
    evenly over its offsets."""
    by_source = {topic.source: topic for topic in topics}
    table = state.segments.read(_COLUMNS) if topics else SCHEMA.empty_table()
    if not len(table):
        return {topic.remote: 0 for topic in topics}
    table = of_topics(table, by_source)
    encoded = table.column("topic").combine_chunks().dictionary_encode()
    names: list[Any] = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    incarnation, partition, first, last, count = (integers(table, name) for name in _COLUMNS[1:])

    begun = {name: topic.incarnation for name, topic in by_source.items() if topic.incarnation >= 0}
    applied_in = np.array([begun.get(name, state.highest.get(name, 0)) for name in names], np.int64)
    starts, positions = _flat([by_source[name].applied if name in begun else () for name in names])

    index = np.minimum(
        partition, starts[codes + 1] - starts[codes]
    )  # the last one of a topic is no partition
    following = positions[starts[codes] + codes + index]
    following = np.where(incarnation == applied_in[codes], following, 0)
    following = np.where(incarnation < applied_in[codes], last + 1, following)
    offsets = np.clip(last + 1 - np.maximum(following, first), 0, None)
    behind = -(-count * offsets // np.maximum(last + 1 - first, 1))
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, codes, behind)
    known = dict(zip(names, sums.tolist(), strict=True))
    return {topic.remote: known.get(topic.source, 0) for topic in topics}


def _flat(applied: list[tuple[int, ...]]) -> tuple[Int64Array, Int64Array]:
    """int64[topics + 1] and int64[]: the positions of topic n begin at starts[n] + n; a 0 ends each topic's."""
    starts = np.zeros(len(applied) + 1, np.int64)
    np.cumsum([len(positions) for positions in applied], out=starts[1:])
    return starts, np.array([p for positions in applied for p in (*positions, 0)], np.int64)
