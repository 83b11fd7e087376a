"""Run verify and restores on a changed archive, and judge their results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.restores.offset_map import decode, read_map_parts
from kbackup.archive.restores.plan import RestorePlan, check_same_archive
from kbackup.config.models import Restore
from kbackup.errors import CorruptError, KbackupError, NotFoundError
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.job import finished_report
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.preflight import check_segments
from kbackup.jobs.verify import job as verify_job
from kbackup.metrics.registry import Silent
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from scripts.soak.frozen_store import FrozenStore
from scripts.soak.mutation.change import Change
from scripts.soak.mutation.sample import RESTORE, Objects, Sample

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
    store = FrozenStore(objects)
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
    with (
        patch("kbackup.spark.tasks.run_tasks", run_here),
        patch.object(ThreadPoolExecutor, "submit", _at_once),
    ):
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
    plan = plan_restore(options, select_content(options, store), "target")
    return _brought(store, plan)


def _resumed(store: Store, sample: Sample) -> str:
    key = layout.restore_key(RESTORE, layout.PLAN)
    plan = load(RestorePlan, store.get(key), key)
    check_same_archive(plan, store)
    parts = [read_map_parts(store, RESTORE, unit, last) for unit, last in enumerate(sample.last)]
    said = [str(part.runs.to_pylist()) + str(part.cut) for part in parts]
    return _brought(store, plan) + hashlib.sha256("".join(said).encode()).hexdigest()


def _finished(store: Store) -> str:
    """Return a checksum of a finished restore's files, as a resumed restore and 'kbackup groups' read them."""
    plan, offsets = (layout.restore_key(RESTORE, name) for name in (layout.PLAN, layout.OFFSETS))
    report = finished_report(store, load(RestorePlan, store.get(plan), plan))
    if report is None:
        raise NotFoundError(f"{layout.restore_key(RESTORE, layout.REPORT)} is not there")
    told = msgspec.json.encode(report) + str(decode(store.get(offsets), offsets).to_pylist()).encode()
    return hashlib.sha256(told).hexdigest()


def _brought(store: Store, plan: RestorePlan) -> str:
    """Return a checksum of all that a restore would write to the target."""
    check_segments(store, [s for unit in plan.units for part in unit for s in part.segments])
    sums = hashlib.sha256(msgspec.json.encode((plan.restore_point, plan.topics, plan.groups)))
    for unit in plan.units:
        for part in unit:
            sums.update(f"{part.topic}-{part.partition} to {part.target}".encode())
            for result in read_range(store, part):
                if result.block is not None:
                    sums.update(result.block.offsets.tobytes())
                    sums.update(result.block.data.tobytes())
    return sums.hexdigest()
