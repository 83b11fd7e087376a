"""python -m scripts.bench.simulate: planning and commit at 10,000 and 100,000 partitions, up to 1 PB.

kbackup's own planner, tables, manifests, commit, restore plan and checks run over a synthetic cluster and a store in
memory. There is no broker and no Spark; segments are described, not written. A model of a cluster of executors, in the
plain formulas of `infra/docs/scale.md`, tells what they make of it; `--worked` prints that page's table.
"""

from __future__ import annotations

import argparse
import base64
import gc
import hashlib
import pickle
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from kbackup.archive.segments.read import FETCH_SPAN
from kbackup.archive.segments.table import Segment, expected_in_order, ordered, sum_of, unpaired
from kbackup.archive.verify.catalog import check_vectors
from kbackup.archive.verify.findings import Findings
from kbackup.config.models import Backup, Restore
from kbackup.jobs.backup.compaction import CheckedDeletions
from kbackup.jobs.backup.job import ClusterSnapshot, PointContent, commit, next_topics, reserve
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.backup.schemas import TakenSchemas
from kbackup.jobs.backup.task import PACK_PARTITIONS, Read, make_tasks, without
from kbackup.jobs.backup.transactions import WholeEnds
from kbackup.jobs.capture import BackupSession, Live, LiveTopic, SourceCluster
from kbackup.jobs.copy import lacking_segments
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.metadata.entities import TopicMetadata
from kbackup.metadata.sources import Sources
from kbackup.store.base import ObjectInfo
from kbackup.store.s3 import S3Options
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.times import now
from scripts.bench.archives import described_segments, segments_of
from scripts.bench.processes import peak_of, reset_peak
from scripts.bench.servers import grid
from tests.support.memory_store import MemoryStore

MIB = 1 << 20

PRICES = {"PUT": 0.005, "LIST": 0.005, "GET": 0.0004, "DELETE": 0.0}
"""US dollars for 1,000 requests: S3 Standard, us-east-1. Every part of a multipart upload is a PUT, and so are its
beginning and its end; HEAD counts as GET."""

PREFIX_RATES = {"PUT": 3_500, "GET": 5_500}
"""Requests a second that S3 promises for one prefix, before it has split a busy one."""


def cost(requests: Mapping[str, int]) -> float:
    """Return US dollars."""
    return sum(PRICES[kind] * number / 1000 for kind, number in requests.items())


def upload_requests(size: float) -> int:
    """Return the PUTs of an object of `size` bytes: one, or its parts and two more."""
    parts = max(1, -(-int(size) // S3Options().part_size))
    return 1 if parts == 1 else parts + 2


@dataclass(frozen=True)
class Data:
    """The new data of one run: `partitions` with new records, of `size` bytes in all and `record` bytes each."""

    partitions: int
    size: float
    record: int

    @property
    def share(self) -> float:
        """Bytes of one partition."""
        return self.size / self.partitions

    @property
    def segments(self) -> int:
        return self.partitions * segments_of(self.share)

    @property
    def tasks(self) -> int:
        """The number of tasks into which `make_tasks` cuts and packs partitions that are all alike."""
        records = max(1, int(self.share / self.record))
        options = Backup()
        if records >= options.pack_records:
            return self.partitions * -(-records // options.split_records)
        return -(-self.partitions // min(PACK_PARTITIONS, options.pack_records // records))

    def puts(self) -> int:
        """Of segments and their indexes."""
        each = segments_of(self.share)
        bytes_each = self.share / each
        return self.segments * (upload_requests(bytes_each) + upload_requests(24 * bytes_each / self.record))

    def gets(self) -> int:
        """Of reading them back: ranges of segments, and whole indexes."""
        return self.segments * (1 + -(-int(self.share / segments_of(self.share)) // FETCH_SPAN))


@dataclass(frozen=True)
class Cluster:
    """`rate` is bytes/s of one core, `start` the seconds before the first byte, `task` seconds that a task costs
    beside its bytes, `launch` tasks a second that the driver can hand out."""

    executors: int
    cores: int
    rate: float
    start: float = 4.0
    task: float = 0.1
    launch: float = 100.0

    def bound(self, size: float, tasks: int) -> float:
        """Return seconds by one formula: bytes and tasks spread evenly, or as fast as the driver hands tasks out."""
        slots = self.executors * self.cores
        return self.start + max((size / self.rate + tasks * self.task) / slots, tasks / self.launch)


CASES = ((1_000, 1e12), (10_000, 1e14), (100_000, 1e15))
RUNS = {"first": 1.0, "night": 0.01}
EXECUTORS = (1, 4, 16, 64)
CORES, RATE, RECORD = 4, 150e6, 1024
RUN = 14
"""PUTs of a run beside segments and derived files: lease, catalogs, tables, manifest, groups, metadata."""


def worked_rows() -> Iterator[str]:
    """Lines of a Markdown table, without its head."""
    for partitions, size in CASES:
        for name, share in RUNS.items():
            data = Data(partitions, size * share, RECORD)
            puts, gets = data.puts() + 2 * data.partitions + RUN, data.gets()
            total = f"{data.size / 1e15:g} PB" if data.size >= 1e15 else f"{data.size / 1e12:g} TB"
            hours = (Cluster(n, CORES, RATE).bound(data.size, data.tasks) / 3600 for n in EXECUTORS)
            cells = (
                *(f"{data.partitions:,}", total, name, f"{data.tasks:,}", f"{data.segments:,}"),
                *(f"{puts:,}", f"{cost({'PUT': puts}):,.2f}", *(f"{each:,.2f}" for each in hours)),
                *(f"{gets:,}", f"{cost({'GET': gets}):,.2f}"),
            )
            yield f"| {' | '.join(cells)} |"


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
        print(f"  {self.name}: {name} {seconds:.2f} s", file=sys.stderr, flush=True)


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


_NOTE = """\
Driver: seconds and memory (the step's high-water mark of the process, with the synthetic cluster and the store's
objects in it). Requests: the driver's as counted, the executors' by the formulas of infra/docs/scale.md.
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.simulate", description=__doc__)
    add = parser.add_argument
    add("--partitions", type=int, nargs="+", default=[10_000, 100_000], help="sizes to try (10000 100000)")
    add("--partition-bytes", type=float, default=1e10, help="bytes of a partition (1e10: 1 PB in 100,000)")
    add("--record", type=int, default=1024, help="bytes of an encoded record (1024)")
    add("--grown", type=float, default=0.01, help="what a night adds, as a share (0.01)")
    add("--no-restore", action="store_false", dest="restore", help="leave out the restore, which takes most memory")
    add("--worked", action="store_true", help="print the table of infra/docs/scale.md, and simulate nothing")
    options = parser.parse_args(arguments)
    if options.worked:
        print("\n".join(worked_rows()))
        return 0
    print(_NOTE)
    for partitions in options.partitions:
        size = partitions * options.partition_bytes
        for run in simulate(partitions, size, options.record, options.grown, options.restore):
            print("\n".join(_report(run)), end="\n\n")
    return 0


def _report(run: Simulated) -> list[str]:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
