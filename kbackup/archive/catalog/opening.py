"""Open the newest catalog."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Latest
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import open_rows
from kbackup.archive.info import REPAIR
from kbackup.archive.models import load
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_COPIED = "take the right one from a bucket version: this one was copied from elsewhere"


log = logging.getLogger(__name__)

FAR = 1000
"""The most by which a catalog's number is beyond that of the newest one that can be read: numbers are given one by one,
and a hint lags by a few."""


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
            REPAIR,
        )
    if not newest:
        return Committed(State(archive_id), None)
    catalog = _read_newest(store, sorted(numbers), hint, archive_id)
    return Committed(state_of(store, catalog), catalog)


def _read_newest(store: Store, numbers: list[int], hint: int, archive_id: str) -> Catalog:
    """Read the newest of the catalogs that a listing has. An unreadable one whose number nobody can have given is
    named and passed over: whoever may write can put one there."""
    while True:
        number = numbers.pop()
        try:
            return read_catalog(store, number, archive_id)
        except CorruptError as error:
            if not numbers or not far_numbers([number], max(hint, numbers[-1])):
                raise
            log.warning(
                "%s is passed over, no run gave it that number: %s", layout.catalog_key(number), error
            )


def far_numbers(numbers: Iterable[int], newest: int, most: int = FAR) -> set[int]:
    """Return the numbers that are more than `most` beyond `newest`, that of the newest catalog that can be read: no run
    gave them."""
    return {number for number in numbers if number > newest + most}


def open_later(store: Store, base: Committed) -> Committed:
    """Return the newest catalog after `base`, or `base` itself where it is still the newest, for one LIST. Chunks of
    tables that both have are not read again."""
    if base.catalog is not None:
        start = layout.catalog_key(base.state.number - 1) if base.state.number > 1 else ""
        numbers = [layout.parse_catalog_key(entry.key) for entry in store.list(layout.CATALOG, start)]
        later = [number for number in numbers if number is not None]
        later = sorted({*later} - far_numbers(later, base.state.number))
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
