"""Verification of catalogs and restore points: each document and table is read, and what is damaged is named."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, TableRef
from kbackup.archive.catalog.opening import Committed, check_archive, check_catalog, far_numbers, state_of
from kbackup.archive.catalog.orphans import referred_keys
from kbackup.archive.catalog.state import SCHEMAS, Point, State
from kbackup.archive.catalog.tables import Chunk, open_rows, read_ref
from kbackup.archive.encryption import check_encryption
from kbackup.archive.info import ANOTHER_COPY
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, load
from kbackup.archive.reader import Archive
from kbackup.archive.verify.findings import CHANGED, Findings, of_error
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_THREADS = 16

Sizes = Mapping[str, int]
"""Key -> size in bytes of every object of the store."""


@dataclass
class Survey:
    """The documents that could be read. `archive` is as of the newest whole catalog, None without one; `manifests` is
    in order of numbers and lacks damaged ones. `catalogs` are the readable ones of its history, by number. `whole`: the
    newest catalog, its tables and manifests could be read; `documents_whole`: the documents that manifests refer to as
    well. `archive_id` is that of archive.json, '' where it is damaged."""

    archive_id: str = ""
    archive: Archive | None = None
    manifests: dict[int, Manifest] = field(default_factory=dict)
    catalogs: dict[int, Catalog] = field(default_factory=dict)
    derived_for: int | None = None
    latest: int = 0
    whole: bool = True
    documents_whole: bool = True

    @property
    def points(self) -> tuple[Point, ...]:
        return self.archive.restore_points if self.archive is not None else ()


def survey(store: Store, sizes: Sizes, findings: Findings) -> Survey:
    result = Survey()
    info = ArchiveInfo(id="", created_at="")
    with findings.catching(layout.ARCHIVE):
        info = load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE)
        check_encryption(store, info)
    result.archive_id = info.id
    if layout.LOCK in sizes:
        with findings.catching(layout.LOCK):
            load(Lease, store.get(layout.LOCK), layout.LOCK)
    catalogs = _read_catalogs(store, sizes, result, findings)
    _read_marks(store, sizes, catalogs.owner, result, findings)
    _check_history(catalogs, result, findings)
    newest = _newest_whole(store, result, findings)
    if newest is None:
        return result
    result.archive = archive = Archive(store, replace(info, id=newest.state.archive_id), newest)
    with ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(lambda point: _manifest(archive, point, sizes, findings), result.points))
    result.manifests = {manifest.number: manifest for manifest, _ in read if manifest is not None}
    result.whole = result.whole and len(result.manifests) == len(result.points)
    result.documents_whole = all(whole for _, whole in read)
    return result


@dataclass
class _Catalogs:
    """Every catalog by its number, or why it can't be read. `owner` is the archive that they belong to."""

    numbers: set[int]
    owner: str = ""
    whole: dict[int, Catalog] = field(default_factory=dict)
    errors: dict[int, CorruptError] = field(default_factory=dict)


def _read_catalogs(store: Store, sizes: Sizes, result: Survey, findings: Findings) -> _Catalogs:
    catalogs = _Catalogs({n for key in sizes if (n := layout.parse_catalog_key(key)) is not None})

    def read(number: int) -> Catalog | None:
        key = layout.catalog_key(number)
        try:
            return load(Catalog, store.get(key), key)
        except CorruptError as error:
            catalogs.errors[number] = error
        except NotFoundError:
            pass  # swept since the listing
        return None

    with ThreadPoolExecutor(_THREADS) as pool:
        read_now = {
            n: c for n, c in zip(catalogs.numbers, pool.map(read, catalogs.numbers), strict=True) if c
        }
    owners = {catalog.archive_id for catalog in read_now.values()}
    catalogs.owner = result.archive_id
    if owners and result.archive_id not in owners:
        catalogs.owner = read_now[max(read_now)].archive_id
        if result.archive_id:
            what = f"is of archive {result.archive_id}, every catalog of {catalogs.owner}"
            findings.add(layout.ARCHIVE, what, ANOTHER_COPY)
            result.archive_id = ""
    for number, catalog in read_now.items():
        try:
            check_catalog(catalog, number, catalogs.owner)
        except CorruptError as error:
            catalogs.errors[number] = error
        else:
            catalogs.whole[number] = catalog
    return catalogs


def _read_marks(store: Store, sizes: Sizes, owner: str, result: Survey, findings: Findings) -> None:
    """The documents that name a catalog which was committed."""
    if layout.LATEST in sizes:
        with findings.catching(layout.LATEST):
            latest = load(Latest, store.get(layout.LATEST), layout.LATEST)
            check_archive(layout.LATEST, latest.archive_id, owner or latest.archive_id)
            result.latest = latest.number
    if layout.DERIVED in sizes:
        with findings.catching(layout.DERIVED):
            derived = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
            check_archive(layout.DERIVED, derived.archive_id, owner or derived.archive_id)
            result.derived_for = derived.catalog
            result.latest = max(result.latest, derived.catalog)


def _check_history(catalogs: _Catalogs, result: Survey, findings: Findings) -> None:
    """The history from the newest catalog to the oldest that no sweep reached: each catalog names the one before it.

    A repair goes on from the newest whole catalog. Those that it passed over are not of the history.
    """
    readable = max(catalogs.whole, default=min(catalogs.numbers, default=0))
    for number in far_numbers(catalogs.errors, readable):
        what = f"is no catalog, {readable} is the newest that can be read: {catalogs.errors[number].message}"
        findings.add(layout.catalog_key(number), what, "delete it: no run gave it that number")
    newest = max({result.latest, *catalogs.numbers} - far_numbers(catalogs.errors, readable), default=0)
    swept = catalogs.whole[max(catalogs.whole)].swept if catalogs.whole else 0
    number, due = newest, ""
    while number > swept:
        key = layout.catalog_key(number)
        catalog = catalogs.whole.get(number)
        if catalog is None:
            if number in catalogs.errors:
                findings.entries.add(of_error(key, catalogs.errors[number]))
            else:
                findings.add(key, "is missing", ANOTHER_COPY)
            lower = max((n for n in catalogs.numbers if n < number), default=0)
            number, due = lower if far_numbers([number], lower) else number - 1, ""
            continue
        result.catalogs[number] = catalog
        if due and catalog.checksum != due:
            findings.add(key, "is not the catalog that the next one follows", CHANGED)
        link = catalog.previous
        number, due = (min(link.number, number - 1), link.checksum) if link is not None else (0, "")
    result.whole = not newest or newest in result.catalogs


def _newest_whole(store: Store, result: Survey, findings: Findings) -> Committed | None:
    """The newest catalog with all its tables."""
    for number in sorted(result.catalogs, reverse=True):
        committed = Committed(state_of(store, result.catalogs[number]), result.catalogs[number])
        damaged = [chunk for chunk in _chunks(committed.state) if not _is_whole(chunk, findings)]
        if not damaged:
            return committed
        result.whole = False
    result.whole = False
    return None


def _chunks(state: State) -> list[Chunk]:
    return [chunk for rows in state.tables().values() for chunk in rows.chunks]


def _is_whole(chunk: Chunk, findings: Findings) -> bool:
    try:
        chunk.read()
    except CorruptError as error:
        key = chunk.ref.key if chunk.ref is not None else ""
        findings.entries.add(of_error(key, error))
        return False
    return True


def check_earlier(store: Store, result: Survey, findings: Findings) -> set[str]:
    """The keys that the catalogs of the history refer to. The tables of those before the newest are held against their
    checksums: an undo, and a reader that opened one of them, need them."""
    if result.archive is None:
        return set()
    keys = referred_keys(result.archive.committed)
    tables = [asdict(catalog.tables) for catalog in result.catalogs.values()]
    refs = {
        ref.key: (name, ref)
        for each in tables
        for name, keys_of_table in each.items()
        for ref in keys_of_table
    }

    def read(entry: tuple[str, TableRef]) -> list[str]:
        name, ref = entry
        column = _NAMING.get(name)
        with findings.catching(ref.key):
            if column is None:
                read_ref(store, ref)
                return []
            (values,) = open_rows(store, SCHEMAS[name], [ref]).columns(column)
            return [key for value in values for key in ([value] if isinstance(value, str) else value)]
        return []

    with ThreadPoolExecutor(_THREADS) as pool:
        for keys_of_table in pool.map(read, [entry for key, entry in refs.items() if key not in keys]):
            keys.update(keys_of_table)
            keys.update(layout.index_key_of(key) for key in keys_of_table if key.startswith(layout.TOPICS))
    return keys | refs.keys()


_NAMING = {"points": "documents", "segments": "key"}
"""The tables that name objects, and the column that does."""


def _manifest(
    archive: Archive, point: Point, sizes: Sizes, findings: Findings
) -> tuple[Manifest | None, bool]:
    """The manifest of a restore point, None where it is damaged; and whether all documents that it needs are whole."""
    damaged = Findings()
    manifest = None
    for key in point.documents:
        if key not in sizes:
            damaged.add(key, "is missing", ANOTHER_COPY)
    if point.documents[0] in sizes:
        with damaged.catching(point.documents[0]):
            manifest = archive.manifest(point)
    for capture in manifest.captures if manifest is not None else ():
        for ref in (capture.groups, capture.metadata):
            if ref.key not in sizes:
                damaged.add(ref.key, "is missing", ANOTHER_COPY)
                continue
            with damaged.catching(ref.key):
                archive.read_document(ref)
    findings.entries |= damaged.entries
    return manifest, not damaged.entries
