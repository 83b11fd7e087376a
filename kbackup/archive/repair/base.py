"""The state that a repair goes on from: the newest readable catalog, with each table as new as it can be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from kbackup.archive import layout
from kbackup.archive.catalog.commit import FAR, Committed, far_numbers, read_catalog, state_of
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, TableRef
from kbackup.archive.catalog.rewriting import segments_without_erased
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
"""At most so many catalogs lie between the newest that can be read and one that is known to have existed."""
T = TypeVar("T")
D = TypeVar("D", bound=Document)
Sizes = Mapping[str, int]
Documents = dict[str, tuple[Document, DocumentRef]]


@dataclass(frozen=True)
class RepairBase:
    """The state that a repair goes on from, and what was lost of the catalogs.

    No catalog that is known to have existed has a higher number than `committed`, which has no catalog if none can be
    read. `lost` are the numbers of newer catalogs that are lost or damaged. `stale` names the tables that could
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

    @property
    def lists_segments(self) -> bool:
        """Whether the newest catalog and its tables of restore points and segments are whole: then every segment that
        was committed, and has not expired, is in these."""
        is_newest = self.committed.catalog is not None and not self.lost
        return is_newest and self.stale.isdisjoint({"points", "segments"})


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
    numbers: list[int] = []
    for key in sizes:
        number = layout.parse_catalog_key(key)
        if number is not None:
            numbers.append(number)
    # The newest first: a repair goes back no farther than to the first catalog that can be read.
    numbers.sort(reverse=True)

    def read(number: int) -> Catalog | None:
        return unless_damaged(lambda: read_catalog(store, number, archive_id))

    newest = _first_readable(map(read, numbers))
    known = _highest_known(store, archive_id, numbers, newest)
    if newest is None:
        # The state is empty, and yet it has a number: the catalog that the repair commits must be newer than every lost
        # one, because a machine that has seen one of those refuses an archive that went back.
        empty = Committed(State(archive_id, number=known), None)
        return RepairBase(empty, lost=tuple(range(1, known + 1)))
    state = state_of(store, newest)
    tables: dict[str, Rows] = {}
    files: list[str] = []
    for name, rows in state.tables().items():
        damaged = _damaged_chunks(rows)
        if not damaged:
            continue
        for chunk in damaged:
            if chunk.ref is not None:
                files.append(chunk.ref.key)
        # What was added since the older version is found again elsewhere: restore points by their manifests, segments
        # by their own files.
        earlier = [number for number in numbers if number < newest.number]
        older = _whole_before(store, map(read, earlier), name)
        tables[name] = older if older is not None else _without_chunks(rows, damaged)
    # With the highest known number as well: the commit takes the next one, which no lost catalog had.
    changes: dict[str, Any] = {"number": known, **tables}
    changed = replace(state, **changes)
    if "segments" in tables:
        # An older table has segments that were written anew since, without records that were erased, or merged.
        current = segments_without_erased(changed, changed)
        changed = replace(changed, segments=current.without("key", changed.replaced_objects))
    committed = Committed(changed, newest)
    lost = range(newest.number + 1, known + 1)
    past = _damaged_past(store, newest, numbers, read)
    return RepairBase(committed, lost=tuple(lost), stale=frozenset(tables), files=tuple(files), past=past)


def _first_readable(catalogs: Iterable[Catalog | None]) -> Catalog | None:
    """Return the first catalog that could be read. Later ones are not read."""
    for catalog in catalogs:
        if catalog is not None:
            return catalog
    return None


def _highest_known(store: Store, archive_id: str, numbers: Collection[int], newest: Catalog | None) -> int:
    """Return the highest number of a catalog that is known to have existed, 0 if none is."""
    readable = newest.number if newest is not None else min(numbers, default=0)
    # A number that no run gave must not push the next catalog beyond what readers look for.
    listed = set(numbers) - far_numbers(numbers, readable)
    # The documents are written after the catalog that they name, so it existed, however many are lost since.
    witnesses = _witnesses(store, archive_id)
    witnesses -= far_numbers(witnesses, readable, _MOST_LOST)
    return max(listed | witnesses, default=0)


def _witnesses(store: Store, archive_id: str) -> set[int]:
    """Return the numbers of catalogs that other documents of the archive name: the catalogs may be lost since."""
    numbers: set[int] = set()
    latest = load_whole(store, Latest, layout.LATEST)
    if latest is not None and latest.archive_id == archive_id:
        numbers.add(latest.number)
    derived = load_whole(store, Derived, layout.DERIVED)
    if derived is not None and derived.archive_id == archive_id:
        numbers.add(derived.catalog)
    return numbers


def _whole_before(store: Store, catalogs: Iterable[Catalog | None], name: str) -> Rows | None:
    """Return a table by the first catalog that has the table whole; None if there is none. The catalogs after it are
    not read."""
    for catalog in catalogs:
        if catalog is None:
            continue
        rows = state_of(store, catalog).tables()[name]
        if not _damaged_chunks(rows):
            return rows
    return None


def _damaged_chunks(rows: Rows) -> list[Chunk]:
    return [chunk for chunk in rows.chunks if unless_damaged(chunk.read) is None]


def _without_chunks(rows: Rows, damaged: Collection[Chunk]) -> Rows:
    """Return the rows of the chunks that can be read: better some rows than none."""
    kept = [chunk for chunk in rows.chunks if chunk not in damaged]
    return Rows(rows.schema, tuple(kept))


def _damaged_past(
    store: Store, newest: Catalog, numbers: Sequence[int], read: Callable[[int], Catalog | None]
) -> tuple[str, ...]:
    """Return keys of catalogs after the last sweep and before `newest` that can't be read, and of tables that only
    they have."""
    # Close to the newest every number is looked for, so that a missing catalog is named. Farther back only the listing
    # counts: this must end however far away the last sweep is.
    nearby = range(max(newest.swept, newest.number - FAR) + 1, newest.number)
    listed = [number for number in numbers if newest.swept < number < newest.number]
    # What lies before the last sweep is gone by right, and no damage.
    older = sorted(set(nearby).union(listed))
    bad_keys: list[str] = []
    refs: set[TableRef] = set()
    for number, catalog in zip(older, in_threads(read, older), strict=True):
        if catalog is None:
            bad_keys.append(layout.catalog_key(number))
        else:
            refs.update(table_refs(catalog))
    refs.difference_update(table_refs(newest))  # these were read with its state

    def damaged_key(ref: TableRef) -> str | None:
        return ref.key if unless_damaged(partial(read_ref, store, ref)) is None else None

    damaged = in_threads(damaged_key, refs)
    bad_keys += [key for key in damaged if key is not None]
    return tuple(sorted(bad_keys))


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
        if document is None:
            return None
        return document, document_ref(key, data)

    documents: Documents = {}
    for key, entry in zip(kinds, in_threads(read, kinds), strict=True):
        if entry is not None:
            documents[key] = entry
    return documents


def _kind_of(key: str) -> type[Document] | None:
    """Return the kind of a document of a restore point; None for other objects."""
    parsed = layout.parse_point_key(key)
    if parsed is None:
        return None
    _, _, name_in_folder = parsed
    for name, kind in _KINDS.items():
        if name_in_folder.endswith(name):  # a document may have a number before its name
            return kind
    return None
