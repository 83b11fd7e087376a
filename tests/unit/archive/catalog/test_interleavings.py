"""Writers, expirers, undos, sweepers, readers and copies at once: every interleaving of their store calls.

A crash at every step is in it: the invariants, and what later runs make of it, are checked in every state
(`interleaving`). Schedules go by rising number of changes between actors, up to a bound. No actor has a lease: each
may sleep for any time before any call. Seven ways to break the protocol show that the checker finds what it should.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog import commit as commits
from kbackup.archive.catalog import copies, operations, orphans
from kbackup.archive.catalog.documents import Latest, TableRef
from kbackup.archive.catalog.tables import Chunk, Rows, encode, write_rows
from kbackup.archive.models import dump
from kbackup.errors import AlreadyExistsError
from kbackup.store.base import Store
from tests.support.exhaustive import sample
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog import actors as actors_module
from tests.unit.archive.catalog.actors import (
    backup,
    check,
    copy,
    copy_to_new,
    empty_copy,
    expire,
    finish,
    interrupted,
    made,
    read_newest,
    sweep_once,
    undo,
)
from tests.unit.archive.catalog.interleaving import (
    Actor,
    Report,
    SteppedStore,
    ViolationError,
    Visible,
    explore,
    repeatable,
)

NOW = 1000.0
SOAKED = 5000  # executions of each scenario
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


def sampled() -> int:
    """Limit executions, by rising number of changes between actors: few for a sample, `SOAKED` for a soak."""
    return len(sample(range(300), 30))


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


def with_copy() -> MemoryStore:
    """A copy of an archive that went on since; its source is `SOURCE`."""
    source = made(2, 4)
    target = empty_copy(source)
    copy(source, target)
    return target


def source_of_copy() -> MemoryStore:
    source = made(2, 4)
    backup(source, 6)
    expire(source, 1)
    return source


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


@pytest.mark.exhaustive(keep=3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving(name: str) -> None:
    check_interleavings(name, sampled())


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_more_interleavings(name: str) -> None:
    check_interleavings(name, SOAKED)


def check_interleavings(name: str, limit: int) -> None:
    base, actors, visible = SCENARIOS[name]
    report = run(base, actors, visible, limit)
    print(f"{name}: {report}")  # `pytest -rP`
    errors = {error for end in report.ends for error in end}
    assert errors <= {"", "LeaseLostError", "RefusedError"}
    assert any("" in end for end in report.ends), "nobody ever succeeds"


@pytest.mark.parametrize(
    "others", [[sweeper], [lambda store: copy(_source(), store)]], ids=["sweeper", "another copy"]
)
def test_every_interleaving_at_the_address_of_a_copy(others: list[Actor]) -> None:
    report = run(with_copy, [lambda store: copy(_source(), store), *others], sweeper_beside, sampled())
    print(report)
    assert {error for end in report.ends for error in end} <= {"", "LeaseLostError", "RefusedError"}


_sources: list[MemoryStore] = []


def _source() -> MemoryStore:
    if not _sources:
        _sources.append(source_of_copy())
    return _sources[0]


def find(
    base: Callable[[], MemoryStore], actors: Sequence[Actor], visible: Visible = commits_and_segments
) -> None:
    """Only the invariants of each state: faster than with the epilogue."""
    run(base, actors, visible, every=1_000_000)


def broken(target: Any, name: str, instead: Any) -> Any:
    return mock.patch.object(target, name, instead)


def test_without_a_fence_two_runs_commit() -> None:
    no_check = lambda state, run: None  # noqa: E731
    with (
        broken(operations, "check_open", no_check),
        broken(copies, "check_open", no_check),
        pytest.raises(ViolationError, match=r"closed|has other bytes|lacks|overlap|does not exist"),
    ):
        find(lambda: made(2), [backup_to(4), backup_to(4)])


def test_a_commit_before_its_tables_is_found() -> None:
    pending: list[tuple[str, bytes]] = []

    def later(store: Store, rows: Rows, name: Callable[[], str]) -> tuple[Rows, tuple[TableRef, ...]]:
        written = MemoryStore()
        result = write_rows(written, rows, name)
        pending.extend((entry.key, written.get(entry.key)) for entry in written.list())
        return result

    def hint(store: Store, state: Any) -> None:
        put_hint(store, state)
        while pending:
            store.put_new(*pending.pop())

    put_hint = commits._hint
    with (
        broken(commits, "write_rows", later),
        broken(commits, "_hint", hint),
        pytest.raises(ViolationError, match="is missing, a catalog refers to it"),
    ):
        find(lambda: made(2), [backup_to(4), backup_to(4)], hints_too)


def test_a_sweep_without_grace_is_found() -> None:
    actors: list[Actor] = [reader, backup_to(8), lambda store: sweep_once(store, math.inf)]
    with pytest.raises(ViolationError, match="a reader failed"):
        find(lambda: made(2, 4, 6), actors, reads_too)


def test_a_hint_that_leads_is_found() -> None:
    def hint_first(store: Store, base: Any, state: Any, *rest: Any) -> Any:
        number = base.state.number + 1
        store.put(layout.LATEST, dump(Latest(archive_id=state.archive_id, number=number)))
        return write(store, base, state, *rest)

    write = commits._write
    with (
        broken(commits, "_write", hint_first),
        pytest.raises(ViolationError, match=r"is missing, catalog/latest\.json names it"),
    ):
        find(lambda: made(2), [backup_to(4), backup_to(4)], hints_too)


def test_tables_named_by_their_content_are_found() -> None:
    """A run that died left a table; the next run writes the same bytes while a sweeper deletes what it left."""

    def by_content(store: Store, rows: Rows, name: Callable[[], str]) -> tuple[Rows, tuple[TableRef, ...]]:
        chunks = []
        for chunk in rows.chunks:
            ref = chunk.ref
            if ref is None:
                data = encode(chunk.read())
                digest = hashlib.sha256(data).hexdigest()
                ref = TableRef(
                    key=layout.table_key(1, digest, 0), size=len(data), sha256=digest, rows=chunk.rows
                )
                try:
                    store.put_new(ref.key, data)
                except AlreadyExistsError:
                    assert store.get(ref.key) == data
            chunks.append(Chunk(chunk.schema, chunk.rows, chunk.source, ref))
        return Rows(rows.schema, tuple(chunks)), tuple(c.ref for c in chunks if c.ref is not None)

    def base() -> MemoryStore:
        store = made(2, 4)
        ahead = store.copy()
        backup(ahead, 6)
        for entry in ahead.list(layout.TABLES):
            store.put(entry.key, ahead.get(entry.key))
        return store

    with (
        broken(commits, "write_rows", by_content),
        pytest.raises(ViolationError, match="is missing, a catalog refers to it"),
    ):
        find(base, [backup_to(6), sweeper], sweeper_beside)


def test_a_sweeper_that_deletes_beyond_the_end_is_found() -> None:
    def anything(key: str, *_: object) -> bool:
        place = layout.parse_topic_key(key)
        return place is not None and layout.parse_segment(place[1]) is not None

    with (
        broken(orphans, "_may_go", anything),
        pytest.raises(ViolationError, match="does not exist"),
    ):
        find(lambda: interrupted(6, 2, 4), [sweeper, backup_to(7)], deletes_of_sweeper)


def test_a_writer_that_deletes_an_orphan_in_its_way_is_found() -> None:
    """A run sleeps before its delete for longer than its lease; it hits a segment that the next run committed."""

    def delete(store: Store, key: str, spare: int) -> int:
        store.delete([key])
        return spare

    with (
        broken(actors_module, "pass_orphan", delete),
        pytest.raises(ViolationError, match=r"does not exist|has other bytes"),
    ):
        find(torn, [backup_to(6), backup_to(6)])
