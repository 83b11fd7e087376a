"""Commit a new catalog, and open the newest one.

`catalog/<number>.json` is created last, after all that it refers to, and with create-if-absent: of two writers one
commits and the other looks again. A table is named for its catalog and for one attempt, so no name is created twice.

A sweep deletes old catalogs, so a run that slept can create one whose number was given long ago. Therefore each commit
looks for later catalogs afterwards: where they don't follow from the created one, nothing was committed.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Kind, Label, Latest, Link, Operation, Pin, Tables
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import open_rows, write_rows
from kbackup.archive.identity import REPAIR
from kbackup.archive.models import dump, load
from kbackup.errors import AlreadyExistsError, CorruptError, LeaseLostError, NotFoundError, StoreError, UnreachableError
from kbackup.store.base import Store
from kbackup.util.times import now

log = logging.getLogger(__name__)

_COPIED = "take the right one from a bucket version: this one was copied from elsewhere"
_ATTEMPTS = 100
FAR = 1000
"""How far a catalog's number may be beyond the newest readable catalog: numbers are given one by one, and the hint lags
by a few."""


@dataclass(frozen=True)
class Committed:
    """A state and the catalog that holds it: None for an archive that has no catalog yet."""

    state: State
    catalog: Catalog | None


def list_catalogs(store: Store, first: int = 0) -> list[int]:
    """Return the numbers of the catalogs that are there, from `first` on, rising."""
    entries = store.list(layout.CATALOG, layout.catalog_key(first - 1) if first > 1 else "")
    return sorted(n for entry in entries if (n := layout.parse_catalog_key(entry.key)) is not None)


def open_newest(store: Store, archive_id: str) -> Committed:
    """Return the newest catalog. `CorruptError` if a catalog that existed is missing.

    An unreadable one whose number nobody can have given is named and passed over: whoever may write can put one there.
    """
    hint = 0
    with suppress(NotFoundError):
        latest = load(Latest, store.get(layout.LATEST), layout.LATEST)
        check_archive(layout.LATEST, latest.archive_id, archive_id)
        hint = latest.number
    numbers = list_catalogs(store, hint)
    if max(numbers, default=0) < hint:
        raise CorruptError(f"file {layout.catalog_key(hint)} is missing, {layout.LATEST} names it", REPAIR)
    if not any(numbers):
        return Committed(State(archive_id), None)
    while True:
        number = numbers.pop()
        try:
            return open_catalog(store, number, archive_id)
        except CorruptError as error:
            if not numbers or not far_numbers([number], max(hint, numbers[-1])):
                raise
            log.warning("%s is passed over, no run gave it that number: %s", layout.catalog_key(number), error)


def far_numbers(numbers: Iterable[int], newest: int, most: int = FAR) -> set[int]:
    """Return the numbers that are more than `most` beyond `newest`, the newest readable catalog. No run gave those
    numbers."""
    return {number for number in numbers if number > newest + most}


def open_later(store: Store, base: Committed) -> Committed:
    """Return the newest catalog after `base`, or `base` itself if it is still the newest, for one LIST. Chunks of
    tables that both have are not read again."""
    number, archive_id = base.state.number, base.state.archive_id
    if base.catalog is not None:
        numbers = list_catalogs(store, number)
        later = sorted({*numbers} - far_numbers(numbers, number))
        if later == [number]:
            return base
        if number in later:
            return open_catalog(store, later[-1], archive_id, base.state)
    return open_newest(store, archive_id)


def read_catalog(store: Store, number: int, archive_id: str) -> Catalog:
    """Read a catalog. `NotFoundError` if it was swept or never existed; `CorruptError` for another archive's."""
    key = layout.catalog_key(number)
    catalog = load(Catalog, store.get(key), key)
    check_catalog(catalog, number, archive_id)
    return catalog


def open_catalog(store: Store, number: int, archive_id: str, known: State | None = None) -> Committed:
    """Read a catalog and return its state; errors as for `read_catalog`. Chunks of a `known` state are taken over."""
    catalog = read_catalog(store, number, archive_id)
    return Committed(state_of(store, catalog, known), catalog)


def check_catalog(catalog: Catalog, number: int, archive_id: str) -> None:
    """Raise `CorruptError` if catalog `number` has another number or is of another archive."""
    key = layout.catalog_key(number)
    check_archive(key, catalog.archive_id, archive_id)
    if catalog.number != number:
        raise CorruptError(f"file {key} is of catalog {catalog.number}", _COPIED)


def check_archive(key: str, owner: str, archive_id: str) -> None:
    if owner != archive_id:
        raise CorruptError(f"file {key} belongs to archive {owner}, {layout.ARCHIVE} to {archive_id}", _COPIED)


def state_of(store: Store, catalog: Catalog, known: State | None = None) -> State:
    """Return the state that a catalog refers to. Chunks of a `known` state that it shares are taken over."""
    tables = known.tables() if known is not None else {}
    rows: dict[str, Any] = {
        name: open_rows(store, schema, getattr(catalog.tables, name), tables.get(name))
        for name, schema in SCHEMAS.items()
    }
    return State(
        archive_id=catalog.archive_id,
        number=catalog.number,
        next_point=catalog.next_point,
        swept=catalog.swept,
        reinstated=catalog.reinstated,
        isolation_levels=frozenset(catalog.isolation_levels),
        open_run=catalog.open_run,
        origin=catalog.origin,
        pins={pin.point: pin.at for pin in catalog.pins},
        labels={label.name: label.point for label in catalog.labels},
        **rows,
    )


@dataclass(frozen=True)
class Author:
    """The author of a commit: the kind of the operation, the run that makes it, and a sentence for the log."""

    kind: Kind
    run: str
    summary: str


def commit(store: Store, base: Committed, operation: Callable[[State], State], author: Author) -> Committed:
    """Apply `operation` to the newest state and create the next catalog; `base` is the state to try first.

    `operation` may run more than once, on newer states. Where it returns the state itself nothing is written. Raises
    what `operation` raises, and `OutcomeUnknownError` if the store does not tell whether the catalog was created.
    """
    for _ in range(_ATTEMPTS):
        state, token = operation(base.state), uuid.uuid4().hex
        if state is base.state:
            return base
        made = _write(store, base, state, author, token)
        if made is not None and _stands(store, made):
            _hint(store, made.state)
            return made
        base = open_newest(store, base.state.archive_id)
    raise StoreError(f"archive {store.url} changed during each of {_ATTEMPTS} commits", "run the command again")


def _write(store: Store, base: Committed, state: State, author: Author, token: str) -> Committed | None:
    """Create the next catalog and return it, also where the answer was lost on the way; None if its number is taken."""
    number, previous = base.state.number + 1, base.catalog
    names = (layout.table_key(number, token, index) for index in count())
    rows: dict[str, Any] = {}
    refs = {}
    for table in SCHEMAS:
        rows[table], refs[table] = write_rows(store, getattr(state, table), names)
    by = f"{socket.gethostname()} pid {os.getpid()}"
    catalog = Catalog(
        archive_id=state.archive_id,
        number=number,
        previous=Link(number=previous.number, checksum=previous.checksum) if previous is not None else None,
        operation=Operation(kind=author.kind, token=token, run=author.run, by=by, at=now(), summary=author.summary),
        next_point=state.next_point,
        swept=state.swept,
        reinstated=state.reinstated,
        isolation_levels=tuple(sorted(state.isolation_levels)),
        open_run=state.open_run,
        origin=state.origin,
        pins=tuple(Pin(point=point, at=at) for point, at in sorted(state.pins.items())),
        labels=tuple(Label(name=name, point=point) for name, point in sorted(state.labels.items())),
        tables=Tables(**refs),
    )
    key, data = layout.catalog_key(number), dump(catalog)
    try:
        store.put_new(key, data)
        return Committed(replace(state, number=number, **rows), load(Catalog, data, key))
    except AlreadyExistsError:
        with suppress(NotFoundError):  # swept since
            found = open_catalog(store, number, state.archive_id)
            if found.catalog is not None and found.catalog.operation.token == token:
                return found
    return None


def _stands(store: Store, made: Committed) -> bool:
    """Return whether the newest catalog is the one just created, or follows from it."""
    catalog = made.catalog
    assert catalog is not None  # noqa: S101 (it was just created)
    later = list_catalogs(store, catalog.number + 1)
    if not later:
        return True
    if later[0] == catalog.number + 1:
        with suppress(NotFoundError):  # a sweep deleted it just now
            link = read_catalog(store, later[0], catalog.archive_id).previous
            return link is not None and link.checksum == catalog.checksum
    newest = open_newest(store, catalog.archive_id)
    if newest.catalog is not None and newest.catalog.checksum == catalog.checksum:
        return True
    made_by = catalog.operation
    entry = (catalog.number, made_by.run, made_by.by, made_by.at)
    return entry in newest.state.history.rows("catalog", "run", "by", "at")


def _hint(store: Store, state: State) -> None:
    """Write latest.json after a commit. A failure costs readers a longer listing, nothing else."""
    with suppress(StoreError, UnreachableError, LeaseLostError):
        store.put(layout.LATEST, dump(Latest(archive_id=state.archive_id, number=state.number)))
