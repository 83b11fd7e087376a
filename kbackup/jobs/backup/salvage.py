"""Salvage of the segments of an interrupted run: whole segments are taken over, others stay where they are.

Runs under the lease, after the fence. Each incarnation has one topic id, so segments in its folder are of that topic.
Where runs read with different isolation levels nothing is taken over (`operations.may_salvage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.catalog.operations import may_salvage
from kbackup.archive.segments.salvage import (
    RecordsObject,
    drop_overlaps,
    parse_records_object,
    salvage_segment,
)
from kbackup.archive.segments.table import Segment
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


@dataclass(frozen=True)
class SalvageWork:
    store: Store

    def __call__(self, task: Sequence[RecordsObject], progress: ProgressSender) -> Iterator[Segment]:
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


def _orphans(store: Store, topic: TopicPlan, known: Collection[str]) -> list[RecordsObject]:
    """Return the orphan segments of a topic at or beyond the archived end of their partition."""
    ends = {p.partition: p.before.end for p in topic.partitions if p.before is not None}
    keys = [entry.key for entry in store.list(layout.topic_dir(topic.name, topic.incarnation))]
    objects = filter(None, map(parse_records_object, keys))
    return [o for o in objects if o.key not in known and o.start >= ends.get(o.target.partition, 0)]


def _fitting(plan: Plan, segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments that lie in the plan's ranges and don't overlap."""
    ranges = {r.tp: r for r in plan.ranges}
    fitting = [
        s
        for s in segments
        if (planned := ranges.get(TopicPartition(s.topic, s.partition))) is not None
        and planned.start <= s.first
        and s.last < planned.end
    ]
    return drop_overlaps(fitting, lambda segment: segment)[0]
