"""The sweep: deleting objects that no catalog refers to which a reader may still have open.

A delete may reach the store late, after a pause of any length. Therefore a key is deleted only when nobody creates it
again: catalogs and tables are named once, restore points have numbers that were given, and segments lie below the end
(or the log start) of their partition, or belong to an incarnation that is over. What lies at or beyond an end belongs
to the next backup.

Few catalogs decide: the newest, and the oldest one that was the newest within the grace time, by the times of the
store. Ends only grow, and what one of the catalogs between them dropped is in the oldest, or lies beyond its ends, or
was brought back in between: the catalogs that brought rows back (`Catalog.reinstated`) decide as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.opening import Committed, open_newest, read_catalog
from kbackup.archive.catalog.orphans import Orphans, open_catalog
from kbackup.archive.catalog.state import HistoryRow, State
from kbackup.archive.catalog.undo import mark_swept, undo_expiration
from kbackup.errors import CorruptError, NotFoundError, RefusedError
from kbackup.store.base import Failed, Store

_AT_ONCE = 1000
_THREADS = 16


def commit_sweep(store: Store, newest: Committed, orphans: Orphans, author: Author) -> Committed:
    """Commit that `orphans` of catalog `newest` are about to be deleted: no undo reaches back behind this commit, and
    the history of deleted catalogs stays in a table. `RefusedError` where rows were brought back in the meantime."""
    if not orphans.objects:
        return newest
    numbers = [n for e in orphans.objects if (n := layout.parse_catalog_key(e.key)) is not None]
    history = read_history(store, newest.state.archive_id, numbers)

    def operation(state: State) -> State:
        if state.reinstated != newest.state.reinstated:
            raise RefusedError(
                f"nothing was deleted: catalog {state.reinstated} brought restore points back in the meantime",
                "run the command again",
            )
        if state.swept >= orphans.upto and not history:
            return state
        known = set(state.history.columns("catalog")[0])
        rows = [row for row in history if row.catalog not in known]
        return mark_swept(replace(state, history=state.history.append(rows)), orphans.upto)

    return commit(store, newest, operation, author)


def delete_orphans(store: Store, orphans: Orphans) -> list[Failed]:
    """Returns each object that could not be deleted: a later sweep tries again."""
    keys = [each.key for each in orphans.objects]
    failed: list[Failed] = []
    for at in range(0, len(keys), _AT_ONCE):
        failed += store.delete(keys[at : at + _AT_ONCE])
    return failed


def read_history(store: Store, archive_id: str, numbers: Iterable[int]) -> list[HistoryRow]:
    """The rows of catalogs, in order; none for a catalog that a sweep has deleted."""

    def read(number: int) -> HistoryRow | None:
        try:
            made = read_catalog(store, number, archive_id).operation
        except NotFoundError:
            return None
        return HistoryRow(number, made.kind, made.run, made.by, made.at, made.summary)

    with ThreadPoolExecutor(_THREADS) as pool:
        return [row for row in pool.map(read, sorted(numbers)) if row is not None]


def last_expiration(store: Store, newest: Committed) -> int | None:
    """Return the catalog of the newest expiration that was not undone and that no sweep has reached; None without
    one."""
    undone = 0
    for number in range(newest.state.number, newest.state.swept + 1, -1):
        try:
            kind = read_catalog(store, number, newest.state.archive_id).operation.kind
        except NotFoundError:
            return None
        if kind == "undo":
            undone += 1
        elif kind == "expire":
            if not undone:
                return number
            undone -= 1
    return None


def commit_undo(store: Store, newest: Committed, number: int) -> Committed:
    """Take back the expiration of catalog `number`; `RefusedError` where a sweep may have deleted its objects."""
    archive_id = newest.state.archive_id
    try:
        after = open_catalog(store, number, archive_id).state
        before = open_catalog(store, number - 1, archive_id).state
        author = Author("undo", "", f"expiration of catalog {number} undone")
        return commit(store, newest, lambda state: undo_expiration(state, before, after), author)
    except (NotFoundError, CorruptError) as error:
        if open_newest(store, archive_id).state.swept < number - 1:
            raise
        raise RefusedError(  # a sweep was faster
            "objects of that expiration are deleted already", "run --undo within the grace time"
        ) from error
