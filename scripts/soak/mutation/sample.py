"""The archive that is damaged: every kind of file that there is, small enough to be verified in milliseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from kbackup.archive import layout
from kbackup.archive.catalog.sweep import referred_keys
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.offset_map import MapPartName, runs_table, write_map, write_map_part
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.run import begin_writing
from kbackup.archive.segments.writer import Target
from kbackup.config.models import Restore
from kbackup.jobs.points import label, pin, release
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.report import make_report, planned
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.kafka.kernel_protocol import runs_of
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.types import Int64Array
from scripts.soak.frozen_store import FrozenStore
from tests.support.archives import T0, commit_point, group_at, make_archive, topic_state, write
from tests.support.memory_store import MemoryStore

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
    archive = make_archive(store)
    before = _objects(store)
    _add_third(archive)
    if grace is not None:
        _expire(store, grace)
    _interrupt(store)
    last = tuple(_restore(store))
    objects = _objects(store)
    committed = open_archive(store).committed
    return Sample(
        objects,
        {key: data for key, data in before.items() if objects.get(key, data) != data},
        _under_keys_of(objects, foreign),
        last,
        frozenset(referred_keys(committed) | {layout.catalog_key(committed.state.number)}),
    )


def _under_keys_of(objects: Objects, foreign: Objects) -> Objects:
    """The objects of another archive under the keys of this one: the names of runs and attempts differ."""
    there = {_nameless(key): data for key, data in foreign.items()}
    return {key: there[_nameless(key)] for key in objects if _nameless(key) in there}


def _nameless(key: str) -> str:
    return re.sub(r"-[0-9a-f]{32}", "", key)


def _add_third(archive: Archive) -> None:
    """Some more records of a topic, compressed from now on."""
    parent = archive.restore_point(2)
    older = archive.segments(parent)
    more = write(archive.store, Target("orders", 1, 1, 1000, "zstd"), range(12, 30))
    orders = [[s for s in older if (s.topic, s.partition) == ("orders", p)] for p in range(3)]
    state = [(0, 41, orders[0]), (0, 30, [*orders[1], *more]), (0, 0, [])]
    clicks = next(t for t in parent.topics if t.name == "clicks")
    groups = [group_at("billing", ("orders", 0, 41), ("orders", 1, 20))]
    commit_point(archive, 3, [clicks, topic_state("orders", 3, "present", state)], more, groups)


def _interrupt(store: Store) -> None:
    """A run that was cut off: it is open, and left a segment that no catalog refers to."""
    with HeldLease(store, "kbackup backup", 60) as lease:
        begin_writing(store, lease, "backup")
    write(store, Target("orders", 1, 1, 1000, "zstd"), range(30, 40))


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
    return dict(FrozenStore.of(store).objects)


def _restore(store: Store) -> Iterator[MapPartName]:
    """Write the files of a finished restore: each unit in two attempts, the second of them in two transactions."""
    content = select_content(Restore(restore_id=RESTORE), store)
    plan = plan_restore(Restore(restore_id=RESTORE), content, "target")
    store.put_new(layout.restore_key(RESTORE, layout.PLAN), dump(plan))
    tables = []
    for number, unit in enumerate(plan.units):
        for n, part in enumerate(unit):
            name = MapPartName("b", n - 1) if n else MapPartName("a", 0)
            table = runs_table({part.tp: _went(store, part, 100 * n)})
            write_map_part(store, RESTORE, number, name, table, MapPartName("a", 0) if n else None)
            tables.append(table)
        yield name
    write_map(store, RESTORE, tables)
    report = make_report(plan, store.url, planned(plan), (), ["as planned"], {"run": 1.0}, "restored")
    store.put(layout.restore_key(RESTORE, layout.REPORT), dump(report))


def _went(store: Store, part: UnitRange, target: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the offsets of a unit whose records the broker put one after the other from `target` on."""
    offsets = [p.block.offsets for p in read_range(store, part) if p.block is not None]
    sources = np.concatenate(offsets)
    runs = runs_of(sources, np.arange(target, target + len(sources)))
    return runs.source, runs.target, runs.count
