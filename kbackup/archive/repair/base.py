"""The state that a repair goes on from: the newest readable catalog, with each table as new as it can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from kbackup.archive import layout
from kbackup.archive.catalog.commit import FAR, Committed, far_numbers, read_catalog, state_of
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, TableRef
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
    """The state that a repair goes on from, and what was lost of the catalogs.

    The number of `committed` is at least that of every catalog that is known to have existed. It has no catalog if none
    can be read. `lost` are the numbers of newer catalogs that are lost or damaged. `stale` names the tables that could
    not be read whole: each is as an older catalog has it, or lacks rows.
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
    parsed = [layout.parse_catalog_key(key) for key in sizes]
    numbers = sorted((number for number in parsed if number is not None), reverse=True)

    def read(number: int) -> Catalog | None:
        return unless_damaged(lambda: read_catalog(store, number, archive_id))

    newest = next(filter(None, map(read, numbers)), None)
    readable = newest.number if newest is not None else min(numbers, default=0)
    # A number that no run gave must not push the next catalog beyond what readers look for.
    listed = set(numbers) - far_numbers(numbers, readable)
    witnesses = _witnesses(store, archive_id)
    witnesses -= far_numbers(witnesses, readable, _MOST_LOST)
    known = max(listed | witnesses, default=0)
    if newest is None:
        empty = Committed(State(archive_id, number=known), None)
        return RepairBase(empty, lost=tuple(range(1, known + 1)))
    state = state_of(store, newest)
    tables: dict[str, Rows] = {}
    files: list[str] = []
    for name, rows in state.tables().items():
        damaged = _damaged_chunks(rows)
        if not damaged:
            continue
        files += [chunk.ref.key for chunk in damaged if chunk.ref is not None]
        earlier = [number for number in numbers if number < newest.number]
        older = _whole_before(store, map(read, earlier), name)
        if older is None:
            kept = [chunk for chunk in rows.chunks if chunk not in damaged]
            older = Rows(rows.schema, tuple(kept))
        tables[name] = older
    changes: dict[str, Any] = {"number": known, **tables}
    return RepairBase(
        Committed(replace(state, **changes), newest),
        lost=tuple(range(newest.number + 1, known + 1)),
        stale=frozenset(tables),
        files=tuple(files),
        past=_damaged_past(store, newest, numbers, read),
    )


def _witnesses(store: Store, archive_id: str) -> set[int]:
    """Return the numbers of catalogs that other documents of the archive name: a catalog may be lost that they saw."""
    numbers: set[int] = set()
    latest = load_whole(store, Latest, layout.LATEST)
    if latest is not None and latest.archive_id == archive_id:
        numbers.add(latest.number)
    derived = load_whole(store, Derived, layout.DERIVED)
    if derived is not None and derived.archive_id == archive_id:
        numbers.add(derived.catalog)
    return numbers


def _whole_before(store: Store, catalogs: Iterable[Catalog | None], name: str) -> Rows | None:
    """Return a table by the first catalog that has the table whole; None if none has. Later ones are not read."""
    for catalog in catalogs:
        if catalog is None:
            continue
        rows = state_of(store, catalog).tables()[name]
        if not _damaged_chunks(rows):
            return rows
    return None


def _damaged_chunks(rows: Rows) -> list[Chunk]:
    return [chunk for chunk in rows.chunks if unless_damaged(chunk.read) is None]


def _damaged_past(
    store: Store, newest: Catalog, numbers: Sequence[int], read: Callable[[int], Catalog | None]
) -> tuple[str, ...]:
    """Return keys of catalogs after the last sweep and before `newest` that can't be read, and of tables that only
    they have."""
    nearby = range(max(newest.swept, newest.number - FAR) + 1, newest.number)
    listed = [number for number in numbers if newest.swept < number < newest.number]
    older = sorted({*nearby, *listed})
    catalogs = dict(zip(older, in_threads(read, older), strict=True))
    missing = [layout.catalog_key(number) for number, catalog in catalogs.items() if catalog is None]
    refs: set[TableRef] = set()
    for catalog in catalogs.values():
        if catalog is not None:
            refs.update(table_refs(catalog))
    # the tables of `newest` itself are read with its state
    only = list(refs - set(table_refs(newest)))

    def is_damaged(ref: TableRef) -> bool:
        return unless_damaged(partial(read_ref, store, ref)) is None

    damaged = [ref.key for ref, bad in zip(only, in_threads(is_damaged, only), strict=True) if bad]
    return tuple(sorted([*damaged, *missing]))


_KINDS: dict[str, type[Document]] = {
    layout.MANIFEST: Manifest,
    layout.GROUPS: Groups,
    layout.METADATA: Metadata,
    layout.SCHEMAS: Schemas,
    layout.DELETIONS: Deletions,
}


def read_documents(store: Store, sizes: Sizes) -> Documents:
    """Return every whole document under points/ with its reference, by key. `NewerError` for a document that a newer
    version wrote."""
    kinds: dict[str, type[Document]] = {}
    for key in sizes:
        kind = _kind_of(key)
        if kind is not None:
            kinds[key] = kind

    def read(key: str) -> tuple[Document, DocumentRef] | None:
        data = unless_damaged(lambda: store.get(key))
        if data is None:
            return None
        document = unless_damaged(lambda: load(kinds[key], data, key))
        return (document, document_ref(key, data)) if document is not None else None

    found = zip(kinds, in_threads(read, list(kinds)), strict=True)
    return {key: entry for key, entry in found if entry is not None}


def _kind_of(key: str) -> type[Document] | None:
    """Return the kind of a document of a restore point; None for other objects."""
    parsed = layout.parse_point_key(key)
    if parsed is None:
        return None
    for name, kind in _KINDS.items():
        if parsed[2].endswith(name):
            return kind
    return None
