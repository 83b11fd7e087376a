"""Planning and commit at sizes that no disk here has: kbackup's own planner, tables, manifests and commit over a
synthetic cluster and a store in memory. No broker, no Spark; the segments are described, not written."""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from kbackup.archive.catalog.operations import next_incarnation
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump
from kbackup.archive.new_point import check_written
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.config.models import Backup, Restore
from kbackup.jobs.backup.job import Captured, commit, draft_point, refresh, reserve
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.backup.task import Read, make_tasks, without
from kbackup.jobs.capture import Base, LiveTopic, SourceCluster
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Phases, Silent
from kbackup.types import OffsetRange
from kbackup.util.times import now
from scripts.bench import synthetic
from scripts.bench.model import Data
from scripts.bench.processes import peak_of, reset_peak
from tests.support.memory_store import MemoryStore

_SAMPLE = 100_000  # results that are pickled and unpickled, for the time of one


@dataclass(frozen=True)
class Step:
    """`seconds` are wall time, `cpu` the process's own. `peak` is its most bytes of memory within the step, the
    synthetic cluster's among them."""

    name: str
    seconds: float
    cpu: float
    peak: int
    note: str = ""


@dataclass
class Simulated:
    """One run. `requests` are the driver's; `data` what the executors have to take."""

    name: str
    partitions: int
    data: Data
    steps: list[Step] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    tasks: list[int] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, note: str = "") -> Iterator[None]:
        gc.collect()
        reset_peak()
        began, cpu = time.perf_counter(), time.process_time()
        yield
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        self.steps.append(Step(name, round(seconds, 3), round(used, 3), peak_of(), note))
        print(f"  {self.name}: {name} {seconds:.2f} s", file=sys.stderr, flush=True)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "tasks": len(self.tasks), "segments": self.data.segments}


def simulate(
    partitions: int, size: float, record: int, grown: float, restore: bool = True
) -> list[Simulated]:
    """A first run over `size` bytes in `partitions`, a nightly one after every partition grew by the share `grown`,
    and (`restore`) the plan of a restore of all of it."""
    store = MemoryStore()
    records = max(1, int(size / partitions / record))
    more = max(1, int(records * grown))
    first = Simulated("first", partitions, Data(partitions, records * partitions * record, record))
    _backup(first, store, synthetic.live_topics(partitions, records))
    night = Simulated("nightly", partitions, Data(partitions, more * partitions * record, record))
    _backup(night, store, synthetic.live_topics(partitions, records + more))
    if not restore:
        return [first, night]
    back = Simulated("restore", partitions, Data(partitions, (records + more) * partitions * record, record))
    _restore(back, store)
    return [first, night, back]


def _backup(run: Simulated, store: MemoryStore, live: Sequence[LiveTopic]) -> None:
    options = Backup()
    groups, metadata = synthetic.groups(live), synthetic.metadata(live)
    asked = store.requests.copy()
    with HeldLease(store, "simulation", 3600) as lease:
        with run.step("open", "archive.json, the newest catalog, the fence"):
            open_or_create(store)
            writing = begin_writing(store, lease, "backup")
            head = writing.archive.head
            number = writing.next_point
        base = Base(writing, head)
        cluster = cast(Any, SimpleNamespace(topics=lambda names: {}))
        source = SourceCluster(cluster, "simulated", 100, Sources(kafka={}), options.isolation_level, 1.0)
        with run.step("plan", "make_plan, without, make_tasks"):
            numbers = partial(next_incarnation, writing.archive.state)
            plan = make_plan(head, live, [t.name for t in live], numbers)
            tasks = make_tasks(without(plan.ranges, ()), options.split_records, options.pack_records)
        with run.step("reserve", "incarnations in the catalog"):
            captured = Captured(now(), live, [t.name for t in live], groups, metadata)
            reserve(writing, plan)
        run.tasks = [run.data.record * sum(r.end - r.start for r in task) for task in tasks]
        found = _ship(run, tasks)
        with run.step("commit", "groups.json, metadata.json, manifest.json, tables, catalog"):
            read = Read(found, lasts=synthetic.last_records(found))
            check_written(store, found)
            draft = draft_point(source, base, captured, plan, read)
            commit(base, draft, captured, "", last=True)
        with run.step("refresh", "partition indexes, group offset files"):
            refresh(writing, Phases(Silent()))
    run.requests = dict(store.requests - asked)
    point = base.archive.state.point(number)
    for key in point.documents if point is not None else ():
        run.sizes[key.rpartition("/")[2]] = store.stat(key).size
    tables = [
        ref for refs in base.archive.state.tables().values() for ref in refs.chunks if ref.ref is not None
    ]
    run.sizes["tables"] = sum(chunk.ref.size for chunk in tables if chunk.ref is not None)


def _ship(run: Simulated, tasks: Sequence[Sequence[OffsetRange]]) -> list[Segment]:
    """Measure tasks and results on their way to Spark's executors and back; return the segments of all tasks."""
    with run.step("ship tasks", "pickled in the driver; each task unpickles the list, and its own"):
        sent = pickle.dumps([pickle.dumps(task) for task in tasks])
        began = time.perf_counter()
        pickle.loads(pickle.loads(sent)[0])
        run.sizes["tasks, pickled"] = len(sent)
        run.sizes["µs of a task to find its own"] = int((time.perf_counter() - began) * 1e6)
        del sent
    ranges = (wanted for task in tasks for wanted in task)
    segments = list(synthetic.segments(ranges, run.data.record))
    sample = segments[:_SAMPLE]
    with run.step("results", f"pickled and unpickled, {len(sample):,} of {len(segments):,}"):
        rows = [pickle.dumps(segment) for segment in sample]
        run.sizes["a result, pickled"] = sum(map(len, rows)) // max(1, len(rows))
        list(map(pickle.loads, rows))
    return segments


def _restore(run: Simulated, store: MemoryStore) -> None:
    options = Restore(restore_id="simulated")
    asked = store.requests.copy()
    with run.step("content", "manifests, every run's segments.parquet"):
        content = select_content(options, store)
    with run.step("plan", "units and groups"):
        plan = plan_restore(options, content, "target")
    with run.step("plan.json"):
        data = dump(plan)
    run.sizes["plan.json"] = len(data)
    run.tasks = [sum(s.bytes for part in unit for s in part.segments) for unit in plan.units]
    run.requests = dict(store.requests - asked)
