"""Salvage of the segments of an interrupted run: whole segments are taken over, others stay where they are.

Runs under the lease, after the fence. Each incarnation has one topic id, so segments in its folder are of that topic.
Where runs read with different isolation levels nothing is taken over (`operations.may_salvage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbackup.archive import layout
from kbackup.archive.catalog.operations import may_salvage
from kbackup.archive.segments.read import salvage_segment
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import Target
from kbackup.errors import CorruptError
from kbackup.jobs.backup.plan import Plan, TopicPlan
from kbackup.jobs.backup.run import Run
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import run_tasks
from kbackup.store.base import Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_PER_TASK = 16


class Orphan(NamedTuple):
    target: Target
    key: str


@dataclass(frozen=True)
class SalvageWork:
    store: Store

    def __call__(self, task: Sequence[Orphan], progress: ProgressSender) -> Iterator[Segment]:
        for orphan in task:
            with suppress(CorruptError):  # the tasks of the backup write it again
                segment = salvage_segment(self.store, orphan.target, orphan.key)
                progress.add(segment.count, segment.bytes)
                yield segment


def recover(
    run: Run,
    plan: Plan,
    spark: Callable[[], SparkSession],
    differing: Callable[[Sequence[Segment]], Collection[TopicPartition]],
) -> list[Segment]:
    """Return the segments of an interrupted run that `plan` can use.

    The other segments stay: the tasks use other names, and a sweep deletes them once they lie below the end.
    `differing` returns the partitions whose log was cut since; their segments are not used.
    """
    if not run.interrupted or not may_salvage(run.archive.state):
        return []
    known = run.archive.keys()
    orphans = [orphan for topic in plan.topics for orphan in _orphans(run.archive.store, topic, known)]
    if not orphans:
        return []
    tasks = [orphans[i : i + _PER_TASK] for i in range(0, len(orphans), _PER_TASK)]
    kept = _fitting(plan, run_tasks(spark(), tasks, SalvageWork(run.writing.plain)))
    cut = differing(kept)
    return [s for s in kept if TopicPartition(s.topic, s.partition) not in cut]


def _orphans(store: Store, topic: TopicPlan, known: Collection[str]) -> Iterator[Orphan]:
    """Orphan segments of a topic at or beyond the archived end of their partition."""
    ends = {p.partition: p.before.end for p in topic.partitions if p.before is not None}
    for entry in store.list(layout.topic_dir(topic.name, topic.incarnation)):
        name = layout.parse_segment(entry.key.rpartition("/")[2])
        if name is None or name.kind == "index" or entry.key in known:
            continue
        if name.start >= ends.get(name.partition, 0):
            # the threshold plays no part in reading
            target = Target(
                topic.name, topic.incarnation, name.partition, 0, layout.compression_of(entry.key)
            )
            yield Orphan(target, entry.key)


def _fitting(plan: Plan, segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments that lie in the plan's ranges and don't overlap."""
    ranges = {r.tp: r for r in plan.ranges}
    kept: list[Segment] = []
    reached: dict[TopicPartition, int] = {}
    for segment in sorted(segments, key=lambda s: (s.topic, s.partition, s.first, -s.last)):
        tp = TopicPartition(segment.topic, segment.partition)
        planned = ranges.get(tp)
        if planned is None or segment.last >= planned.end:
            continue
        if segment.first >= reached.get(tp, planned.start):
            kept.append(segment)
            reached[tp] = segment.last + 1
    return kept
