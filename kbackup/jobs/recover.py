"""Salvage of the segments of an interrupted run: whole segments are taken over, others are deleted.

Runs under the lease, after the fence. Each incarnation has one topic id, so segments in its folder are of that topic.
Where runs read with different isolation levels nothing is taken over (`operations.may_salvage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbackup.archive import layout
from kbackup.archive.catalog.operations import may_salvage
from kbackup.archive.reader import Archive
from kbackup.archive.segment_io import adopt
from kbackup.archive.segments import Segment
from kbackup.archive.writer import Target
from kbackup.errors import CorruptError
from kbackup.jobs.backup_run import Run
from kbackup.jobs.plan import Plan, TopicPlan
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.tasks import run_tasks
from kbackup.store.base import Failed, Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_PER_TASK = 16


class Orphan(NamedTuple):
    target: Target
    key: str


class Damaged(NamedTuple):
    key: str
    why: str


@dataclass(frozen=True)
class AdoptWork:
    store: Store

    def __call__(self, task: Sequence[Orphan], progress: ProgressSender) -> Iterator[Segment | Damaged]:
        for orphan in task:
            try:
                found = adopt(self.store, orphan.target, orphan.key)
            except CorruptError as error:
                yield Damaged(orphan.key, error.message)
                continue
            progress.add(found.count, found.bytes)
            yield found


class Recovered(NamedTuple):
    segments: list[Segment]
    warnings: list[str]


def recover(
    run: Run,
    plan: Plan,
    spark: Callable[[], SparkSession],
    differing: Callable[[Sequence[Segment]], Collection[TopicPartition]],
) -> Recovered:
    """The segments of an interrupted run that `plan` can use; orphan segments beyond the archived ends that it can't
    use are deleted: the tasks write these keys. What lies before the ends belongs to the sweep. `differing` tells the
    partitions whose log was cut since: their segments are of no use."""
    if not run.interrupted:
        return Recovered([], [])
    store, salvage = run.archive.store, may_salvage(run.archive.state)
    known = _committed_keys(run.archive)
    orphans: list[Orphan] = []
    useless: list[str] = []
    for topic in plan.topics:
        for key, name in _stray(store, topic, known):
            if salvage and name.kind != "index":
                # the threshold plays no part in reading
                target = Target(topic.name, topic.incarnation, name.partition, 0, layout.compression_of(key))
                orphans.append(Orphan(target, key))
            else:
                useless.append(key)
    found: list[Segment | Damaged] = []
    if orphans:
        tasks = [orphans[i : i + _PER_TASK] for i in range(0, len(orphans), _PER_TASK)]
        found = run_tasks(spark(), tasks, AdoptWork(run.writing.plain))
    kept = _fitting(plan, [s for s in found if isinstance(s, Segment)])
    cut = differing(kept)
    kept = [s for s in kept if TopicPartition(s.topic, s.partition) not in cut]
    used = {s.key for s in kept} | {layout.index_key_of(s.key) for s in kept}
    useless = [key for key in {*useless, *(o.key for o in orphans), *_indexes(orphans)} if key not in used]
    failed = _delete(run, useless)
    return Recovered(
        kept, [f"object {f.key} of an interrupted run can't be deleted: {f.error.message}" for f in failed]
    )


def _delete(run: Run, keys: Sequence[str]) -> list[Failed]:
    """Delete orphan segments beyond the ends, of keys that this run or a later one creates again.

    The lease and the fence are checked just before. No store deletes on a condition: where the process sleeps between
    the check and the delete for longer than its lease lasts, the delete can hit a segment of the next run.
    """
    if not keys:
        return []
    run.writing.check_fence()
    return run.archive.store.delete(sorted(keys))


def _indexes(orphans: Sequence[Orphan]) -> list[str]:
    return [layout.index_key_of(o.key) for o in orphans]


def _committed_keys(archive: Archive) -> set[str]:
    keys = archive.keys()
    return keys | {layout.index_key_of(key) for key in keys}


def _stray(store: Store, topic: TopicPlan, known: set[str]) -> Iterator[tuple[str, layout.SegmentName]]:
    """Orphan segments of a topic at or beyond the archived end of their partition."""
    ends = {p.partition: p.before.end for p in topic.partitions if p.before is not None}
    for entry in store.list(layout.topic_dir(topic.name, topic.incarnation)):
        name = layout.parse_segment(entry.key.rpartition("/")[2])
        if name is not None and entry.key not in known and name.start >= ends.get(name.partition, 0):
            yield entry.key, name


def _fitting(plan: Plan, segments: Sequence[Segment]) -> list[Segment]:
    """Those that lie in what the plan wants to read and don't overlap."""
    ranges = {r.tp: r for r in plan.ranges}
    kept: list[Segment] = []
    reached: dict[TopicPartition, int] = {}
    for segment in sorted(segments, key=lambda s: (s.topic, s.partition, s.first, -s.last)):
        tp = TopicPartition(segment.topic, segment.partition)
        wanted = ranges.get(tp)
        if wanted is None or segment.last >= wanted.end:
            continue
        if segment.first >= reached.get(tp, wanted.start):
            kept.append(segment)
            reached[tp] = segment.last + 1
    return kept
