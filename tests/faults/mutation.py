"""Change a file of an archive at random: verify and restores must refuse it, or bring the same records back.

Each case is its own seed, so that one can be run again alone.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from unittest.mock import patch

import msgspec
import numpy as np

from kbackup.archive import layout
from kbackup.archive.catalog.sweep import referred_keys
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump, load
from kbackup.archive.query.java import open_archive_or_folder
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import MapPart, MapPartName, committed_names, read_map_parts
from kbackup.archive.restores.offset_map import decode, runs_table
from kbackup.archive.restores.plan import RestorePlan, UnitRange, check_same_archive, with_segments, write_plan
from kbackup.archive.run import begin_writing
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.config.models import Restore
from kbackup.errors import CorruptError, KbackupError, NotFoundError
from kbackup.jobs import verify as verify_job
from kbackup.jobs.points import label, pin, release
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.preflight import check_segments
from kbackup.jobs.restore.report import make_report, planned
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.restore.resume import finished_report
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.metrics.registry import Silent
from kbackup.native.contract import runs_of
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import Int64Array
from tests.support.archives import T0, commit_point, group_at, make_archive, topic_state, write
from tests.support.map_parts import a_map_part, write_map
from tests.support.memory_store import MemoryStore
from tests.support.restores import make_plan

RESTORE = "r1"
Objects = dict[str, bytes]


@dataclass(frozen=True)
class Sample:
    """`objects` is the archive; `older` what stood under its keys before, `foreign` what stands there in another
    archive; `last` names each unit's last part of the offset map. `newest` are the keys that the newest catalog refers
    to, and its own."""

    objects: Objects
    older: Objects
    foreign: Objects
    last: tuple[MapPartName, ...]
    newest: frozenset[str]


def samples() -> list[Sample]:
    """One with its whole history, one that restore points and records were expired of, and one where a sweep deleted
    them."""
    graces = (None, timedelta(days=1), timedelta(0))
    return [_made(grace, _made(grace, {}).objects) for grace in graces]


def _made(grace: timedelta | None, foreign: Objects) -> Sample:
    store = MemoryStore()
    archive = make_archive(store, copied=False)
    before = _objects(store)
    _add_third(archive)
    if grace is not None:
        _expire(store, grace)
    with HeldLease(store, "kbackup backup", 60) as lease:
        begin_writing(store, lease, "backup")
    # a run that was cut off: it is open, and left a segment that no catalog refers to
    write(store, SegmentTarget("orders", 1, 1, 1000, "zstd"), range(30, 40))
    last = tuple(_restore(store))
    objects = _objects(store)
    there = {_nameless(key): data for key, data in foreign.items()}  # names of runs and attempts differ
    committed = open_archive(store).committed
    return Sample(
        objects,
        {key: data for key, data in before.items() if objects.get(key, data) != data},
        {key: there[_nameless(key)] for key in objects if _nameless(key) in there},
        last,
        frozenset(referred_keys(committed) | {layout.catalog_key(committed.state.number)}),
    )


def _nameless(key: str) -> str:
    return re.sub(r"-[0-9a-f]{32}", "", key)


def _add_third(archive: Archive) -> None:
    """Some more records of a topic, compressed from now on."""
    parent = archive.restore_point(2)
    older = archive.segments(parent)
    more = write(archive.store, SegmentTarget("orders", 1, 1, 1000, "zstd"), range(12, 30))
    orders = [[s for s in older if (s.topic, s.partition) == ("orders", p)] for p in range(3)]
    state = [(0, 41, orders[0]), (0, 30, [*orders[1], *more]), (0, 0, [])]
    clicks = next(t for t in parent.topics if t.name == "clicks")
    groups = [group_at("billing", ("orders", 0, 41), ("orders", 1, 20))]
    commit_point(archive, 3, topics=[clicks, topic_state("orders", state, captured=3)], segments=more, groups=groups)


def _expire(store: Store, grace: timedelta) -> None:
    """Restore point 2 goes, and the oldest records. 3 is pinned and has a label."""
    pin(store, "1")
    expire(store, Expiry(Policy(last=1), grace=grace), 60, Silent(), confirm=True)
    release(store, "1")
    newest = datetime.fromisoformat(open_archive(store).restore_points[-1].committed_at)
    older_than = newest - datetime.fromtimestamp(T0 / 1000 + 8, UTC)
    expire(store, Expiry(Policy(), older_than, grace), 60, Silent(), confirm=True)
    pin(store, "3")
    label(store, "3", "before-migration")


def _objects(store: Store) -> Objects:
    return {entry.key: store.get(entry.key) for entry in store.list()}


def _restore(store: Store) -> Iterator[MapPartName]:
    """Write the files of a finished restore: each unit in two attempts, the second of them in two transactions."""
    content = select_content(RestoreRequest.of(Restore(restore_id=RESTORE)), store)
    plan = plan_restore(RestoreRequest.of(Restore(restore_id=RESTORE)), content, "target")
    write_plan(store, plan, inline=0)
    tables = []
    for number, unit in enumerate(plan.units):
        for n, part in enumerate(unit):
            name = MapPartName("b", n - 1) if n else MapPartName("a", 0)
            table = runs_table({part.tp: _went(store, part, 100 * n)})
            a_map_part(store, name, table, restore_id=RESTORE, unit=number, previous=MapPartName("a", 0) if n else None)
            tables.append(MapPart(table))
        yield name
    write_map(store, RESTORE, tables)
    report = make_report(
        plan, store.url, planned(plan), groups=(), warnings=["as planned"], seconds={"run": 1.0}, status="restored"
    )
    store.put(layout.restore_key(RESTORE, layout.REPORT), dump(report))


def _went(store: Store, part: UnitRange, target: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the offsets of a unit whose records the broker put one after the other from `target` on."""
    offsets = [p.block.offsets for p in read_range(store, part) if p.block is not None]
    sources = np.concatenate(offsets)
    runs = runs_of(sources, np.arange(target, target + len(sources)))
    return runs.source, runs.target, runs.count


_KINDS = {
    "archive": r"archive\.json",
    "lease": r"lock\.json",
    "latest": r"catalog/latest\.json",
    "catalog": r"catalog/\d+\.json",
    "table": r"tables/.*\.parquet",
    "derived mark": r"derived\.json",
    "manifest": r"points/[^/]+/manifest\.json",
    "groups": r"points/[^/]+/groups\.json",
    "metadata": r"points/[^/]+/metadata\.json",
    "records": r"topics/.*_records",
    "compressed records": r"topics/.*_records\.zst",
    "segment index": r"topics/.*_from_offset_\d+_index",
    "partition index": r"topics/.*/index_partition_\d+",
    "group offsets": r"topics/.*/consumer_offsets_partition_\d+",
    "plan": r"restores/[^/]+/plan\.json",
    "plan's table": r"restores/[^/]+/segments-[^/]+",
    "map part": r"restores/[^/]+/map/.*",
    "offset map": r"restores/[^/]+/offsets\.parquet",
    "report": r"restores/[^/]+/report\.json",
}
_BY_CATALOG = ("catalog", "table", "manifest", "groups", "metadata", "records", "compressed records", "segment index")
"""The kinds of files that a catalog refers to; those that only an earlier one refers to are kinds of their own."""
_WAYS = ("flip", "cut", "append", "erase", "swap", "copy", "older", "foreign", "delete")


@dataclass(frozen=True)
class Change:
    """A change: `way` was done to a file of `kind`; `keys` are the objects that were changed or deleted."""

    kind: str
    way: str
    keys: tuple[str, ...]
    objects: Objects


def kind_of(key: str, sample: Sample) -> str:
    kind = next(kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, key))
    if kind not in _BY_CATALOG or key in sample.newest:
        return kind
    return f"earlier {kind}" if kind in ("catalog", "table") else "dropped"


def change(sample: Sample, rng: random.Random) -> Change:
    """Some change of one file, or of two of a kind. Kinds are as likely as each other."""
    by_kind: dict[str, list[str]] = {}
    for key in sorted(sample.objects):
        by_kind.setdefault(kind_of(key, sample), []).append(key)
    while True:
        kind = rng.choice(sorted(by_kind))
        way = rng.choice(_WAYS)
        key = rng.choice(by_kind[kind])
        changed = _changed(sample, rng, way, key, rng.choice(by_kind[kind]))
        objects = {k: v for k, v in (sample.objects | changed).items() if v is not None}
        keys = tuple(sorted(k for k in changed if objects.get(k) != sample.objects[k]))
        if keys:
            return Change(kind, way, keys, objects)


def _changed(sample: Sample, rng: random.Random, way: str, key: str, other: str) -> dict[str, bytes | None]:
    """The new bytes of the keys that it is about; None: deleted."""
    data = sample.objects[key]
    match way:
        case "swap":
            return {key: sample.objects[other], other: data}
        case "copy":
            return {key: sample.objects[other]}
        case "older":
            return {key: sample.older.get(key, data)}
        case "foreign":
            return {key: sample.foreign.get(key, data)}
        case "delete":
            return {key: None}
        case "cut":
            return {key: data[: rng.randrange(len(data.rstrip()))]}  # the line feed at its end is no loss
        case "append":
            return {key: data + rng.randbytes(rng.randint(1, 64))}
        case "erase":
            at = rng.randrange(len(data))
            size = min(rng.randint(1, 64), len(data) - at)
            return {key: data[:at] + bytes(size) + data[at + size :]}
        case _:
            flipped = bytearray(data)
            for _ in range(rng.choice((1, 1, 1, 2, 8))):
                flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return {key: bytes(flipped)}


DERIVED = ("partition index", "group offsets")
HARMLESS = {
    ("lease", "delete"),  # nobody holds it
    ("lease", "older"),
    ("lease", "foreign"),  # a lease says nothing of the archive it is in
    ("latest", "delete"),  # a longer listing tells the same
    ("latest", "older"),
    ("derived mark", "delete"),  # the next writer writes the derived files once more
    ("derived mark", "older"),
    ("report", "delete"),  # a restore that is resumed, and finds itself done
    ("plan", "delete"),  # one that was never begun
}
"""Changes that need not be noticed: a restore returns the same records."""
IRRELEVANT = ("dropped",)
"""Files that no restore point needs: they wait for the sweep, or for the run that salvages them."""
UNSEEN = {("map part", "delete")}
"""A missing last offset-map part of a unit: only the target knows of it, and only a resumed restore asks for it."""


@dataclass(frozen=True)
class Answer:
    """The answer of a restore: `value` stands for its result; None where `error` was raised."""

    value: str | None
    error: KbackupError | None = None


@dataclass(frozen=True)
class Seen:
    """The findings of verify in an archive, by file, and the answers of restores."""

    findings: dict[str, list[str]]
    answers: dict[str, Answer]


def inspect(objects: Objects, sample: Sample) -> Seen:
    """Run verify and restores on an archive. Raises any error but a `KbackupError`."""
    store = MemoryStore("memory://archive", clock=lambda: 0.0)
    for key, data in objects.items():
        store.put(key, data)
    restores: dict[str, Callable[[], str]] = {
        "restore of the latest": lambda: _restored(store, "latest"),
        "restore of the first": lambda: _restored(store, 1),
        "resumed restore": lambda: _resumed(store, sample),
        "finished restore": lambda: _finished(store),
    }
    return Seen(_verified(store), {name: _answer(ask) for name, ask in restores.items()})


def judge(change: Change, before: Seen, after: Seen) -> tuple[str, list[str]]:
    """Return the outcome of a change (refused, found, harmless), and what is wrong with it."""
    wrong: list[str] = []
    refused = False
    for name, answer in after.answers.items():
        due = before.answers[name]
        if isinstance(answer.error, NotFoundError) and (change.kind, change.way) in HARMLESS:
            continue  # it says itself what is not there
        if answer.error is not None:
            refused = True
            names = (*change.keys, f"restore {RESTORE} ")
            if not any(name in str(answer.error) for name in names):
                wrong.append(f"{name}: no file is named: {answer.error}")
        elif answer.value != due.value:
            wrong.append(f"{name}: brings something else back")
    named = any(key in after.findings for key in change.keys)
    if after.findings and not named:
        wrong.append(f"verify names others: {after.findings}")
    if refused and not after.findings and (change.kind, change.way) not in UNSEEN:
        wrong.append("verify found nothing where a restore was refused")
    if refused or after.findings:
        return "refused" if refused else "found", wrong
    if change.kind in DERIVED and change.way != "delete":
        wrong.append("verify found nothing in a derived file")
    if change.kind not in IRRELEVANT and (change.kind, change.way) not in HARMLESS:
        wrong.append("nobody noticed")
    return "harmless", wrong


def _answer(ask: Callable[[], str]) -> Answer:
    try:
        with patch.object(ThreadPoolExecutor, "submit", _at_once):
            return Answer(ask())
    except KbackupError as error:
        return Answer(None, error)


def _at_once(pool: object, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(call(*arguments))
    except Exception as error:  # noqa: BLE001 (it comes out where the result is asked for)
        done.set_exception(error)
    return done


def _verified(store: Store) -> dict[str, list[str]]:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    # threads cost more than what they do here
    with patch("kbackup.spark.tasks.run_tasks", run_here), patch.object(ThreadPoolExecutor, "submit", _at_once):
        try:
            report = verify_job.verify(store, "all", False, lambda: None, Silent())  # type: ignore[arg-type,return-value]
        except CorruptError as error:
            return {"": [str(error)]}
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.file, []).append(finding.what)
    return found


def _restored(store: Store, point: int | Literal["latest"]) -> str:
    options = Restore(restore_id="another", restore_point=point)
    plan = make_plan(options, store, "target")
    return _brought(store, plan)


def _resumed(store: Store, sample: Sample) -> str:
    key = layout.restore_key(RESTORE, layout.PLAN)
    plan = with_segments(store, load(RestorePlan, store.get(key), key))
    check_same_archive(plan, open_archive_or_folder(store))
    names = ((unit, committed_names(store, RESTORE, unit, last)) for unit, last in enumerate(sample.last))
    said = [str(part.runs.to_pylist()) + str(part.cut) for part in read_map_parts(store, RESTORE, names)]
    return _brought(store, plan) + hashlib.sha256("".join(said).encode()).hexdigest()


def _finished(store: Store) -> str:
    """Return a checksum of a finished restore's files, as a resumed restore and 'kbackup groups' read them."""
    plan, offsets = (layout.restore_key(RESTORE, name) for name in (layout.PLAN, layout.OFFSETS))
    report = finished_report(RestoreJournal(store, RESTORE), load(RestorePlan, store.get(plan), plan))
    if report is None:
        raise NotFoundError(f"{layout.restore_key(RESTORE, layout.REPORT)} is not there")
    told = msgspec.json.encode(report) + str(decode(store.get(offsets), offsets).to_pylist()).encode()
    return hashlib.sha256(told).hexdigest()


def _brought(store: Store, plan: RestorePlan) -> str:
    """Return a checksum of all that a restore would write to the target."""
    check_segments(store, [part.segments for unit in plan.units for part in unit])
    sums = hashlib.sha256(msgspec.json.encode((plan.restore_point, plan.topics, plan.groups)))
    for unit in plan.units:
        for part in unit:
            sums.update(f"{part.topic}-{part.partition} to {part.target}".encode())
            for result in read_range(store, part):
                if result.block is not None:
                    sums.update(result.block.offsets.tobytes())
                    sums.update(result.block.data.tobytes())
    return sums.hexdigest()


@dataclass
class Result:
    """Cases by kind of file and outcome, and what went wrong."""

    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def run(cases: int, seed: int) -> Result:
    result = Result()
    made = [(sample, inspect(sample.objects, sample)) for sample in samples()]
    for _, whole in made:
        assert not whole.findings, whole.findings
        assert all(answer.error is None for answer in whole.answers.values()), whole.answers
    for number in range(cases):
        sample, whole = made[number % len(made)]
        changed = change(sample, random.Random(f"{seed} {number}"))
        case = f"case {number} of seed {seed}: {changed.way} {', '.join(changed.keys)}"
        try:
            outcome, wrong = judge(changed, whole, inspect(changed.objects, sample))
        except Exception as error:  # noqa: BLE001 (whatever comes out is what is looked for)
            outcome, wrong = "traceback", [f"{type(error).__name__}: {error}"]
        result.counted[changed.kind, outcome] += 1
        result.wrong += [f"{case}: {what}" for what in wrong]
    return result
