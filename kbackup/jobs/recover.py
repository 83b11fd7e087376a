"""Taking over what an unfinished run left behind: whole segments stay, the rest goes.

Runs under the lease, after the unfinished numbers are sealed. An intent says which topic ids its segments
belong to: what was written for another topic of that name, or under another isolation level, is never taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kbackup.archive import layout
from kbackup.archive.expired import is_before, starts_by_folder
from kbackup.archive.models import Intent
from kbackup.archive.reader import Archive
from kbackup.archive.segment_io import adopt
from kbackup.archive.segments import Segment
from kbackup.archive.writer import Target
from kbackup.errors import CorruptError
from kbackup.jobs.plan import Plan, TopicPlan
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.tasks import run_tasks
from kbackup.store.base import Store
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
    archive: Archive,
    plan: Plan,
    intents: Sequence[Intent],
    isolation: str,
    spark: Callable[[], SparkSession],
    check: Callable[[], None],
    differing: Callable[[Sequence[Segment]], Collection[TopicPartition]],
) -> Recovered:
    """The segments of unfinished runs that this run's plan can use; objects in its folders that it can't are
    deleted, after `check`: to a writer that took over meanwhile they may be of use. `differing` tells the partitions
    whose log was cut since: their segments are of no use."""
    if not intents:
        return Recovered([], [])
    theirs = {
        (t.name, t.id, t.incarnation) for i in intents if i.isolation_level == isolation for t in i.topics
    }
    # what has expired stays for those who read it: 'kbackup expire' deletes it
    known, starts = _committed_keys(archive), starts_by_folder(archive.expired)
    orphans: list[Orphan] = []
    useless: list[str] = []
    for topic in plan.topics:
        for key in (key for key in _stray(archive.store, topic, known) if not is_before(starts, key)):
            name = layout.parse_segment(key.rpartition("/")[2])
            usable = (
                name is not None
                and name.kind != "index"
                and (topic.name, topic.id, topic.incarnation) in theirs
            )
            if usable and name is not None:
                # the threshold plays no part in reading
                target = Target(topic.name, topic.incarnation, name.partition, 0, layout.compression_of(key))
                orphans.append(Orphan(target, key))
            else:
                useless.append(key)
    found: list[Segment | Damaged] = []
    if orphans:
        tasks = [orphans[i : i + _PER_TASK] for i in range(0, len(orphans), _PER_TASK)]
        found = run_tasks(spark(), tasks, AdoptWork(archive.store))
    kept = _fitting(plan, [s for s in found if isinstance(s, Segment)])
    cut = differing(kept)
    kept = [s for s in kept if TopicPartition(s.topic, s.partition) not in cut]
    wanted = {s.key for s in kept} | {layout.index_key_of(s.key) for s in kept}
    useless = [key for key in {*useless, *(o.key for o in orphans), *_indexes(orphans)} if key not in wanted]
    check()
    failed = archive.store.delete(sorted(useless))
    return Recovered(
        kept, [f"object {f.key} of an unfinished run can't be deleted: {f.error.message}" for f in failed]
    )


def _indexes(orphans: Sequence[Orphan]) -> list[str]:
    return [layout.index_key_of(o.key) for o in orphans]


def _committed_keys(archive: Archive) -> set[str]:
    keys = archive.keys()
    return keys | {layout.index_key_of(key) for key in keys}


def _stray(store: Store, topic: TopicPlan, known: set[str]) -> Iterator[str]:
    for entry in store.list(layout.topic_dir(topic.name, topic.incarnation)):
        if layout.parse_segment(entry.key.rpartition("/")[2]) is not None and entry.key not in known:
            yield entry.key


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
