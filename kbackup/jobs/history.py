"""The history of an archive: one row a catalog, oldest first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.catalog.commit import read_catalog
from kbackup.archive.catalog.sweep import history_row
from kbackup.archive.reader import Archive
from kbackup.errors import NotFoundError

_THREADS = 16


@dataclass(frozen=True)
class HistoryRow:
    """What made catalog `catalog`: the kind of operation, its run, host and process, time, and a sentence."""

    catalog: int
    kind: str
    run: str
    by: str
    at: str
    summary: str


def history(archive: Archive, limit: int | None = None) -> list[HistoryRow]:
    """The newest `limit` rows, or all: of catalogs that are there, and before them those that sweeps recorded."""
    store, newest = archive.store, archive.state.number
    numbers = [
        number
        for entry in store.list(layout.CATALOG)
        if (number := layout.parse_catalog_key(entry.key)) is not None and number <= newest
    ]
    recorded = {row["catalog"]: row for row in archive.state.history.dicts()}
    due = sorted(set(numbers) - recorded.keys())[-limit if limit is not None else 0 :]

    def read(number: int) -> list[dict[str, object]]:
        try:
            return [history_row(read_catalog(store, number, archive.info.id))]
        except NotFoundError:
            return []  # a sweep deleted it just now

    with ThreadPoolExecutor(_THREADS) as pool:
        found = {number: row for number, rows in zip(due, pool.map(read, due), strict=True) for row in rows}
    every = [HistoryRow(**row) for _, row in sorted({**recorded, **found}.items())]
    return every if limit is None else every[-limit:]
