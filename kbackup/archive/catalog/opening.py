"""Open the newest catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Latest
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import open_rows
from kbackup.archive.models import load
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_LOST = "take it from a bucket version or another copy of the archive, or run 'kbackup repair'"

_COPIED = "take the right one from a bucket version: this one was copied from elsewhere"


@dataclass(frozen=True)
class Committed:
    """A state and the catalog that holds it: None for an archive that has no catalog yet."""

    state: State
    catalog: Catalog | None


def open_newest(store: Store, archive_id: str) -> Committed:
    """The newest catalog. `CorruptError` where a catalog that existed is missing."""
    hint = _latest(store, archive_id)
    start = layout.catalog_key(hint - 1) if hint > 1 else ""
    numbers = [
        number
        for entry in store.list(layout.CATALOG, start)
        if (number := layout.parse_catalog_key(entry.key)) is not None
    ]
    newest = max(numbers, default=0)
    if newest < hint:
        raise CorruptError(
            f"file {layout.catalog_key(hint)} is missing, {layout.LATEST} names it",
            _LOST,
        )
    if not newest:
        return Committed(State(archive_id), None)
    catalog = read_catalog(store, newest, archive_id)
    return Committed(state_of(store, catalog), catalog)


def open_later(store: Store, base: Committed) -> Committed:
    """Return the newest catalog after `base`, or `base` itself where it is still the newest, for one LIST. Chunks of
    tables that both have are not read again."""
    if base.catalog is not None:
        start = layout.catalog_key(base.state.number - 1) if base.state.number > 1 else ""
        numbers = [layout.parse_catalog_key(entry.key) for entry in store.list(layout.CATALOG, start)]
        later = [number for number in numbers if number is not None]
        if later == [base.state.number]:
            return base
        if base.state.number in later:
            catalog = read_catalog(store, max(later), base.state.archive_id)
            return Committed(state_of(store, catalog, base.state), catalog)
    return open_newest(store, base.state.archive_id)


def _latest(store: Store, archive_id: str) -> int:
    try:
        latest = load(Latest, store.get(layout.LATEST), layout.LATEST)
    except NotFoundError:
        return 0
    check_archive(layout.LATEST, latest.archive_id, archive_id)
    return latest.number


def read_catalog(store: Store, number: int, archive_id: str) -> Catalog:
    """Read a catalog. `NotFoundError` where it was swept or never existed; `CorruptError` for another archive's."""
    key = layout.catalog_key(number)
    catalog = load(Catalog, store.get(key), key)
    check_catalog(catalog, number, archive_id)
    return catalog


def check_catalog(catalog: Catalog, number: int, archive_id: str) -> None:
    """Raise `CorruptError` where catalog `number` has another number or is of another archive."""
    key = layout.catalog_key(number)
    check_archive(key, catalog.archive_id, archive_id)
    if catalog.number != number:
        raise CorruptError(f"file {key} is of catalog {catalog.number}", _COPIED)


def check_archive(key: str, owner: str, archive_id: str) -> None:
    if owner != archive_id:
        raise CorruptError(
            f"file {key} belongs to archive {owner}, {layout.ARCHIVE} to {archive_id}",
            _COPIED,
        )


def state_of(store: Store, catalog: Catalog, known: State | None = None) -> State:
    """The state that a catalog refers to. Chunks of a `known` state that it shares are taken over."""
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
