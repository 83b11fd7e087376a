"""Make documents anew and read segments back, and report it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed
from kbackup.archive.catalog.retention import drop_unreferenced, lose_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Manifest
from kbackup.archive.new_point import point_of, put_manifest
from kbackup.archive.repair.attribution import attribute, by_rank, missing_segments, named_starts, unreached
from kbackup.archive.repair.base import Documents, RepairBase
from kbackup.archive.repair.points import (
    captured_topics,
    draft_behind,
    listed_manifests,
    lives_of,
    losses_of,
    numbers_given,
    unlisted_points,
    with_points,
    with_rows,
    without_let_go,
)
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, scan, to_scan
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.table import SCHEMA, Segment, from_batches
from kbackup.archive.verify.catalog import check_present
from kbackup.archive.verify.findings import Findings
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import ProgressSender, run_tasks
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """A file that was written again, and how."""

    file: str
    what: str


@dataclass(frozen=True)
class RepairReport:
    """Report of the changes, or (not `confirmed`) of the planned changes.

    `read_data`: every segment was read and its checksum compared, else only its size. `restored` restore points are
    listed again, `lost` ones no longer; `new_point` is the newest of new restore points, of the whole segments of lost
    ones. `losses` are segments and documents that are lost now, in words. `catalog` is the base, None if there was
    none. An adoption counts the `segments` and `records` of its restore point.
    """

    archive: str
    archive_id: str
    confirmed: bool
    read_data: bool
    catalog: int | None = None
    restored: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    mended: tuple[Mended, ...] = ()
    new_point: int | None = None
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    segments: int = 0
    records: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_loss(self) -> bool:
        return bool(self.lost or self.losses)

    @property
    def changes(self) -> bool:
        return bool(self.restored or self.lost or self.losses or self.mended or self.new_point)


@dataclass
class RepairJob:
    """One repair. `store` checks the lease before each write, or keeps writes in memory (a dry run)."""

    plain: Store
    store: Store
    confirm: bool
    read_data: bool
    spark: Callable[[], SparkSession]
    listener: ProgressListener
    sizes: Mapping[str, int] = field(default_factory=dict)
    modified: Mapping[str, float] = field(default_factory=dict)
    unlisted: dict[str, Segment | None] = field(default_factory=dict)
    """Records objects that no catalog lists, as they were read back; None for a damaged one."""
    without_index: set[str] = field(default_factory=set)
    """Keys of `unlisted` whose index is missing or damaged."""
    mended: list[Mended] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    restored: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    losses: list[str] = field(default_factory=list)
    new_points: dict[int, Manifest] = field(default_factory=dict)


# Reading segments back: in this process where they are few, else on Spark.


HERE_BYTES = 64 << 20
"""So many bytes are read without Spark, which takes longer to start."""
_TASK_BYTES = 64 << 20
_TASK_OBJECTS = 256
_THREADS = 4


@dataclass(frozen=True)
class ScanWork:
    """A task: some records objects, each read whole; with `mend` a damaged index is written anew."""

    store: Store
    mend: bool

    def __call__(self, task: Sequence[ToScan], progress: ProgressSender) -> Iterator[Whole | Damaged]:
        for item in task:
            found = scan(self.store, item, self.mend)
            if isinstance(found, Whole):
                progress.add(found.segment.count, found.segment.bytes)
            yield found


def scan_segments(job: RepairJob, items: Sequence[ToScan]) -> list[Whole | Damaged]:
    scanned = read_back(items, ScanWork(job.plain, job.confirm), job.spark, job.listener)
    job.mended += [
        Mended(layout.index_key_of(each.segment.key), "rebuilt")
        for each in scanned
        if isinstance(each, Whole) and each.index != "whole" and each.vouched
    ]
    return scanned


def read_back(
    items: Sequence[ToScan],
    work: Callable[[Sequence[ToScan], ProgressSender], Iterator[Whole | Damaged]],
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
) -> list[Whole | Damaged]:
    """Return the results of `work` for all items: in this process where they are small, else on Spark."""
    if sum(item.size for item in items) <= HERE_BYTES:
        with ThreadPoolExecutor(_THREADS) as pool:
            results = pool.map(lambda item: list(work([item], ProgressSender(None, 0))), items)
            return [result for of_item in results for result in of_item]
    expected = sum(item.row.count for item in items if item.row is not None)
    return run_tasks(spark(), _tasks(items), work, lambda records, size: listener.progress(records, size, expected))


def _tasks(items: Sequence[ToScan]) -> list[tuple[ToScan, ...]]:
    tasks: list[list[ToScan]] = []
    room = 0
    for item in items:
        if not tasks or item.size > room or len(tasks[-1]) == _TASK_OBJECTS:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(item)
        room -= item.size
    return sorted(map(tuple, tasks), key=lambda task: -sum(item.size for item in task))


# The state that a repair commits: of catalogs, and of restore points and segments that no catalog lists.


def damaged_segments(job: RepairJob, state: State) -> dict[str, str]:
    """Return keys of records objects of the catalog that are missing or damaged, with the reason; indexes
    are mended."""
    rows = {s.key: s for s in _segments(state)}
    findings = Findings()
    present = check_present(rows.values(), job.sizes, findings)
    wrong = {f.file: f.what for f in findings.entries}
    damaged = {key: f"the segment {what}" for key, what in wrong.items() if key in rows}
    readable = {item.segment.key for item in present if item.records}
    broken = {key for key in readable if layout.index_key_of(key) in wrong}
    for found in scan_segments(job, to_scan(job.sizes, rows, sorted(readable if job.read_data else broken))):
        if isinstance(found, Damaged):
            damaged[found.key] = found.why
    return damaged


def _segments(state: State) -> list[Segment]:
    return from_batches(state.segments.read(SCHEMA.names).to_batches())


def rebuild_state(
    job: RepairJob, base: RepairBase, documents: Documents, damaged: Mapping[str, str]
) -> tuple[State, dict[int, Manifest]]:
    """Return the state of the base with restore points and segments that it lacks, where catalogs or tables are lost;
    and the whole manifests by number. Behind a whole base only the restore point of the open run is listed, where its
    manifest is whole (`unlisted_points`)."""
    state = base.state
    manifests = listed_manifests(state, documents)
    points = unlisted_points(base, documents)
    if base.is_whole and not points:
        return state, manifests
    manifests |= {number: manifest for number, (manifest, _) in points.items()}
    given = numbers_given(job.sizes)
    job.restored |= points.keys()
    state = with_points(state, [point for _, point in points.values()], given + 1)
    least = 0 if "points" in base.stale else base.state.next_point
    listed = {*state.numbers.tolist(), *state.past_manifests}
    job.lost |= {
        number
        for key in job.sizes
        if (parsed := layout.parse_point_key(key)) is not None
        and least <= (number := parsed[0])
        and number not in listed
    }
    past = [{"number": number, "manifest": ""} for number in sorted(job.lost - state.past_manifests.keys())]
    state = replace(state, past=state.past.append(past))
    if not state.isolation_levels:
        state = replace(state, isolation_levels=frozenset(m.isolation_level for m in manifests.values()))
    manifests = {number: manifests[number] for number in state.numbers.tolist() if number in manifests}
    state = without_let_go(state)
    rows = attribute(_unlisted_segments(job, state), state, manifests, job.modified)
    lives = lives_of(state, manifests, job.sizes)
    state = with_rows(state, lives, rows, losses_of(state, _known_manifests(state, documents) | manifests))
    without = lose_segments(state, damaged)
    missing = missing_segments(without, manifests, named_starts(job.store, job.sizes))
    return replace(state, losses=state.losses.append(missing)), manifests


def _known_manifests(state: State, documents: Documents) -> dict[int, Manifest]:
    """Return the whole manifests of all restore points by number, also of expired ones.

    Losses of expired restore points concern later ones.
    """
    manifests = [d for d, _ in documents.values() if isinstance(d, Manifest)]
    return {m.number: m for m in manifests if (m.number, m.checksum) in state.lineage}


def _unlisted_segments(job: RepairJob, state: State) -> list[Segment]:
    """Return the whole segments that `state` does not list. Each is read once, and once more to write its index."""
    known = set(state.segments.columns("key")[0])
    keys = [key for key in job.sizes if key.startswith(layout.TOPICS) and key not in known]
    items = [item for item in to_scan(job.sizes, {}, keys) if item.key not in job.unlisted]
    for result in scan_segments(job, items):
        if isinstance(result, Whole):
            job.unlisted[result.segment.key] = result.segment
            if result.index != "whole":
                job.without_index.add(result.segment.key)
        else:
            job.unlisted[result.key] = None
    return [segment for key in keys if (segment := job.unlisted.get(key)) is not None]


def add_new_points(
    job: RepairJob,
    writing: WritingRun,
    base: RepairBase,
    state: State,
    manifests: dict[int, Manifest],
    documents: Documents,
) -> State:
    """`state` with new restore points of whole segments whose own manifests are lost."""
    writing.archive.move(Committed(state, base.committed.catalog))
    if base.is_whole:
        return state
    listed, state = _segments(state), drop_unreferenced(state)
    unlisted = _unlisted_segments(job, state)
    named = named_starts(job.store, job.sizes)
    committed = _starts([*listed, *(() if manifests else unlisted)])
    for key, firsts in committed.items():
        named[key] = sorted({*firsts, *named.get(key, ())})
    segments = unreached(unlisted, state, manifests, named)
    head = manifests.get(max(manifests, default=0))
    captured = captured_topics(documents)
    ranks = by_rank(segments, {t.name: t.incarnation for t in (head.topics if head is not None else ())})
    for at, of_rank in enumerate(ranks):
        number = state.next_point
        ids = {key: life.topic_id for key, life in state.lives.items()}
        is_last = at == len(ranks) - 1
        draft = draft_behind(writing, head, of_rank, ids, job.sizes, captured, number, last=is_last)
        manifest, ref = put_manifest(writing, draft)
        job.new_points[number] = manifests[number] = manifest
        rows = attribute(of_rank, state, {number: manifest})
        state = with_points(state, [point_of(manifest, ref)], number + 1)
        state = with_rows(
            state, lives_of(replace(state, segments=state.segments.append(rows)), manifests, job.sizes), rows, ()
        )
        missing = missing_segments(state, manifests, named)
        job.losses += [row["message"] for row in missing]
        state = replace(state, losses=state.losses.append(missing))
        job.losses.append(f"restore points without a manifest: restore point {number} has their whole segments")
        writing.archive.move(Committed(state, base.committed.catalog))
    return state


def mend_indexes(job: RepairJob, state: State) -> None:
    """Write the indexes of segments that the repair has listed."""
    rows = {s.key: s for s in _segments(state) if s.key in job.without_index}
    scan_segments(job, to_scan(job.sizes, rows, sorted(rows)))


def _starts(segments: Sequence[Segment]) -> dict[IncarnationPartition, list[int]]:
    starts: dict[IncarnationPartition, list[int]] = {}
    for s in segments:
        starts.setdefault(s.incarnation_partition, []).append(s.first)
    return starts
