"""Archives in memory at which scenarios begin."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive import layout
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.store.base import Store
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.actors import LEASE, backup, copy, key_of, write_segments
from tests.unit.archive.catalog.invariants import check


def made(*ends: int) -> MemoryStore:
    """An archive with a restore point for each of `ends`."""
    store = MemoryStore(clock=lambda: 0.0)
    open_or_create(store)
    store.delete([e.key for e in store.list("check")])
    for end in ends:
        backup(store, end)
    return store


def interrupted(end: int, *ends: int, data: bytes = b"") -> MemoryStore:
    """The same, with a run that died when it had written segments up to `end`; `data`: the last one is this."""
    store = made(*ends)
    at = ends[-1]
    begin_writing(store, LEASE, "backup")
    for segment in write_segments(store, at, end, 2, lambda: 0.0):
        at = segment.first
    if data:
        store.put(key_of(at), data)
    return store


def empty_copy(source: Store, clock: Callable[[], float] = lambda: 0.0) -> MemoryStore:
    store = MemoryStore(clock=clock)
    store.put_new(layout.ARCHIVE, source.get(layout.ARCHIVE))
    return store


def copy_to_new(source: Store) -> None:
    """A copy to an empty address, that must succeed and be whole."""
    try:
        target = empty_copy(source)
        copy(source, target)
        check(target)
    except Exception as error:
        raise AssertionError(f"a copy failed: {type(error).__name__}: {error}") from error
