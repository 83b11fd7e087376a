"""The state that a repair goes on from: the newest readable catalog, with each table as new as it can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from kbackup.archive import layout
from kbackup.archive.catalog.commit import FAR, Committed, far_numbers, read_catalog, state_of
from kbackup.archive.catalog.documents import Catalog, Derived, Latest
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import table_refs
from kbackup.archive.catalog.tables import Chunk, Rows, read_ref
from kbackup.archive.models import (
    Deletions,
    Document,
    DocumentRef,
    Groups,
    Manifest,
    Metadata,
    NewerError,
    Schemas,
    document_ref,
    load,
)
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.util.system import in_threads

_MOST_LOST = 1_000_000
"""Catalogs between the newest that can be read and one that is known to have existed."""
T = TypeVar("T")
D = TypeVar("D", bound=Document)
Sizes = Mapping[str, int]
Documents = dict[str, tuple[Document, DocumentRef]]


@dataclass(frozen=True)
class RepairBase:
    """`committed` has a number behind every catalog that there ever was, and no catalog where none can be read.

    `lost` are the numbers of newer catalogs that are lost or damaged, `stale` the tables that could not be read whole:
    they are as an older catalog has them, or lack rows.
    """

    committed: Committed
    lost: tuple[int, ...] = ()
    stale: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    """The keys of damaged tables."""
    past: tuple[str, ...] = ()
    """The keys of damaged or missing catalogs before the newest, and of their tables: nothing needs them any more."""

    @property
    def state(self) -> State:
        return self.committed.state

    @property
    def is_whole(self) -> bool:
        return self.committed.catalog is not None and not self.lost and not self.stale


def unless_damaged(read: Callable[[], T]) -> T | None:
    """Return what `read` does; None if it is missing or damaged. `NewerError` for what a newer version wrote."""
    try:
        return read()
    except NewerError:
        raise
    except (CorruptError, NotFoundError):
        return None


def load_whole(store: Store, kind: type[D], key: str) -> D | None:
    """Return a document; None if it is missing or damaged. `NewerError` for one that a newer version wrote."""
    return unless_damaged(lambda: load(kind, store.get(key), key))


def find_base(store: Store, sizes: Sizes, archive_id: str) -> RepairBase:
    """Return the base of a repair. `NewerError` for a catalog that a newer version wrote."""
    numbers = sorted((n for key in sizes if (n := layout.parse_catalog_key(key)) is not None), reverse=True)

    def read(number: int) -> Catalog | None:
        return unless_damaged(lambda: read_catalog(store, number, archive_id))

    newest = next(filter(None, map(read, numbers)), None)
    readable = newest.number if newest is not None else min(numbers, default=0)
    latest, derived = load_whole(store, Latest, layout.LATEST), load_whole(store, Derived, layout.DERIVED)
    witnesses = {latest.number} if latest is not None and latest.archive_id == archive_id else set()
    witnesses |= {derived.catalog} if derived is not None and derived.archive_id == archive_id else set()
    witnesses -= far_numbers(witnesses, readable, _MOST_LOST)
    known = max({*numbers} - far_numbers(numbers, readable) | witnesses, default=0)
    if newest is None:
        return RepairBase(Committed(State(archive_id, number=known), None), tuple(range(1, known + 1)))
    state = state_of(store, newest)
    tables: dict[str, Rows] = {}
    files: list[str] = []
    for name, rows in state.tables().items():
        damaged = _damaged_chunks(rows)
        if damaged:
            files += [chunk.ref.key for chunk in damaged if chunk.ref is not None]
            older = (state_of(store, c).tables()[name] for c in map(read, numbers) if c and c.number < newest.number)
            whole = Rows(rows.schema, tuple(chunk for chunk in rows.chunks if chunk not in damaged))
            tables[name] = next((rows for rows in older if not _damaged_chunks(rows)), whole)
    changes: dict[str, Any] = {"number": known, **tables}
    lost, past = tuple(range(newest.number + 1, known + 1)), _damaged_past(store, newest, numbers, read)
    return RepairBase(Committed(replace(state, **changes), newest), lost, frozenset(tables), tuple(files), past)


def _damaged_chunks(rows: Rows) -> list[Chunk]:
    return [chunk for chunk in rows.chunks if unless_damaged(chunk.read) is None]


def _damaged_past(
    store: Store, newest: Catalog, numbers: Sequence[int], read: Callable[[int], Catalog | None]
) -> tuple[str, ...]:
    """Return keys of catalogs after the last sweep and before `newest` that can't be read, and of tables that only
    they have."""
    nearby = range(max(newest.swept, newest.number - FAR) + 1, newest.number)
    older = sorted({*nearby, *(n for n in numbers if newest.swept < n < newest.number)})
    catalogs = dict(zip(older, in_threads(read, older), strict=True))
    refs = {ref for catalog in catalogs.values() if catalog is not None for ref in table_refs(catalog)}
    only = list(refs - set(table_refs(newest)))
    read_back = in_threads(lambda ref: unless_damaged(partial(read_ref, store, ref)), only)
    bad = [ref.key for ref, data in zip(only, read_back, strict=True) if data is None]
    return tuple(sorted([*bad, *(layout.catalog_key(n) for n, catalog in catalogs.items() if catalog is None)]))


_KINDS: dict[str, type[Document]] = {
    layout.MANIFEST: Manifest,
    layout.GROUPS: Groups,
    layout.METADATA: Metadata,
    layout.SCHEMAS: Schemas,
    layout.DELETIONS: Deletions,
}


def read_documents(store: Store, sizes: Sizes) -> Documents:
    """Key -> document and its reference, of every whole document under points/. `NewerError` for one that a newer
    version wrote."""

    def read(key: str) -> tuple[str, tuple[Document, DocumentRef]] | None:
        parsed = layout.parse_point_key(key)
        kind = next((k for name, k in _KINDS.items() if parsed is not None and parsed[2].endswith(name)), None)
        data = unless_damaged(lambda: store.get(key)) if kind is not None else None
        if kind is None or data is None:
            return None
        document = unless_damaged(lambda: load(kind, data, key))
        return (key, (document, document_ref(key, data))) if document is not None else None

    keys = [key for key in sizes if key.startswith(layout.POINTS)]
    return dict(entry for entry in in_threads(read, keys) if entry is not None)
