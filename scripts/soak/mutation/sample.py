"""The archive that is damaged: every kind of file that there is, small enough to be verified in milliseconds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np

from kbackup.archive import layout
from kbackup.archive.commit import read_intent, seal_unfinished
from kbackup.archive.fold import fold
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump
from kbackup.archive.offset_map import PartName, runs_table, write_map, write_part
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.sweep import waste
from kbackup.archive.writer import Target
from kbackup.config.models import Restore
from kbackup.jobs.expire import Expiry, expire
from kbackup.jobs.expire_policy import Policy
from kbackup.jobs.keep import keep
from kbackup.jobs.listen import Silent
from kbackup.jobs.restore_choose import choose_content, choose_plan
from kbackup.jobs.restore_plan import UnitPart
from kbackup.jobs.restore_read import read_part
from kbackup.jobs.restore_report import make_report, planned
from kbackup.kafka.runs import runs_of
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.types import Int64Array
from scripts.soak.frozen_store import FrozenStore
from tests.support.archives import T0, commit_point, group_at, make_archive, topic_state, write

RESTORE = "r1"
Objects = dict[str, bytes]


@dataclass(frozen=True)
class Sample:
    """`objects` is the archive; `older` what stood under its keys before, `foreign` what stands there in another
    archive; `last` names each unit's last part of the offset map."""

    objects: Objects
    older: Objects
    foreign: Objects
    last: tuple[PartName, ...]


def samples() -> list[Sample]:
    """One with checkpoints, one without, and one that restore points and records were expired of."""
    with tempfile.TemporaryDirectory(prefix="kbackup-mutation-") as root:
        foreign = {
            expires: _made(Path(root) / f"foreign {expires}", checkpoints=True, expires=expires)[0]
            for expires in (False, True)
        }
        return [
            Sample(whole, older, foreign[expires], last)
            for name, checkpoints, expires in (
                ("folded", True, False),
                ("plain", False, False),
                ("expired", True, True),
            )
            for whole, older, last in [_made(Path(root) / name, checkpoints, expires)]
        ]


def _made(root: Path, checkpoints: bool, expires: bool) -> tuple[Objects, Objects, tuple[PartName, ...]]:
    store = open_store(str(root))
    with HeldLease(store, "kbackup backup", 60):
        archive = make_archive(store)
        before = _objects(store)
        _fold(archive, checkpoints)
        _add_third(archive)
        _fold(archive, checkpoints)
    if expires:
        _expire(store)
    last = tuple(_restore(store))
    after = _objects(store)
    return after, {key: data for key, data in before.items() if after.get(key, data) != data}, last


def _add_third(archive: Archive) -> None:
    """Some more records of a topic, compressed from now on; and a number 4 of a run that was cut off and sealed."""
    parent = archive.restore_point(2)
    older = archive.segments(parent)
    more = write(archive.store, Target("orders", 1, 1, 1000, "zstd"), range(12, 30))
    orders = [[s for s in older if (s.topic, s.partition) == ("orders", p)] for p in range(3)]
    state = [(0, 41, orders[0]), (0, 30, [*orders[1], *more]), (0, 0, [])]
    clicks = next(t for t in parent.topics if t.name == "clicks")
    groups = [group_at("billing", ("orders", 0, 41), ("orders", 1, 20))]
    commit_point(archive, 3, [clicks, topic_state("orders", 3, "present", state)], more, groups)
    intent = read_intent(archive, 3)
    cut_off = msgspec.structs.replace(intent, seq=4, parent=3, run_id="run 4")
    archive.store.put_new(layout.backup_key(4, layout.INTENT), dump(cut_off))
    archive.forget()
    seal_unfinished(archive, "run 5")


def _expire(store: Store) -> None:
    """Restore point 2 is gone, and the oldest records; both expirations are there. 3 is pinned."""
    keep(store, "1", 60, undo=False)
    expire(store, Expiry(Policy(last=1), grace=timedelta(0)), 60, Silent(), confirm=True)
    keep(store, "1", 60, undo=True)
    newest = datetime.fromisoformat(open_archive(store).restore_points[-1].committed_at)
    older_than = newest - datetime.fromtimestamp(T0 / 1000 + 8, UTC)
    expire(store, Expiry(Policy(), older_than), 60, Silent(), confirm=True)
    sizes = {entry.key: entry.size for entry in store.list()}
    gone = waste(open_archive(store), sizes, timedelta(0)).keys
    store.delete([key for key in gone if key.startswith(layout.TOPICS)])
    keep(store, "3", 60, undo=False)


def _objects(store: Store) -> Objects:
    return dict(FrozenStore.of(store).objects)


def _fold(archive: Archive, wanted: bool) -> None:
    head = open_archive(archive.store).head
    if wanted and head is not None:
        archive.forget()
        fold(archive, head, lambda: None, every=1)


def _restore(store: Store) -> Iterator[PartName]:
    """What a finished restore leaves: each unit in two attempts, the second of them in two transactions."""
    content = choose_content(Restore(restore_id=RESTORE), store)
    plan = choose_plan(Restore(restore_id=RESTORE), content, "target")
    store.put_new(layout.restore_key(RESTORE, layout.PLAN), dump(plan))
    tables = []
    for number, unit in enumerate(plan.units):
        for n, part in enumerate(unit):
            name = PartName("b", n - 1) if n else PartName("a", 0)
            table = runs_table({part.tp: _went(store, part, 100 * n)})
            write_part(store, RESTORE, number, name, table, PartName("a", 0) if n else None)
            tables.append(table)
        yield name
    write_map(store, RESTORE, tables)
    report = make_report(plan, store.url, planned(plan), (), ["as planned"], {"run": 1.0}, "restored")
    store.put(layout.restore_key(RESTORE, layout.REPORT), dump(report))


def _went(store: Store, part: UnitPart, target: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """As if the broker had put a part's records one after the other from `target` on."""
    offsets = [p.block.offsets for p in read_part(store, part) if p.block is not None]
    sources = np.concatenate(offsets)
    runs = runs_of(sources, np.arange(target, target + len(sources)))
    return runs.source, runs.target, runs.count
