"""The history of an archive: one row a catalog, oldest first."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.catalog.state import HistoryRow
from kbackup.archive.catalog.sweep import read_history
from kbackup.archive.reader import Archive


def history(archive: Archive, limit: int | None = None, newest: int | None = None) -> list[HistoryRow]:
    """Return the newest `limit` rows, or all: of existing catalogs, and before them rows that sweeps recorded.

    `newest` is the number of the last catalog that counts, by default that of the archive."""
    store, last = archive.store, archive.state.number if newest is None else newest
    numbers = [
        number
        for entry in store.list(layout.CATALOG)
        if (number := layout.parse_catalog_key(entry.key)) is not None and number <= last
    ]
    rows = (HistoryRow(**row) for row in archive.state.history.dicts())
    recorded = {row.catalog: row for row in rows if row.catalog <= last}
    due = sorted(set(numbers) - recorded.keys())[-limit if limit is not None else 0 :]
    every = sorted([*recorded.values(), *read_history(store, archive.info.id, due)])
    return every if limit is None else every[-limit:]
