"""Writers, expirers, undos, sweepers, readers and copies at once: every interleaving of their store calls.

A crash at every step is in it: the invariants, and what later runs make of it, are checked in every state
(`interleaving`). Schedules go by rising number of changes between actors, up to a bound. No actor has a lease: each
may sleep for any time before any call. Seven ways to break the protocol show that the checker finds what it should.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog import commit as commits
from kbackup.archive.catalog import copies, operations, sweep
from kbackup.archive.catalog.documents import Latest, TableRef
from kbackup.archive.catalog.merging import merge_segments
from kbackup.archive.catalog.rewriting import Swap
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.tables import Chunk, Rows, encode, write_rows
from kbackup.archive.models import dump
from kbackup.archive.reader import open_archive
from kbackup.errors import AlreadyExistsError, RefusedError
from kbackup.store.base import Store
from tests.support.exhaustive import sample
from tests.support.faulty_store import FaultyStore, Operation
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog import scenarios
from tests.unit.archive.catalog.scenarios import (
    SCENARIOS,
    Actor,
    ViolationError,
    Visible,
    backup,
    backup_to,
    commits_and_segments,
    compact,
    copy,
    deletes_of_sweeper,
    empty_copy,
    expire,
    hints_too,
    interrupted,
    made,
    made_and_expired,
    merge,
    mergeable,
    reader,
    reads_too,
    run,
    sweep_once,
    sweeper,
    sweeper_beside,
    sweeper_without_grace,
    torn,
    undo,
)

SOAKED = 5000  # executions of each scenario


def sampled() -> int:
    """Limit executions, by rising number of changes between actors: few for a sample, `SOAKED` for a soak."""
    return len(sample(range(300), 30, regular=150))


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


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("name", SCENARIOS)
def test_writers_keep_the_archive_whole_in_every_interleaving(name: str) -> None:
    check_interleavings(name, sampled())


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_writers_keep_the_archive_whole_in_more_interleavings(name: str) -> None:
    check_interleavings(name, SOAKED)


def check_interleavings(name: str, limit: int) -> None:
    report = SCENARIOS[name].explore(limit)
    print(f"{name}: {report}")  # `pytest -rP`
    errors = {error for end in report.ends for error in end}
    assert errors <= {"", "LeaseLostError", "LockedError", "RefusedError"}
    assert any("" in end for end in report.ends), "nobody ever succeeds"


@pytest.mark.parametrize("others", [[sweeper], [lambda store: copy(_source(), store)]], ids=["sweeper", "another copy"])
def test_every_interleaving_at_the_address_of_a_copy(others: list[Actor]) -> None:
    report = run(with_copy, [lambda store: copy(_source(), store), *others], sweeper_beside, sampled())
    print(report)
    assert {error for end in report.ends for error in end} <= {"", "LeaseLostError", "RefusedError"}


def copy_of(source: MemoryStore) -> MemoryStore:
    target = empty_copy(source)
    copy(source, target)
    return target


@pytest.mark.parametrize(("number", "sweeping"), [(1, sweeper_without_grace), (2, sweeper)], ids=["a copy", "copies"])
def test_every_interleaving_at_the_address_of_a_copy_that_gets_a_merged_segment(number: int, sweeping: Actor) -> None:
    with scenarios.repeatable():
        source = mergeable()
        before = copy_of(source)
        merge(source)
    copies_of_it: list[Actor] = [lambda store: copy(source, store)] * number
    # A segment that was sent may be sent again, so a sweep leaves it: the epilogue would call it an orphan.
    actors = [*copies_of_it, sweeping]
    report = run(before.copy, actors, sweeper_beside, sampled(), every=1_000_000)
    print(report)
    assert {error for end in report.ends for error in end} <= {"", "LeaseLostError", "RefusedError"}


_sources: list[MemoryStore] = []


def _source() -> MemoryStore:
    if not _sources:
        _sources.append(source_of_copy())
    return _sources[0]


# The checker of interleavings finds each fault that is put into the archive's code.


def find(base: Callable[[], MemoryStore], actors: Sequence[Actor], visible: Visible = commits_and_segments) -> None:
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

    def later(store: Store, rows: Rows, names: Iterator[str]) -> tuple[Rows, tuple[TableRef, ...]]:
        written = MemoryStore()
        result = write_rows(written, rows, names)
        pending.extend((entry.key, written.get(entry.key)) for entry in written.list())
        return result

    def hint(store: Store, state: Any) -> None:
        put_hint(store, state)
        while pending:
            store.put_new(*pending.pop())

    put_hint = commits.write_hint
    with (
        broken(commits, "write_rows", later),
        broken(commits, "write_hint", hint),
        pytest.raises(ViolationError, match="is missing, its catalog refers to it"),
    ):
        find(lambda: made(2), [backup_to(4), backup_to(4)], hints_too)


@pytest.mark.exhaustive
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

    def by_content(store: Store, rows: Rows, names: Iterator[str]) -> tuple[Rows, tuple[TableRef, ...]]:
        chunks = []
        for chunk in rows.chunks:
            ref = chunk.ref
            if ref is None:
                data = encode(chunk.read())
                digest = hashlib.sha256(data).hexdigest()
                ref = TableRef(key=layout.table_key(1, digest, 0), size=len(data), sha256=digest, rows=chunk.rows)
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
        pytest.raises(ViolationError, match="is missing, its catalog refers to it"),
    ):
        find(base, [backup_to(6), sweeper], sweeper_beside)


def test_a_merge_that_commits_after_a_sweep_is_found() -> None:
    def careless(state: State, rewrite: int, _swept: int, swaps: Sequence[Swap]) -> State:
        return merge_segments(state, rewrite, state.swept, swaps)

    with broken(scenarios, "merge_segments", careless), pytest.raises(ViolationError, match="does not exist"):
        find(mergeable, [merge, sweeper_without_grace], deletes_of_sweeper)


def test_a_merge_across_a_restore_point_that_comes_back_is_found() -> None:
    with broken(scenarios, "undoable_points", lambda *_: frozenset()), pytest.raises(ViolationError, match="lacks"):
        find(lambda: made_and_expired(1), [merge, undo])


def test_a_compaction_for_which_a_restore_point_that_comes_back_does_not_count_is_found() -> None:
    with (
        broken(scenarios, "kept_points", lambda archive: {*archive.state.numbers.tolist()}),
        pytest.raises(ViolationError, match="needs superseded records"),
    ):
        find(lambda: made_and_expired(1), [compact, undo])


def test_a_sweeper_that_deletes_beyond_the_end_is_found() -> None:
    def anything(key: str, *_: object) -> bool:
        place = layout.parse_topic_key(key)
        return place is not None and layout.parse_segment(place[1]) is not None

    with broken(sweep, "_may_go", anything), pytest.raises(ViolationError, match="does not exist"):
        find(lambda: interrupted(6, 2, 4), [sweeper, backup_to(7)], deletes_of_sweeper)


def test_a_writer_that_deletes_an_orphan_in_its_way_is_found() -> None:
    """A run sleeps before its delete for longer than its lease; it hits a segment that the next run committed."""

    def delete(store: Store, key: str, extra_zeros: int) -> int:
        store.delete([key])
        return extra_zeros

    with (
        broken(scenarios, "pass_orphan", delete),
        pytest.raises(ViolationError, match=r"does not exist|has other bytes"),
    ):
        find(torn, [backup_to(6), backup_to(6)])


class MergedAndSweptMeanwhile(FaultyStore):
    """When a backup has begun, somebody else merges segments, and deletes what that replaces without a grace time."""

    done = False

    def _before(self, operation: Operation, key: str) -> None:
        if operation == "get" and key.startswith(layout.TABLES) and self._has_begun() and not self.done:
            self.done = True
            merge(self.inner)
            sweeper_without_grace(self.inner)
        super()._before(operation, key)

    def _has_begun(self) -> bool:
        return open_archive(self.inner).state.open_run is not None


def test_what_a_sweep_deletes_under_a_backup_is_no_damage() -> None:
    with scenarios.repeatable():
        store = MergedAndSweptMeanwhile(mergeable())
        with pytest.raises(RefusedError, match="deleted objects that it was about to read"):
            backup(store, 8)
        assert store.done
        backup(store.inner, 8)
        scenarios.check(store.inner)
