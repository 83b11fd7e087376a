"""Scenarios of the interleaving checker: actors, the calls that are their steps, and where they begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbackup.archive import layout
from kbackup.store.base import Store
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.actors import backup, expire, read_newest, sweep_once, undo
from tests.unit.archive.catalog.beginnings import copy_to_new, interrupted, made
from tests.unit.archive.catalog.interleaving import Report, explore
from tests.unit.archive.catalog.invariants import check, finish
from tests.unit.archive.catalog.repeatable import repeatable
from tests.unit.archive.catalog.stepping import Actor, SteppedStore, Visible

NOW = 1000.0
GRACE_BEGAN = 500.0
"""Bases are made at time 0, actors run at `NOW`: what was let go in a base has no grace time left."""


def commits_and_segments(method: str, key: str) -> bool:
    """The calls of writers that another writer can observe or disturb: all others are of keys of one run alone."""
    return method in ("list", "delete") or (method == "put_new" and not key.startswith(layout.TABLES))


def deletes_of_sweeper(method: str, key: str) -> bool:
    return method in ("list", "delete") or (method == "put_new" and key.startswith(layout.CATALOG))


def reads_too(method: str, key: str) -> bool:
    return deletes_of_sweeper(method, key) or (
        method == "get" and key.startswith((layout.TABLES, layout.TOPICS))
    )


def hints_too(method: str, key: str) -> bool:
    return commits_and_segments(method, key) or key in (layout.LATEST, layout.DERIVED)


def writes_and_reads(method: str, key: str) -> bool:
    """A sweeper disturbs readers and sees every file."""
    return key not in (layout.ARCHIVE, layout.LATEST, layout.DERIVED)


def sweeper_beside(method: str, key: str) -> bool:
    return commits_and_segments(method, key) or (method == "get" and key.startswith(layout.TOPICS))


def run(
    base: Callable[[], MemoryStore],
    actors: Sequence[Actor],
    visible: Visible = commits_and_segments,
    limit: int = 1_000_000,
    every: int = 10,
) -> Report:
    with repeatable():
        began = base()

    def make() -> tuple[SteppedStore, Sequence[Actor]]:
        return SteppedStore.of(began, lambda: NOW), actors

    return explore(make, check, finish(10, 2 * NOW), visible, limit, every)


def backup_to(end: int, cut: int = 2) -> Actor:
    return lambda store: backup(store, end, cut)


def sweeper(store: Store) -> None:
    sweep_once(store, GRACE_BEGAN)


def expirer(*numbers: int) -> Actor:
    return lambda store: expire(store, *numbers)


def undo_and_expire(store: Store) -> None:
    undo(store)
    expire(store, 1)


def reader(store: Store) -> None:
    read_newest(store)


def expired(*numbers: int) -> Callable[[], MemoryStore]:
    def base() -> MemoryStore:
        store = made(2, 4, 6)
        expire(store, *numbers)
        return store

    return base


def torn() -> MemoryStore:
    """A run died, and the last segment that it wrote is damaged."""
    return interrupted(6, 2, 4, data=b"torn")


SCENARIOS: dict[str, tuple[Callable[[], MemoryStore], list[Actor], Visible]] = {
    "two writers": (lambda: made(2, 4), [backup_to(6), backup_to(7, 1)], commits_and_segments),
    "two writers and their hints": (lambda: made(2), [backup_to(4), backup_to(4)], hints_too),
    "two writers after an interrupted one": (
        lambda: interrupted(8, 2, 4), [backup_to(8), backup_to(9)], commits_and_segments,
    ),
    "two writers after an interrupted one whose segment is damaged": (
        torn, [backup_to(8), backup_to(8, 1)], commits_and_segments,
    ),
    "three writers": (
        lambda: made(2), [backup_to(4), backup_to(4), backup_to(4)],
        commits_and_segments,
    ),
    "two writers after an interrupted one whose segment is damaged, and a sweeper": (
        torn, [backup_to(6), backup_to(8), sweeper], sweeper_beside,
    ),
    "a writer and a sweeper": (expired(1, 2), [backup_to(8), sweeper], sweeper_beside),
    "a writer after an interrupted one, and a sweeper": (
        lambda: interrupted(8, 2, 4), [backup_to(9), sweeper], sweeper_beside,
    ),
    "two writers and a sweeper": (expired(1), [backup_to(7), backup_to(8), sweeper], deletes_of_sweeper),
    "a writer and an expirer": (lambda: made(2, 4, 6), [backup_to(8), expirer(1, 2)], commits_and_segments),
    "a writer and two expirers": (
        lambda: made(2, 4, 6), [backup_to(8), expirer(1), expirer(1, 2)], commits_and_segments,
    ),
    "an undo and a sweeper": (expired(1), [undo, sweeper], writes_and_reads),
    "an expirer, an undo and a sweeper": (expired(1), [expirer(2), undo, sweeper], commits_and_segments),
    "two undos": (expired(1), [undo, undo], commits_and_segments),
    "a reader and a sweeper": (expired(1), [reader, sweeper], writes_and_reads),
    "a reader, an expirer and a sweeper": (
        expired(1), [lambda store: read_newest(store, 3), expirer(2), sweeper],
        reads_too,
    ),
    "a reader, an undo that is expired again, and a sweeper": (
        expired(1), [reader, undo_and_expire, sweeper],
        reads_too,
    ),
    "a copy, a writer": (lambda: made(2, 4), [copy_to_new, backup_to(6)], writes_and_reads),
    "a copy, an expirer and a sweeper": (
        expired(1), [copy_to_new, expirer(2), sweeper],
        reads_too,
    ),
}  # fmt: skip
