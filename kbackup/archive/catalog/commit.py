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

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.documents import (
    Catalog,
    Label,
    Latest,
    Link,
    Operation,
    OperationKind,
    Pin,
    TableRef,
    Tables,
)
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
"""How often a commit begins again because another writer was faster: one that never wins must not write for ever."""
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
    start_after = layout.catalog_key(first - 1) if first > 1 else ""
    numbers: list[int] = []
    for entry in store.list(layout.CATALOG, start_after):
        number = layout.parse_catalog_key(entry.key)
        # `catalog/latest.json` has no number.
        if number is not None:
            numbers.append(number)
    return sorted(numbers)


def open_newest(store: Store, archive_id: str) -> Committed:
    """Return the newest catalog. `CorruptError` if a catalog that existed is missing.

    An unreadable one whose number nobody can have given is named and passed over: whoever may write can put one there.
    """
    hint = _read_hint(store, archive_id)
    # The hint may lag, so newer catalogs are looked for. It never leads: the catalog that it names did exist.
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
            if not numbers:
                raise
            newest_known = max(hint, numbers[-1])
            if not far_numbers([number], newest_known):
                raise
            log.warning("%s is passed over, no run gave it that number: %s", layout.catalog_key(number), error)


def _read_hint(store: Store, archive_id: str) -> int:
    """Return the number of the catalog that latest.json names; 0 if there is none."""
    try:
        data = store.get(layout.LATEST)
    except NotFoundError:
        return 0
    latest = load(Latest, data, layout.LATEST)
    check_archive(layout.LATEST, latest.archive_id, archive_id)
    return latest.number


def far_numbers(numbers: Iterable[int], newest: int, most: int = FAR) -> set[int]:
    """Return the numbers that are more than `most` beyond `newest`, the newest readable catalog. No run gave those
    numbers."""
    return {number for number in numbers if number > newest + most}


def open_later(store: Store, base: Committed) -> Committed:
    """Return the newest catalog after `base`, or `base` itself if it is still the newest, for one LIST. Chunks of
    tables that both have are not read again."""
    number = base.state.number
    archive_id = base.state.archive_id
    if base.catalog is None:
        return open_newest(store, archive_id)
    numbers = list_catalogs(store, number)
    later = sorted(set(numbers) - far_numbers(numbers, number))
    if number not in later:
        # A sweep deleted `base`, so there are newer catalogs; or else the archive went back, which `open_newest` tells.
        return open_newest(store, archive_id)
    if later == [number]:
        return base
    return open_catalog(store, later[-1], archive_id, base.state)


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
    known_tables = known.tables() if known is not None else {}
    tables: dict[str, Any] = {}
    for name, schema in SCHEMAS.items():
        refs: tuple[TableRef, ...] = getattr(catalog.tables, name)
        tables[name] = open_rows(store, schema, refs, known_tables.get(name))
    pins = {pin.point: pin.at for pin in catalog.pins}
    labels = {label.name: label.point for label in catalog.labels}
    rewrites_before = 0 if catalog.rewrites_before is msgspec.UNSET else catalog.rewrites_before
    return State(
        archive_id=catalog.archive_id,
        number=catalog.number,
        next_point=catalog.next_point,
        swept=catalog.swept,
        reinstated=catalog.reinstated,
        isolation_levels=frozenset(catalog.isolation_levels),
        open_run=catalog.open_run,
        origin=catalog.origin,
        pins=pins,
        labels=labels,
        rewrites_before=rewrites_before,
        **tables,
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

    `operation` may run more than once, on newer states. If it returns the state itself, nothing is written. Raises
    what `operation` raises, and `OutcomeUnknownError` if the store does not tell whether the catalog was created.
    """
    for _ in range(_ATTEMPTS):
        state = operation(base.state)
        if state is base.state:
            return base
        # Each attempt has a token of its own, so its tables get new names. A sweep may be late to delete the tables of
        # an attempt that lost, and must not hit those of this one.
        token = uuid.uuid4().hex
        made = _write(store, base, state, author, token)
        if made is not None and _is_in_history(store, made):
            if hint:
                write_hint(store, made.state)
            return made
        base = open_newest(store, base.state.archive_id)
    raise StoreError(f"archive {store.url} changed during each of {_ATTEMPTS} commits", "run the command again")


def _write(store: Store, base: Committed, state: State, author: Author, token: str) -> Committed | None:
    """Create the next catalog and return it, also if the answer was lost on the way; None if its number is taken."""
    number = base.state.number + 1
    names = (layout.table_key(number, token, index) for index in count())
    rows: dict[str, Any] = {}
    refs: dict[str, tuple[TableRef, ...]] = {}
    # All tables are written before the catalog: whatever a catalog refers to is there, wherever a crash comes.
    for table in SCHEMAS:
        rows[table], refs[table] = write_rows(store, getattr(state, table), names)
    by = f"{socket.gethostname()} pid {os.getpid()}"
    operation = Operation(kind=author.kind, token=token, run=author.run, by=by, at=now(), summary=author.summary)
    previous = None
    if base.catalog is not None:
        previous = Link(number=base.catalog.number, checksum=base.catalog.checksum)
    catalog = _catalog_of(state, number, previous, operation, Tables(**refs))
    key = layout.catalog_key(number)
    data = dump(catalog)
    try:
        store.put_new(key, data)
    except AlreadyExistsError:
        return _find_own(store, number, state.archive_id, token)
    # Read back from its text, which alone has the checksum.
    written = load(Catalog, data, key)
    return Committed(replace(state, number=number, **rows), written)


def _find_own(store: Store, number: int, archive_id: str, token: str) -> Committed | None:
    """Return catalog `number` if the attempt with this token made it; None if another one did.

    The store's client tries again after a lost answer, and is told then that the key exists: by its own first try.
    """
    try:
        found = open_catalog(store, number, archive_id)
    except NotFoundError:
        # A sweep deleted it since, so others have committed.
        return None
    is_own = found.catalog is not None and found.catalog.operation.token == token
    return found if is_own else None


def _catalog_of(state: State, number: int, previous: Link | None, operation: Operation, tables: Tables) -> Catalog:
    """Return the document that holds `state`, whose tables are written."""
    pins: list[Pin] = []
    for point, at in sorted(state.pins.items()):
        pins.append(Pin(point=point, at=at))
    labels: list[Label] = []
    for name, point in sorted(state.labels.items()):
        labels.append(Label(name=name, point=point))
    return Catalog(
        archive_id=state.archive_id,
        number=number,
        previous=previous,
        operation=operation,
        next_point=state.next_point,
        swept=state.swept,
        reinstated=state.reinstated,
        isolation_levels=tuple(sorted(state.isolation_levels)),
        open_run=state.open_run,
        origin=state.origin,
        pins=tuple(pins),
        labels=tuple(labels),
        rewrites_before=state.rewrites_before or msgspec.UNSET,
        tables=tables,
    )


def _is_in_history(store: Store, made: Committed) -> bool:
    """Return whether the newest catalog is the one just created, or follows from it.

    A run that slept may have created a catalog whose number a sweep had freed: later catalogs then follow from another
    one of that number.
    """
    catalog = made.catalog
    assert catalog is not None  # noqa: S101 (it was just created)
    later = list_catalogs(store, catalog.number + 1)
    if not later:
        return True
    if later[0] == catalog.number + 1:
        # Suppressed: a sweep deleted the next catalog just now.
        with suppress(NotFoundError):
            link = read_catalog(store, later[0], catalog.archive_id).previous
            return link is not None and link.checksum == catalog.checksum
    # The next catalog is swept. Then the newest one has the operations of all that are swept in its history.
    newest = open_newest(store, catalog.archive_id)
    if newest.catalog is not None and newest.catalog.checksum == catalog.checksum:
        return True
    operation = catalog.operation
    entry = (catalog.number, operation.run, operation.by, operation.at)
    return entry in newest.state.history.rows("catalog", "run", "by", "at")


def write_hint(store: Store, state: State) -> None:
    """Write latest.json after a commit. A failure costs readers a longer listing, nothing else."""
    latest = Latest(archive_id=state.archive_id, number=state.number)
    with suppress(StoreError, UnreachableError, LeaseLostError):
        store.put(layout.LATEST, dump(latest))


# The newest catalog that this machine has read at each address, by its number and checksum.
#
# Whoever may write to a bucket can replace catalogs, or with more rights delete the newest ones, and then the archive
# is another one, without a trace in the bucket. A machine that has read the catalog notices.

_TRIED = 3
"""How many of the newest catalogs are tried before none counts as readable."""


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
        # The catalog that was seen is there and can't be read. The command names it, and a repair mends it.
        is_damaged = seen.number in numbers and newest.number < seen.number
        if newest.number < seen.number and not is_damaged and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} was rolled back: its newest catalog is {newest.number or 'missing'}, "
                f"but this machine has seen catalog {seen.number}",
                "find out who deleted the newer ones and restore them from bucket versions or a copy; "
                "pass --accept-rollback to go on with the older state",
            )
        # Without a checksum (the machine lacked the key then) and without the object there is nothing to compare.
        same_number = None
        if seen.checksum and seen.number in numbers:
            same_number = self._load(seen.number)
        if same_number is not None and same_number.checksum != seen.checksum and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} is another one: catalog {seen.number} is not the one that this machine "
                "has seen",
                "find out who replaced it and restore it from a bucket version or a copy; "
                "pass --accept-rollback to go on with the archive as it is",
            )
        # If the older one were kept now, the archive could go back to it unnoticed.
        if not is_damaged:
            self._keep(newest, seen)

    def remember(self) -> None:
        """Keep the newest catalog, which this command may have committed. One LIST, one GET."""
        seen = self._read()
        numbers = self._numbers(seen.number)
        newest = self._newest(numbers, seen.number)
        self._keep(newest, seen)

    def _numbers(self, seen: int) -> list[int]:
        """List the catalogs from the one that was seen on, or all if none of them follows it closely."""
        numbers = list_catalogs(self._store, seen)
        near = set(numbers) - far_numbers(numbers, seen)
        if not near and seen > 1:
            return list_catalogs(self._store)
        return numbers

    def _load(self, number: int) -> Link | None:
        """Return a catalog's number and checksum; None if it can't be read, which the command reports."""
        key = layout.catalog_key(number)
        with suppress(NotFoundError, CorruptError, WrongKeyError):
            catalog = load(Catalog, self._store.get(key), key)
            if catalog.number == number:
                return Link(number=number, checksum=catalog.checksum)
        return None

    def _newest(self, numbers: list[int], seen: int) -> Link:
        """Return the newest catalog that can be read: anybody who may write can put an object under a number. Without
        one, as without the key, the newest number that is not far beyond `seen`, and no checksum."""
        near = sorted(set(numbers) - far_numbers(numbers, seen))
        # The far numbers come first: a forged one is skipped as unreadable, and a true one is the newest catalog.
        for tried in (numbers, near):
            for number in reversed(tried[-_TRIED:]):
                link = self._load(number)
                if link is not None:
                    return link
        return Link(number=max(near or numbers, default=0), checksum="")

    def _keep(self, newest: Link, seen: Link) -> None:
        """Keep the number and the checksum of the newest catalog, if it was read."""
        is_unread = newest.number > 0 and not newest.checksum
        if newest == seen or is_unread:
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
            # A file that can't be understood is a machine that has seen nothing: the next command writes it anew.
            return Link(number=0, checksum="")
