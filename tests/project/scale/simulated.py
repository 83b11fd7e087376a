"""Planning and commit of a cluster that does not exist.

kbackup's own planner, tables, manifests, commit, restore plan and checks run over a synthetic cluster and a store in
memory. There is no broker and no Spark; segments are described, not written.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import pickle
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.operations import next_incarnation
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Group, GroupOffset, Groups, LastRecord, Metadata, Transactions, load
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan, with_segments, write_plan
from kbackup.archive.run import begin_writing, check_written, open_or_create
from kbackup.archive.segments.table import Segment, expected_in_order, ordered, sum_of, unpaired
from kbackup.archive.verify.catalog import check_vectors
from kbackup.archive.verify.findings import Findings
from kbackup.config.models import Backup, Restore
from kbackup.jobs.backup.compaction import CheckedDeletions
from kbackup.jobs.backup.job import ClusterSnapshot, PointContent, commit, next_topics, reserve
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.backup.schemas import TakenSchemas
from kbackup.jobs.backup.task import Read, make_tasks, without
from kbackup.jobs.backup.transactions import WholeEnds
from kbackup.jobs.capture import BackupSession, Live, LiveTopic, SourceCluster
from kbackup.jobs.copy import lacking_segments
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.metadata.entities import TopicMetadata
from kbackup.metadata.sources import Sources
from kbackup.store.base import ObjectInfo
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.times import now
from scripts.bench.archives import described_segments
from scripts.bench.processes import peak_of, reset_peak
from scripts.bench.servers import grid
from tests.project.scale.model import Data, cost
from tests.support.memory_store import MemoryStore

MIB = 1 << 20

PARTITIONS_A_TOPIC = 50
GROUPS_A_TOPIC = 2
_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "604800000", "min.insync.replicas": "2"}


def live_topics(partitions: int, records: int) -> Iterator[LiveTopic]:
    """`records` in each of `partitions`."""
    for number, first in enumerate(range(0, partitions, PARTITIONS_A_TOPIC)):
        name = f"team-{number % 97:02d}.service-{number:05d}.events"
        identity = base64.urlsafe_b64encode(hashlib.md5(name.encode()).digest()).decode().rstrip("=")
        here = range(min(PARTITIONS_A_TOPIC, partitions - first))
        yield LiveTopic(name, identity, {p: Live(0, records, records) for p in here})


def groups_of(topics: Iterable[LiveTopic]) -> Groups:
    """`GROUPS_A_TOPIC` consumer groups of every topic, with a commit in each partition."""

    def group_of(topic: LiveTopic, number: int) -> Group:
        offsets = (
            GroupOffset(topic=topic.name, partition=p, offset=live.end, leader_epoch=3)
            for p, live in topic.partitions.items()
        )
        name = f"{topic.name}.consumer-{number}"
        return Group(group=name, type="classic", state="stable", offsets=tuple(offsets))

    groups = tuple(group_of(topic, n) for topic in topics for n in range(GROUPS_A_TOPIC))
    return Groups(captured_at=now(), groups=groups)


def metadata_of(topics: Iterable[LiveTopic]) -> Metadata:
    alike: Any = {"replication_factor": 3, "internal": False}
    known = (
        TopicMetadata(name=t.name, id=t.id, partitions=len(t.partitions), configs=dict(_CONFIGS), **alike)
        for t in topics
    )
    return Metadata(captured_at=now(), cluster_id="simulated", brokers=100, topics=tuple(known))


_SAMPLE = 100_000  # results that are pickled and unpickled, for the time of one


@dataclass
class Simulated:
    """One run. `requests` are the driver's; `data` what the executors have to take.

    `steps` are rows of a table: wall time, CPU seconds of this process and its most memory within the step, the
    synthetic cluster's included, and a note."""

    name: str
    data: Data
    steps: list[tuple[str, ...]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    tasks: list[int] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, note: str = "") -> Iterator[None]:
        gc.collect()
        reset_peak()
        began, cpu = time.perf_counter(), time.process_time()
        yield
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        self.steps.append((name, f"{seconds:.2f}", f"{used:.2f}", f"{peak_of() / MIB:,.0f}", note))


def simulate(partitions: int, size: float, record: int, grown: float, restore: bool = True) -> list[Simulated]:
    """A first run over `size` bytes in `partitions`, a nightly one after every partition grew by the share `grown`,
    and (`restore`) the plan of a restore, a verification and a copy of all of it."""
    store = MemoryStore()
    records = max(1, int(size / partitions / record))
    more = max(1, int(records * grown))
    total = records + more
    runs = [
        Simulated(name, Data(partitions, share * partitions * record, record))
        for name, share in (("first", records), ("nightly", more), ("restore", total))
    ]
    for run, end in zip(runs, (records, total), strict=False):
        _backup(run, store, [*live_topics(partitions, end)])
    if restore:
        _restore(runs[-1], store)
        _verify_and_copy(runs[-1], store)
    return runs if restore else runs[:-1]


def _backup(run: Simulated, store: MemoryStore, live: Sequence[LiveTopic]) -> None:
    options = Backup()
    groups, metadata = groups_of(live), metadata_of(live)
    asked = store.requests.copy()
    with HeldLease(store, "simulation", 3600) as lease:
        with run.step("open", "archive.json, the newest catalog, the fence"):
            open_or_create(store)
            writing = begin_writing(store, lease, "backup")
            head = writing.archive.head
            number = writing.next_point
        base = BackupSession(writing, head)
        cluster: Any = SimpleNamespace(topics=lambda names: {})
        source = SourceCluster(cluster, "simulated", 100, Sources(kafka={}), options.isolation_level, 1.0)
        with run.step("plan", "make_plan, without, make_tasks"):
            numbers = partial(next_incarnation, writing.archive.state)
            plan = make_plan(head, live, [t.name for t in live], numbers)
            tasks = make_tasks(without(plan.ranges, ()), options.split_records, options.pack_records)
        with run.step("reserve", "incarnations in the catalog"):
            ends = WholeEnds(live, groups, Transactions(whole=True))
            snapshot = ClusterSnapshot(now(), ends, [t.name for t in live], metadata, "", groups)
            reserve(writing, plan)
        run.tasks = [run.data.record * sum(r.end - r.start for r in task) for task in tasks]
        found = _ship(run, tasks)
        with run.step("commit", "groups.json, metadata.json, manifest.json, tables, catalog"):
            lasts = {
                TopicPartition(s.topic, s.partition): (LastRecord(offset=s.last, leader_epoch=3, digest="0" * 16),)
                for s in found
            }
            read = Read(found, lasts=lasts)
            check_written(store, found)
            checked = CheckedDeletions(next_topics(base, snapshot, plan, read), None)
            content = PointContent(snapshot, plan, read, checked, TakenSchemas())
            commit(source, base, content)
        with run.step("refresh", "partition indexes, group offset files"):
            writing.refresh_derived()
    run.requests = store.requests - asked
    point = base.archive.state.point(number)
    for key in point.documents if point is not None else ():
        run.sizes[key.rpartition("/")[2]] = store.stat(key).size
    tables = [ref for refs in base.archive.state.tables().values() for ref in refs.chunks if ref.ref is not None]
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
    segments = list(described_segments(ranges, run.data.record))
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
        content = select_content(RestoreRequest.of(options), store)
    with run.step("plan", "units and groups"):
        plan = plan_restore(RestoreRequest.of(options), content, "target")
    with run.step("write plan", "its table of segments, and plan.json"):
        write_plan(store, plan)
    run.sizes |= {e.key.rpartition("/")[2].split("-")[0]: e.size for e in store.list("restores/")}
    with run.step("read plan", "as for a resumed restore"):
        key = layout.restore_key(plan.restore_id, layout.PLAN)
        stored = with_segments(store, load(RestorePlan, store.get(key), key))
    with run.step("tasks", "pickled, compressed"):
        sent = [zlib.compress(pickle.dumps(unit), 1) for unit in stored.units]
    run.sizes["tasks, compressed"] = sum(map(len, sent))
    run.tasks = [sum(sum_of(part.segments, "bytes") for part in unit) for unit in plan.units]
    run.requests = store.requests - asked


def _verify_and_copy(run: Simulated, store: MemoryStore) -> None:
    """What the driver of both does with the catalog: the objects of segments are listed, not stored."""
    archive = open_archive(store)
    with run.step("verify", "segments against manifests and a listing"):
        manifests = {manifest.number: manifest for manifest in archive.manifests(archive.restore_points)}
        added = ordered([archive.state.segments.read()], checked=True)
        check_vectors(archive.state, manifests, added, Findings())
        listed = (ObjectInfo(each.key, each.size, "", 0.0) for each in expected_in_order(added.parts))
        unpaired(listed, expected_in_order(added.parts))
        del added
    with run.step("copy", "the segments that an empty copy lacks"):
        lacking_segments(archive.state, State(archive.info.id))


def report_of(run: Simulated) -> list[str]:
    """Return lines: the driver's steps, sizes of files, and requests of the driver and, by the model, of executors."""
    executors = Counter({"GET": run.data.gets()} if run.name == "restore" else {"PUT": run.data.puts()})
    asked = {"driver": run.requests, "executors": executors, "all": run.requests + executors}
    requests = [
        (who, *(f"{counted[kind]:,}" for kind in ("PUT", "GET", "LIST")), f"{cost(counted):,.2f}")
        for who, counted in asked.items()
    ]
    return [
        f"{run.name}: {run.data.partitions:,} partitions, {run.data.size / 1e12:,.1f} TB, {len(run.tasks):,} tasks",
        *grid(("step", "s", "CPU s", "MiB", ""), run.steps),
        "  ".join(f"{name} {value:,}" for name, value in run.sizes.items()),
        *grid(("requests of", "PUT", "GET", "LIST", "USD"), requests),
    ]
