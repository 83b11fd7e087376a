"""Invariants of every state of an archive, and the epilogue that follows from each."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive import layout
from kbackup.archive.catalog.commit import read_catalog
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import open_catalog, referred_keys
from kbackup.archive.models import load
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NotFoundError
from kbackup.store.base import Store
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.actors import FOLDER, backup, read_point, sweep_once


def check(store: Store) -> Archive:
    """Check the invariants of every state of the store."""
    archive = open_archive(store)
    state = archive.state
    for point in archive.restore_points:
        read_point(archive, archive.manifest(point))
    listed = {p.number for p in state.restore_points}
    assert listed | {*state.past_manifests} == {*range(1, state.next_point)}, "a restore point is gone"
    assert not listed & {*state.past_manifests}
    try:
        mark = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
        assert mark.catalog <= state.number, "derived.json names a catalog that does not exist"
    except NotFoundError:
        pass
    _check_fences(store, state)
    return archive


def _check_fences(store: Store, state: State) -> None:
    """Each run that committed segments had the last fence before."""
    fence = ""
    for number in range(1, state.number + 1):
        try:
            operation = read_catalog(store, number, state.archive_id).operation
        except NotFoundError:
            fence = ""
            continue
        if operation.kind == "begin":
            fence = operation.run
        elif operation.kind in ("backup", "copy") and fence:
            assert operation.run == fence, f"catalog {number} is of a run that was closed"


def finish(end: int, now: float) -> Callable[[MemoryStore], None]:
    """The epilogue: another backup, and a sweep with the grace time over; nothing but the archive is left then."""

    def epilogue(store: MemoryStore) -> None:
        store._clock = lambda: now
        backup(store, end)
        check(store)
        sweep_once(store, now + 1)
        archive = check(store)
        expected = referred_keys(archive.committed) | {
            layout.ARCHIVE, layout.LATEST, layout.DERIVED, layout.partition_index_key(FOLDER, 0),
            layout.group_offsets_key(FOLDER, 0),
        }  # fmt: skip
        number = archive.state.number
        before = open_catalog(store, number - 1, archive.info.id) if archive.state.swept else None
        kept = {layout.catalog_key(number)}
        if before is not None:  # the sweep's own commit came after its look
            kept |= {layout.catalog_key(number - 1)} | referred_keys(before)
        left = {e.key for e in store.list()} - expected - kept
        assert not left, f"orphans are left: {sorted(left)}"

    return epilogue
