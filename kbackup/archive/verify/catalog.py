"""Verify an archive against its catalog: documents, tables, every object's existence, and what follows from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict, replace

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed, check_archive, check_catalog, far_numbers, list_catalogs, state_of
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, TableRef
from kbackup.archive.catalog.state import SCHEMAS, PointRow, State
from kbackup.archive.catalog.sweep import table_refs
from kbackup.archive.catalog.tables import open_rows, read_ref
from kbackup.archive.identity import ANOTHER_COPY, check_encryption
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, PartitionState, load
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import ExpectedObject, Ordered, Segments, objects_of
from kbackup.archive.verify.findings import CHANGED, REBUILD, Findings, of_error
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition, Int64Array
from kbackup.util.system import in_threads


class _Extent(NamedTuple):
    """What a partition got of a restore point: the numbers of its segments, the sums of their records and bytes, their
    least and greatest offset."""

    place: IncarnationPartition
    rows: Int64Array
    records: int
    bytes: int
    first: int
    last: int


def check_vectors(state: State, manifests: Mapping[int, Manifest], added: Ordered, findings: Findings) -> None:
    """Check that segments are in order, within the archived offsets of their restore point, and add up to its totals.

    Segments of restore points that were let go count for later ones.
    """
    sums: dict[IncarnationPartition, tuple[int, int]] = defaultdict(lambda: (0, 0))
    damaged = {row.partition_key for row in state.damage}
    since = 0
    for number, extents in _extents(added, sorted(manifests), findings):
        manifest, row = manifests[number], state.point(number)
        captured = {key for key, topic in manifest.incarnations().items() if since < topic.captured <= number}
        states = {key: p for key, p in manifest.partitions().items() if key[:2] in captured}
        for extent in extents:
            before = sums[extent.place]
            sums[extent.place] = before[0] + extent.records, before[1] + extent.bytes
            p = states.get(extent.place)  # none of an incarnation that was over by then
            if p is not None and (p.held or extent.first < p.start or extent.last >= p.end):
                _check_offsets(added.segments, extent, p, number, findings)
        for key, partition in states.items():
            if key in damaged:
                continue
            # a manifest counts what was let go too: all of it, or all that it has where it ends before the log start
            (records, size), start = sums[key], state.starts.get(key)
            if start is not None and partition.end >= start.start:
                records, size = records + start.records, size + start.bytes
            elif start is not None and not records:
                continue
            if (partition.records, partition.bytes) != (records, size):
                findings.add(
                    row.documents[0] if row is not None else "",
                    f"says that {key[0]}-{key[2]} has {partition.records} records in {partition.bytes} bytes, "
                    f"its segments have {records} in {size}",
                    CHANGED,
                )
        since = number


def _extents(added: Ordered, numbers: Sequence[int], findings: Findings) -> Iterator[tuple[int, Iterator[_Extent]]]:
    """Yield each restore point with what came since the one before. A segment that begins before the end of the one
    before it becomes a finding. Segments are in order of partition and offset."""
    segments, places = added.segments, [*added.places]
    since = np.searchsorted(np.array(numbers, np.int64), added.points)
    owner = np.repeat(np.arange(len(places)), [part.stop - part.start for part in added.places.values()])
    rows = np.flatnonzero(since < len(numbers))
    first, last = (segments.integers(name)[rows] for name in ("first", "last"))
    for at in (1 + np.flatnonzero((np.diff(owner[rows]) == 0) & (first[1:] <= last[:-1]))).tolist():
        key, before = (segments.column("key")[int(row)].as_py() for row in rows[[at, at - 1]])
        findings.add(key, f"begins at offset {first[at]}, but {before} ends at {last[at - 1]}", CHANGED)
    rows = rows[np.lexsort((first, added.points[rows], owner[rows]))]
    first, last, records, size = (segments.integers(name)[rows] for name in ("first", "last", "count", "bytes"))
    owner, since = owner[rows], since[rows]
    cuts = np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(since, prepend=-1))
    sums = (
        f.reduceat(v, cuts) for f, v in ((np.add, records), (np.add, size), (np.minimum, first), (np.maximum, last))
    )
    columns = [owner[cuts], cuts, np.append(cuts, len(rows))[1:], *(sums if len(cuts) else ())]
    order = np.argsort(since[cuts], kind="stable")
    edges = np.searchsorted(since[cuts][order], np.arange(len(numbers) + 1))
    for number, low, high in zip(numbers, edges, edges[1:], strict=False):
        of_point = zip(*(column[order[low:high]].tolist() for column in columns), strict=True)
        yield number, (_Extent(places[n], rows[start:stop], *rest) for n, start, stop, *rest in of_point)


def _check_offsets(
    segments: Segments, extent: _Extent, partition: PartitionState, number: int, findings: Findings
) -> None:
    for row in extent.rows.tolist():
        key, first, last = (segments.column(name)[row].as_py() for name in ("key", "first", "last"))
        if first < partition.start or last >= partition.end or not partition.has(first):
            findings.add(
                key,
                f"holds offsets {first} to {last}, outside of {partition.start} to {partition.end - 1} "
                f"that restore point {number} says were archived, or in what it leaves to the next one",
                CHANGED,
            )


# Verification of catalogs and restore points: each document and table is read, and what is damaged is named.

Sizes = Mapping[str, int]
"""Key -> size in bytes of every object of the store."""
Catalogs = dict[int, Catalog | CorruptError]


@dataclass
class Survey:
    """The readable documents. `archive` is as of the newest whole catalog, None without one; `manifests` is in order of
    numbers and lacks damaged ones. `catalogs` are the readable ones of its history, by number. `whole`: the newest
    catalog, its tables and manifests could be read; `documents_whole`: the documents that manifests refer to as well.
    `archive_id` is that of archive.json, '' if it is damaged."""

    archive_id: str = ""
    archive: Archive | None = None
    manifests: dict[int, Manifest] = field(default_factory=dict)
    catalogs: dict[int, Catalog] = field(default_factory=dict)
    derived_for: int | None = None
    latest: int = 0
    whole: bool = True
    documents_whole: bool = True

    @property
    def points(self) -> tuple[PointRow, ...]:
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
    numbers = {n for key in sizes if (n := layout.parse_catalog_key(key)) is not None}
    catalogs, owner = _read_catalogs(store, numbers, result, findings)
    marks: dict[str, type[Latest | Derived]] = {layout.LATEST: Latest, layout.DERIVED: Derived}
    for key, kind in marks.items():  # they name a catalog that was committed
        if key in sizes:
            with findings.catching(key):
                mark = load(kind, store.get(key), key)
                check_archive(key, mark.archive_id, owner or mark.archive_id)
                if isinstance(mark, Derived):
                    result.derived_for = mark.catalog
                result.latest = max(result.latest, mark.catalog if isinstance(mark, Derived) else mark.number)
    _check_history(numbers, catalogs, result, findings)
    newest = _newest_whole(store, result, findings)
    if newest is None:
        return result
    result.archive = archive = Archive(store, replace(info, id=newest.state.archive_id), newest)
    read = in_threads(lambda point: _manifest(archive, point, sizes, findings), result.points)
    result.manifests = {manifest.number: manifest for manifest, _ in read if manifest is not None}
    result.whole = result.whole and len(result.manifests) == len(result.points)
    result.documents_whole = all(whole for _, whole in read)
    return result


def _read_catalogs(store: Store, numbers: Collection[int], result: Survey, findings: Findings) -> tuple[Catalogs, str]:
    """Return every catalog by its number, or why it can't be read; and the archive that they belong to."""

    def read(number: int) -> Catalog | CorruptError | None:
        key = layout.catalog_key(number)
        try:
            return load(Catalog, store.get(key), key)
        except CorruptError as error:
            return error
        except NotFoundError:
            return None  # swept since the listing

    catalogs: Catalogs = {n: c for n, c in zip(numbers, in_threads(read, numbers), strict=True) if c is not None}
    readable = {number: catalog for number, catalog in catalogs.items() if isinstance(catalog, Catalog)}
    owner = result.archive_id
    if readable and owner not in {catalog.archive_id for catalog in readable.values()}:
        owner = readable[max(readable)].archive_id
        if result.archive_id:
            what = f"is of archive {result.archive_id}, every catalog of {owner}"
            findings.add(layout.ARCHIVE, what, ANOTHER_COPY)
            result.archive_id = ""
    for number, catalog in readable.items():
        try:
            check_catalog(catalog, number, owner)
        except CorruptError as error:
            catalogs[number] = error
    return catalogs, owner


def _check_history(numbers: Collection[int], catalogs: Catalogs, result: Survey, findings: Findings) -> None:
    """The history from the newest catalog to the oldest that no sweep reached: each catalog names the one before it.

    A repair goes on from the newest whole catalog. Those that it passed over are not of the history.
    """
    whole = {number: catalog for number, catalog in catalogs.items() if isinstance(catalog, Catalog)}
    errors = {number: error for number, error in catalogs.items() if isinstance(error, CorruptError)}
    readable = max(whole, default=min(numbers, default=0))
    far = far_numbers(errors, readable)
    for number in far:
        what = f"is no catalog, {readable} is the newest that can be read: {errors[number].message}"
        findings.add(layout.catalog_key(number), what, "delete it: no run gave it that number")
    newest = max({result.latest, *numbers} - far, default=0)
    swept = whole[max(whole)].swept if whole else 0
    number, due = newest, ""
    while number > swept:
        key = layout.catalog_key(number)
        catalog = whole.get(number)
        if catalog is None:
            if number in errors:
                findings.entries.add(of_error(key, errors[number]))
            else:
                findings.add(key, "is missing", ANOTHER_COPY)
            lower = max((n for n in numbers if n < number), default=0)
            number, due = lower if far_numbers([number], lower) else number - 1, ""
            continue
        result.catalogs[number] = catalog
        if due and catalog.checksum != due:
            findings.add(key, "is not the catalog that the next one follows", CHANGED)
        link = catalog.previous
        number, due = (min(link.number, number - 1), link.checksum) if link is not None else (0, "")
    result.whole = not newest or newest in result.catalogs


def _newest_whole(store: Store, result: Survey, findings: Findings) -> Committed | None:
    for _, catalog in sorted(result.catalogs.items(), reverse=True):
        state, damaged = state_of(store, catalog), Findings()
        for chunk in (chunk for rows in state.tables().values() for chunk in rows.chunks):
            with damaged.catching(chunk.ref.key if chunk.ref is not None else ""):
                chunk.read()
        if not damaged.entries:
            return Committed(state, catalog)
        findings.entries |= damaged.entries
        result.whole = False
    result.whole = False
    return None


def check_earlier(store: Store, result: Survey, among: Collection[str], findings: Findings) -> set[str]:
    """Return the documents, tables and older segments that the catalogs of the history refer to, as far as they are
    `among` the objects. The tables of catalogs before the newest are held against their checksums: an undo, and a
    reader that opened one of them, need them."""
    if result.archive is None:
        return set()
    committed = result.archive.committed
    own = {ref.key for ref in table_refs(committed.catalog)} if committed.catalog is not None else set()
    tables = [asdict(catalog.tables) for catalog in result.catalogs.values()]
    refs = {ref.key: (name, ref) for each in tables for name, keys_of_table in each.items() for ref in keys_of_table}

    def read(entry: tuple[str, TableRef]) -> set[str]:
        name, ref = entry
        found: set[str] = set()
        with findings.catching(ref.key):
            if name not in _NAMING:
                read_ref(store, ref)
                return found
            for (value,) in open_rows(store, SCHEMAS[name], [ref]).rows(_NAMING[name]):
                named = (value, layout.index_key_of(value)) if isinstance(value, str) else value
                found.update(key for key in named if key in among)
        return found

    documents = [{*named} for (named,) in committed.state.points.rows("documents")]
    earlier = in_threads(read, [entry for key, entry in refs.items() if key not in own])
    return own.union(refs, *documents, *earlier)


_NAMING = {"points": "documents", "segments": "key"}
"""The tables that name objects, and the column that does."""


def _manifest(archive: Archive, point: PointRow, sizes: Sizes, findings: Findings) -> tuple[Manifest | None, bool]:
    """Return the manifest of a restore point, None if it is damaged; and whether all documents that it needs are
    whole."""
    damaged = Findings()
    manifest = None
    for key in point.documents:
        if key not in sizes:
            damaged.add(key, "is missing", ANOTHER_COPY)
    if point.documents[0] in sizes:
        with damaged.catching(point.documents[0]):
            manifest = archive.manifest(point)
    for ref in manifest.documents if manifest is not None else ():
        if ref.key not in sizes:
            damaged.add(ref.key, "is missing", ANOTHER_COPY)
            continue
        with damaged.catching(ref.key):
            archive.read_document(ref)
    findings.entries |= damaged.entries
    return manifest, not damaged.entries


# The objects that are there against those that restore points promise.

_AT_ONCE = 10_000  # checksums that are asked for
_ROOT = {layout.ARCHIVE, layout.LOCK, layout.LATEST, layout.DERIVED}
_FOLDERS = (layout.RESTORES, layout.DRILLS, layout.VERIFICATIONS, layout.MIRRORS, layout.SCRATCH, layout.KEYS)
INDEX_HINT = f"{ANOTHER_COPY}, or run kbackup repair --confirm: it follows from the records file beside it"


def check_present(segments: Segments, lacking: Collection[str], sizes: Sizes, findings: Findings) -> Segments:
    """Name each file of segments that is `lacking`, by `sizes`; return the segments of which there is something."""
    if not lacking:
        return segments
    there = np.ones(len(segments), np.bool_)
    for at, (records, index) in enumerate(objects_of(segments)):
        has_records = records.key not in lacking or _has(records.key, records.size, sizes, findings, ANOTHER_COPY)
        has_index = index.key not in lacking or _has(index.key, index.size, sizes, findings, INDEX_HINT)
        there[at] = has_records or has_index
    return segments.where(there)


def _has(key: str, size: int, sizes: Sizes, findings: Findings, missing: str, other: str = CHANGED) -> bool:
    stored = sizes.get(key)
    if stored is None:
        findings.add(key, "is missing", missing)
    elif stored != size:
        findings.add(key, f"has {stored} bytes, not {size}", other)
    return stored == size


def check_stored_checksums(store: Store, segments: Segments, lacking: Collection[str], findings: Findings) -> int:
    """Checksums that the store keeps against the tables', but for `lacking` objects; returns how many it keeps none
    for."""

    def compare(due: ExpectedObject) -> bool:
        with findings.catching(due.key):
            kept = store.checksum(due.key)
            if kept is None:
                return False
            if due.crc and f"{kept:016x}" != due.crc:
                findings.add(due.key, f"has checksum {kept:016x} in the store, not {due.crc}", CHANGED)
        return True

    due = (each for pair in objects_of(segments) for each in pair if each.key not in lacking)
    unknown = 0
    while some := [*islice(due, _AT_ONCE)]:
        unknown += in_threads(compare, some, threads=32).count(False)
    return unknown


def note_orphans(sizes: Sizes, referred: Collection[str], whole: bool, findings: Findings) -> None:
    """Objects that no catalog refers to. They harm nobody, but take room until a sweep."""
    for key, size in sizes.items():
        if key in referred:
            continue
        if key.startswith((layout.TOPICS, layout.POINTS, layout.TABLES)):
            more = "" if whole else " that can be read"
            findings.note(key, f"is an orphan: no catalog{more} refers to it", size)
        elif key not in _ROOT and layout.parse_catalog_key(key) is None and not key.startswith(_FOLDERS):
            findings.note(key, "is not a file of an archive", size)


# Partition indexes and group offset files against what follows from the catalog.


def check_derived(store: Store, files: dict[str, bytes], sizes: Sizes, deep: bool, findings: Findings) -> None:
    """Check derived files by their size, or by their bytes when `deep`."""
    same = [key for key, data in files.items() if _has(key, len(data), sizes, findings, REBUILD, REBUILD)]

    def compare(key: str) -> None:
        with findings.catching(key):
            if store.get(key) != files[key]:
                what = "segments" if "/index_" in key else "groups"
                findings.add(key, f"is not what follows from the {what} of its topic", REBUILD)

    if deep:
        in_threads(compare, same)


def can_judge(store: Store, result: Survey) -> bool:
    """Return whether the derived files were written for the newest catalog, or for one with the same segments and
    restore points, and no other catalog was committed since."""
    if result.archive is None or result.archive.committed.catalog is None:
        return False
    newest = result.archive.committed.catalog
    written_for = result.catalogs.get(result.derived_for or 0)
    if written_for is None:
        return False
    now, then = newest.tables, written_for.tables
    if (now.points, now.segments, now.log_starts) != (then.points, then.segments, then.log_starts):
        return False
    later = set(list_catalogs(store, newest.number + 1))
    return later == far_numbers(later, newest.number)
