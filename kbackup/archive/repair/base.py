"""The state that a repair goes on from: the newest readable catalog, with each table as new as it can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kbackup.archive import layout
from kbackup.archive.catalog.commit import FAR, Committed, far_numbers, read_catalog, state_of
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, TableRef
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.tables import Rows, read_ref
from kbackup.archive.models import Document, DocumentRef, Groups, Manifest, Metadata, NewerError, document_ref, load
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_MOST_LOST = 1_000_000
"""Catalogs between the newest that can be read and one that is known to have existed."""
_THREADS = 16
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


def find_base(store: Store, sizes: Sizes, archive_id: str) -> RepairBase:
    """Return the base of a repair. `NewerError` for a catalog that a newer version wrote."""
    numbers = sorted((n for key in sizes if (n := layout.parse_catalog_key(key)) is not None), reverse=True)
    catalogs = _Catalogs(store, archive_id, numbers)
    newest = next(catalogs.read(), None)
    readable = newest.number if newest is not None else min(numbers, default=0)
    witnesses = {*_witnesses(store, archive_id)}
    witnesses -= far_numbers(witnesses, readable, _MOST_LOST)
    known = max({*numbers} - far_numbers(numbers, readable) | witnesses, default=0)
    if newest is None:
        return RepairBase(Committed(State(archive_id, number=known), None), tuple(range(1, known + 1)))
    state = state_of(store, newest)
    tables: dict[str, Rows] = {}
    files: list[str] = []
    for name, rows in state.tables().items():
        whole = _whole_chunks(rows)
        if len(whole.chunks) < len(rows.chunks):
            files += [c.ref.key for c in rows.chunks if c.ref is not None and c.ref not in _refs(whole)]
            tables[name] = catalogs.older(name, newest.number) or whole
    lost = tuple(range(newest.number + 1, known + 1))
    changes: dict[str, Any] = {"number": known, **tables}
    committed = Committed(replace(state, **changes), newest)
    return RepairBase(committed, lost, frozenset(tables), tuple(files), catalogs.damaged(newest))


def _witnesses(store: Store, archive_id: str) -> Iterable[int]:
    """Numbers of catalogs that existed."""
    latest = load_whole(store, Latest, layout.LATEST)
    if latest is not None and latest.archive_id == archive_id:
        yield latest.number
    derived = load_whole(store, Derived, layout.DERIVED)
    if derived is not None and derived.archive_id == archive_id:
        yield derived.catalog


def load_whole(store: Store, kind: type[D], key: str) -> D | None:
    """Return a document; None if it is missing or damaged. `NewerError` for one that a newer version wrote."""
    try:
        return load(kind, store.get(key), key)
    except NewerError:
        raise
    except (CorruptError, NotFoundError):
        return None


@dataclass
class _Catalogs:
    store: Store
    archive_id: str
    numbers: list[int]

    def read(self, below: int | None = None) -> Iterator[Catalog]:
        """Readable catalogs, the newest first."""
        for number in self.numbers:
            if below is None or number < below:
                catalog = self._read(number)
                if catalog is not None:
                    yield catalog

    def damaged(self, newest: Catalog) -> tuple[str, ...]:
        """Return keys of catalogs after the last sweep and before `newest` that can't be read, and of tables that only
        they have."""
        nearby = range(max(newest.swept, newest.number - FAR) + 1, newest.number)
        older = sorted({*nearby, *(n for n in self.numbers if newest.swept < n < newest.number)})
        with ThreadPoolExecutor(_THREADS) as pool:
            read = dict(zip(older, pool.map(self._read, older), strict=True))
            known = set(_table_refs(newest))
            refs = {ref for catalog in read.values() if catalog is not None for ref in _table_refs(catalog)}
            bad = [ref.key for ref in pool.map(self._damaged, refs - known) if ref is not None]
        return tuple(sorted([*bad, *(layout.catalog_key(n) for n, c in read.items() if c is None)]))

    def _damaged(self, ref: TableRef) -> TableRef | None:
        try:
            read_ref(self.store, ref)
        except CorruptError:
            return ref
        return None

    def _read(self, number: int) -> Catalog | None:
        try:
            return read_catalog(self.store, number, self.archive_id)
        except NewerError:
            raise
        except (CorruptError, NotFoundError):
            return None

    def older(self, name: str, number: int) -> Rows | None:
        """Return a table as the newest older catalog has it of which the table is whole."""
        for catalog in self.read(number):
            rows = state_of(self.store, catalog).tables()[name]
            if len(_whole_chunks(rows).chunks) == len(rows.chunks):
                return rows
        return None


def _table_refs(catalog: Catalog) -> list[TableRef]:
    tables = catalog.tables
    return [ref for name in tables.__struct_fields__ for ref in getattr(tables, name)]


def _whole_chunks(rows: Rows) -> Rows:
    def is_whole(at: int) -> bool:
        try:
            rows.chunks[at].read()
        except CorruptError:
            return False
        return True

    return Rows(rows.schema, tuple(chunk for at, chunk in enumerate(rows.chunks) if is_whole(at)))


def _refs(rows: Rows) -> list[object]:
    return [chunk.ref for chunk in rows.chunks]


_KINDS: dict[str, type[Document]] = {layout.MANIFEST: Manifest, layout.GROUPS: Groups, layout.METADATA: Metadata}


def read_documents(store: Store, sizes: Sizes) -> Documents:
    """Key -> document and its reference, of every whole document under points/. `NewerError` for one that a newer
    version wrote."""

    def read(key: str) -> tuple[str, tuple[Document, DocumentRef]] | None:
        parsed = layout.parse_point_key(key)
        kind = next((k for name, k in _KINDS.items() if parsed is not None and parsed[2].endswith(name)), None)
        if kind is None:
            return None
        try:
            data = store.get(key)
            return key, (load(kind, data, key), document_ref(key, data))
        except NewerError:
            raise
        except (CorruptError, NotFoundError):
            return None

    keys = [key for key in sizes if key.startswith(layout.POINTS)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(entry for entry in pool.map(read, keys) if entry is not None)
