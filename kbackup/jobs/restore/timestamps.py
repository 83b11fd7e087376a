"""Read the timestamps of segments without any, as those of the Java tool, before a restore is checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kbackup.archive.query.content import ArchivedTopic, Content
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import greatest, least
from kbackup.metrics.events import Listener
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import Spark, pack, run_counted
from kbackup.store.base import Store

_TASK_BYTES = 64 << 20


class Times(NamedTuple):
    """The least and the greatest timestamp (ms) of the segment at `key`; None where no record has one."""

    key: str
    low: int | None
    high: int | None


@dataclass(frozen=True)
class ReadTimes:
    store: Store

    def __call__(self, task: Sequence[Segment], progress: ProgressSender) -> Iterator[Times]:
        for segment in task:
            low = high = None
            for block in read_segment(self.store, segment):
                low, high = least(low, block.min_timestamp), greatest(high, block.max_timestamp)
                progress.add(len(block), block.nbytes)
            yield Times(segment.key, low, high)


def with_timestamps(content: Content, store: Store, spark: Spark, listener: Listener) -> Content:
    """`content` with the timestamps of all its segments. Segments without are read, by tasks."""
    unknown = [s for t in content.topics for s in t.segments if s.count and s.min_timestamp is None]
    if not unknown:
        return content
    expected = sum(s.count for s in unknown)
    tasks = pack(unknown, lambda s: s.bytes, _TASK_BYTES, len(unknown))
    results = run_counted(spark, tasks, ReadTimes(store), listener, expected)
    times = {each.key: each for each in results}
    return replace(content, topics=tuple(_timed(topic, times) for topic in content.topics))


def _timed(topic: ArchivedTopic, times: dict[str, Times]) -> ArchivedTopic:
    def timed(segment: Segment) -> Segment:
        read = times.get(segment.key)
        if read is None:
            return segment
        return replace(segment, min_timestamp=read.low, max_timestamp=read.high)

    partitions = (replace(p, segments=tuple(map(timed, p.segments))) for p in topic.partitions)
    return replace(topic, partitions=tuple(partitions))
