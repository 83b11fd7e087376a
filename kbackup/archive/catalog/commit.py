"""Opening the newest catalog, and the commit: the creation of the next one.

`catalog/<number>.json` is created last, after all that it refers to, and with create-if-absent: of two writers one
commits and the other looks again. A table is named for its catalog and for one attempt, so no name is created twice.

A sweep deletes old catalogs, so a run that slept can create one whose number was given long ago. Therefore each commit
looks for later catalogs afterwards: where they don't follow from the created one, nothing was committed.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Kind, Label, Latest, Link, Operation, Pin, Tables
from kbackup.archive.catalog.opening import Committed, open_newest, read_catalog, state_of
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import write_rows
from kbackup.archive.models import dump, load
from kbackup.errors import AlreadyExistsError, LeaseLostError, NotFoundError, StoreError, UnreachableError
from kbackup.store.base import Store
from kbackup.util.times import now

_ATTEMPTS = 100


@dataclass(frozen=True)
class Author:
    """The author of a commit: the kind of the operation, the run that makes it, and a sentence for the log."""

    kind: Kind
    run: str
    summary: str


def commit(
    store: Store,
    base: Committed,
    operation: Callable[[State], State],
    author: Author,
) -> Committed:
    """Apply `operation` to the newest state and create the next catalog; `base` is the state to try first.

    `operation` may run more than once, on newer states. Where it returns the state itself nothing is written. Raises
    what `operation` raises, and `OutcomeUnknownError` where the store does not tell whether the catalog was created.
    """
    token = uuid.uuid4().hex
    for _ in range(_ATTEMPTS):
        state = operation(base.state)
        if state is base.state:
            return base
        made = _write(store, base, state, author, token) or _made_by(store, base.state, token)
        if made is not None and _stands(store, made):
            _hint(store, made.state)
            return made
        base = open_newest(store, base.state.archive_id)
        token = uuid.uuid4().hex
    raise StoreError(
        f"archive {store.url} changed during each of {_ATTEMPTS} commits", "run the command again"
    )


def _write(store: Store, base: Committed, state: State, author: Author, token: str) -> Committed | None:
    """Create the next catalog and return it; None where its number is taken."""
    number = base.state.number + 1
    names = count()

    def name() -> str:
        return layout.table_key(number, token, next(names))

    rows: dict[str, Any] = {}
    refs = {}
    for table in SCHEMAS:
        rows[table], refs[table] = write_rows(store, getattr(state, table), name)
    previous = base.catalog
    catalog = Catalog(
        archive_id=state.archive_id,
        number=number,
        previous=Link(number=previous.number, checksum=previous.checksum) if previous is not None else None,
        operation=Operation(
            kind=author.kind,
            token=token,
            run=author.run,
            by=f"{socket.gethostname()} pid {os.getpid()}",
            at=now(),
            summary=author.summary,
        ),
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
    data = dump(catalog)
    try:
        store.put_new(layout.catalog_key(number), data)
    except AlreadyExistsError:
        return None
    return Committed(replace(state, number=number, **rows), load(Catalog, data, layout.catalog_key(number)))


def _made_by(store: Store, base: State, token: str) -> Committed | None:
    """Return the catalog after `base` if attempt `token` created it and the answer was lost on the way; else None."""
    try:
        catalog = read_catalog(store, base.number + 1, base.archive_id)
    except NotFoundError:  # swept since
        return None
    return Committed(state_of(store, catalog), catalog) if catalog.operation.token == token else None


def _stands(store: Store, made: Committed) -> bool:
    """Return whether the newest catalog is the one just created, or follows from it."""
    catalog = made.catalog
    assert catalog is not None  # noqa: S101 (it was just created)
    key = layout.catalog_key(catalog.number)
    later = [n for entry in store.list(layout.CATALOG, key) if (n := layout.parse_catalog_key(entry.key))]
    if not later:
        return True
    if min(later) == catalog.number + 1:
        with suppress(NotFoundError):  # a sweep deleted it just now
            link = read_catalog(store, min(later), catalog.archive_id).previous
            return link is not None and link.checksum == catalog.checksum
    newest = open_newest(store, catalog.archive_id)
    if newest.catalog is not None and newest.catalog.checksum == catalog.checksum:
        return True
    recorded = newest.state.history.dicts()
    made_by = catalog.operation
    return any(
        (row["catalog"], row["run"], row["by"], row["at"])
        == (catalog.number, made_by.run, made_by.by, made_by.at)
        for row in recorded
    )


def _hint(store: Store, state: State) -> None:
    """Write latest.json after a commit. A failure costs readers a longer listing, nothing else."""
    with suppress(StoreError, UnreachableError, LeaseLostError):
        store.put(layout.LATEST, dump(Latest(archive_id=state.archive_id, number=state.number)))
