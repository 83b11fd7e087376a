"""Verify an archive against its catalog: documents, tables, every object's existence, and what follows from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed, check_archive, check_catalog, far_numbers, list_catalogs, state_of
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, TableRef
from kbackup.archive.catalog.state import SCHEMAS, Point, State
from kbackup.archive.catalog.sweep import referred_keys
from kbackup.archive.catalog.tables import open_rows, read_ref
from kbackup.archive.identity import ANOTHER_COPY, check_encryption
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, PartitionState, load
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment, in_order
from kbackup.archive.verify.findings import CHANGED, REBUILD, Findings, ToRead, of_error
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition
from kbackup.util.system import in_threads


@dataclass
class _Sum:
    records: int = 0
    bytes: int = 0
    last: int = -1
    key: str = ""


def check_vectors(
    state: State, manifests: Mapping[int, Manifest], segments: Mapping[int, list[Segment]], findings: Findings
) -> None:
    """Check that segments are in order, within the archived offsets of their restore point, and add up to its totals.

    `segments` are by the restore point that added them. Restore points that were let go count for later ones.
    """
    sums: dict[IncarnationPartition, _Sum] = defaultdict(_Sum)
    damaged = {(loss.topic, loss.incarnation, loss.partition) for loss in state.damage}
    pending = sorted(segments)
    since = 0
    for number, manifest in sorted(manifests.items()):
        captured = {key for key, topic in manifest.incarnations().items() if since < topic.captured <= number}
        states = {key: p for key, p in manifest.partitions().items() if key[:2] in captured}
        row = state.point(number)
        while pending and pending[0] <= number:
            for segment in sorted(segments[pending.pop(0)], key=in_order):
                _check_segment(segment, number, states.get(segment.incarnation_partition), sums, findings)
        for key, partition in states.items():
            if key in damaged:
                continue
            # a manifest counts what was let go too: all of it, or all that it has where it ends before the log start
            records, size, start = sums[key].records, sums[key].bytes, state.starts.get(key)
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


def _check_segment(
    segment: Segment,
    number: int,
    state: PartitionState | None,
    sums: Mapping[IncarnationPartition, _Sum],
    findings: Findings,
) -> None:
    """Check a segment that restore point `number` added against the partition's `state`, and add it to `sums`. Without
    a state it is of an incarnation that was over by then."""
    if state is not None and (segment.first < state.start or segment.last >= state.end):
        findings.add(
            segment.key,
            f"holds offsets {segment.first} to {segment.last}, outside of {state.start} to {state.end - 1} "
            f"that restore point {number} says were archived",
            CHANGED,
        )
    before = sums[segment.incarnation_partition]
    if segment.first <= before.last:
        findings.add(segment.key, f"begins at offset {segment.first}, but {before.key} ends at {before.last}", CHANGED)
    before.records += segment.count
    before.bytes += segment.bytes
    before.last, before.key = segment.last, segment.key


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


def check_earlier(store: Store, result: Survey, findings: Findings) -> set[str]:
    """Return the keys that the catalogs of the history refer to. The tables of those before the newest are held against
    their checksums: an undo, and a reader that opened one of them, need them."""
    if result.archive is None:
        return set()
    keys = referred_keys(result.archive.committed)
    tables = [asdict(catalog.tables) for catalog in result.catalogs.values()]
    refs = {ref.key: (name, ref) for each in tables for name, keys_of_table in each.items() for ref in keys_of_table}

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

    for keys_of_table in in_threads(read, [entry for key, entry in refs.items() if key not in keys]):
        keys.update(keys_of_table)
        keys.update(layout.index_key_of(key) for key in keys_of_table if key.startswith(layout.TOPICS))
    return keys | refs.keys()


_NAMING = {"points": "documents", "segments": "key"}
"""The tables that name objects, and the column that does."""


def _manifest(archive: Archive, point: Point, sizes: Sizes, findings: Findings) -> tuple[Manifest | None, bool]:
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
    for capture in manifest.captures if manifest is not None else ():
        for ref in (capture.groups, capture.metadata):
            if ref.key not in sizes:
                damaged.add(ref.key, "is missing", ANOTHER_COPY)
                continue
            with damaged.catching(ref.key):
                archive.read_document(ref)
    findings.entries |= damaged.entries
    return manifest, not damaged.entries


# The objects that are there against those that restore points promise.

_ROOT = {layout.ARCHIVE, layout.LOCK, layout.LATEST, layout.DERIVED}
_FOLDERS = (layout.RESTORES, layout.DRILLS, layout.VERIFICATIONS, layout.MIRRORS, layout.SCRATCH, layout.KEYS)
INDEX_HINT = f"{ANOTHER_COPY}, or run kbackup repair --confirm: it follows from the records file beside it"


def index_size(segment: Segment) -> int:
    return 1 + 24 * segment.count


def check_present(segments: Iterable[Segment], sizes: Sizes, findings: Findings) -> list[ToRead]:
    """Both files of every segment, by size; returns what there is to read of them."""
    to_read: list[ToRead] = []
    for segment in segments:
        index = layout.index_key_of(segment.key)
        item = ToRead(
            segment,
            _has(segment.key, segment.stored, sizes, findings, ANOTHER_COPY),
            _has(index, index_size(segment), sizes, findings, INDEX_HINT),
        )
        if item.records or item.index:
            to_read.append(item)
    return to_read


def _has(key: str, size: int, sizes: Sizes, findings: Findings, missing: str, other: str = CHANGED) -> bool:
    stored = sizes.get(key)
    if stored is None:
        findings.add(key, "is missing", missing)
    elif stored != size:
        findings.add(key, f"has {stored} bytes, not {size}", other)
    return stored == size


def check_stored_checksums(store: Store, items: Iterable[ToRead], findings: Findings) -> int:
    """Checksums that the store keeps against the tables'; returns how many it keeps none for."""
    expected = [(i.segment.key, i.segment.crc) for i in items if i.records]
    expected += [(layout.index_key_of(i.segment.key), i.segment.index_crc) for i in items if i.index]

    def compare(entry: tuple[str, str]) -> bool:
        key, due = entry
        with findings.catching(key):
            kept = store.checksum(key)
            if kept is None:
                return False
            if due and f"{kept:016x}" != due:
                findings.add(key, f"has checksum {kept:016x} in the store, not {due}", CHANGED)
        return True

    return sum(not compared for compared in in_threads(compare, expected, threads=32))


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
