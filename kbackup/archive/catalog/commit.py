"""Commit a new catalog, and open the newest one.

`catalog/<number>.json` is created last, after all that it refers to, and with create-if-absent: of two writers one
commits and the other looks again. A table is named for its catalog and for one attempt, so no name is created twice.

A sweep deletes old catalogs, so a run that slept can create one whose number was given long ago. Therefore each commit
looks for later catalogs afterwards: where they don't follow from the created one, nothing was committed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Label, Latest, Link, Operation, OperationKind, Pin, Tables
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import open_rows, write_rows
from kbackup.archive.identity import REPAIR
from kbackup.archive.models import dump, load
from kbackup.errors import (
    AlreadyExistsError,
    CorruptError,
    LeaseLostError,
    MismatchError,
    NotFoundError,
    StoreError,
    UnreachableError,
    WrongKeyError,
)
from kbackup.store.base import Store
from kbackup.util.system import read_own, write_own
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

    kind: OperationKind
    run: str
    summary: str


def commit(
    store: Store, base: Committed, operation: Callable[[State], State], author: Author, *, hint: bool = True
) -> Committed:
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
            if hint:
                write_hint(store, made.state)
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
    operation = Operation(kind=author.kind, token=token, run=author.run, by=by, at=now(), summary=author.summary)
    link = Link(number=previous.number, checksum=previous.checksum) if previous is not None else None
    pins = [Pin(point=point, at=at) for point, at in sorted(state.pins.items())]
    labels = [Label(name=name, point=point) for name, point in sorted(state.labels.items())]
    catalog = Catalog(
        archive_id=state.archive_id,
        number=number,
        previous=link,
        operation=operation,
        next_point=state.next_point,
        swept=state.swept,
        reinstated=state.reinstated,
        isolation_levels=tuple(sorted(state.isolation_levels)),
        open_run=state.open_run,
        origin=state.origin,
        pins=tuple(pins),
        labels=tuple(labels),
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


def write_hint(store: Store, state: State) -> None:
    """Write latest.json after a commit. A failure costs readers a longer listing, nothing else."""
    with suppress(StoreError, UnreachableError, LeaseLostError):
        store.put(layout.LATEST, dump(Latest(archive_id=state.archive_id, number=state.number)))


# The newest catalog that this machine has read at each address, by its number and checksum.
#
# Whoever may write to a bucket can replace catalogs, or with more rights delete the newest ones, and then the archive
# is another one, without a trace in the bucket. A machine that has read the catalog notices.

_TRIED = 3


class SeenCatalog:
    """The memory of one archive's newest catalog: a file in `folder`, named by the archive's address."""

    def __init__(self, store: Store, folder: Path) -> None:
        address = json.dumps([store.address.server, *store.address.path])
        self._store = store
        self._file = folder / f"{hashlib.sha256(address.encode()).hexdigest()}.json"

    def check(self, accept_rollback: bool) -> None:
        """Raise `MismatchError` if the newest catalog is older than the one read before, or that one was replaced.
        One LIST, and a GET for each of the two catalogs."""
        seen = self._read()
        numbers = self._numbers(seen.number)
        newest = self._newest(numbers, seen.number)
        is_damaged = seen.number in numbers and newest.number < seen.number  # the command names it, and repair mends it
        if newest.number < seen.number and not is_damaged and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} went back: its newest catalog is {newest.number or 'missing'}, "
                f"this machine has seen catalog {seen.number}",
                "find out who deleted the newer ones and restore them from bucket versions or a copy; "
                "pass --accept-rollback to go on with the older state",
            )
        now = self._load(seen.number) if seen.checksum and seen.number in numbers else None
        if now is not None and now.checksum != seen.checksum and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} is another one: catalog {seen.number} is not the one that this machine "
                "has seen",
                "find out who replaced it and restore it from a bucket version or a copy; "
                "pass --accept-rollback to go on with the archive as it is",
            )
        if not is_damaged:
            self._keep(newest, seen)

    def remember(self) -> None:
        """Keep the newest catalog, which this command may have committed. One LIST, one GET."""
        seen = self._read()
        self._keep(self._newest(self._numbers(seen.number), seen.number), seen)

    def _numbers(self, seen: int) -> list[int]:
        """List the catalogs from the one that was seen on, or all where none of them follows it closely."""
        numbers = list_catalogs(self._store, seen)
        return list_catalogs(self._store) if seen > 1 and not {*numbers} - far_numbers(numbers, seen) else numbers

    def _load(self, number: int) -> Link | None:
        """Return a catalog's number and checksum; None if it can't be read, which the command reports."""
        key = layout.catalog_key(number)
        with suppress(NotFoundError, CorruptError, WrongKeyError):
            catalog = load(Catalog, self._store.get(key), key)
            return Link(number=number, checksum=catalog.checksum) if catalog.number == number else None
        return None

    def _newest(self, numbers: list[int], seen: int) -> Link:
        """Return the newest catalog that can be read: anybody who may write can put an object under a number. Without
        one, as without the key, the newest number that is not far beyond `seen`, and no checksum."""
        near = sorted({*numbers} - far_numbers(numbers, seen))
        for number in [*reversed(numbers[-_TRIED:]), *reversed(near[-_TRIED:])]:
            if (found := self._load(number)) is not None:
                return found
        return Link(number=max(near or numbers, default=0), checksum="")

    def _keep(self, newest: Link, seen: Link) -> None:
        if newest == seen or (newest.number and not newest.checksum):
            return
        document = {"archive": self._store.url, "catalog": newest.number, "checksum": newest.checksum}
        try:
            write_own(self._file, json.dumps(document).encode() + b"\n")
        except OSError as error:
            log.info("the newest catalog can't be kept in %s: %s", self._file.parent, error.strerror)

    def _read(self) -> Link:
        """Return the newest catalog that was seen; number 0 if none is kept or readable."""
        try:
            document = json.loads(read_own(self._file))
            return Link(number=int(document["catalog"]), checksum=str(document.get("checksum", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Link(number=0, checksum="")
