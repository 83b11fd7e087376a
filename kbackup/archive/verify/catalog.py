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
from kbackup.archive.catalog.state import SCHEMAS, PointRow, RewrittenRow, State
from kbackup.archive.catalog.sweep import table_refs
from kbackup.archive.catalog.tables import open_rows, read_ref
from kbackup.archive.identity import ANOTHER_COPY, check_encryption
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, PartitionState, load
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import ExpectedObject, Ordered, Segments, objects_of
from kbackup.archive.verify.findings import CHANGED, REBUILD, Findings, of_error
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, Int64Array
from kbackup.util.system import in_threads


class _Extent(NamedTuple):
    """The segments of one partition that count for one restore point: their numbers in the table, the sums of their
    records and bytes, their least and greatest offset."""

    place: IncarnationPartition
    rows: Int64Array
    records: int
    bytes: int
    first: int
    last: int


def check_vectors(state: State, manifests: Mapping[int, Manifest], added: Ordered, findings: Findings) -> None:
    """Check that segments are in order, within the archived offsets of their restore point, and add up to its totals.

    Segments of expired restore points count for the next restore point that is still there.
    """
    sums: dict[IncarnationPartition, tuple[int, int]] = {}
    damaged = {row.partition_key for row in state.damage}
    rewritten = _rewritten_by_partition(state)
    since = 0
    for number, extents in _extents(added, sorted(manifests), findings):
        states = _captured_after(since, manifests[number])
        for extent in extents:
            records, size = sums.get(extent.place, (0, 0))
            sums[extent.place] = records + extent.records, size + extent.bytes
            # An incarnation that had ended by then has segments here, and no partition in the manifest.
            partition = states.get(extent.place)
            if partition is None:
                continue
            # Looking at each segment takes long: only where the extent as a whole shows that one may be wrong.
            if partition.held or extent.first < partition.start or extent.last >= partition.end:
                _check_offsets(added.segments, extent, partition, number, findings)
        for key, partition in states.items():
            if key not in damaged:
                gone = [row for row in rewritten.get(key, ()) if row.point <= number]
                _check_totals(state, number, key, partition, sums.get(key, (0, 0)), gone, findings)
        since = number


def _rewritten_by_partition(state: State) -> dict[IncarnationPartition, list[RewrittenRow]]:
    """Return what rewrites have taken out of the segments of each partition."""
    rows: dict[IncarnationPartition, list[RewrittenRow]] = defaultdict(list)
    for row in state.rewrites:
        rows[row.incarnation_partition].append(row)
    return rows


def _captured_after(since: int, manifest: Manifest) -> dict[IncarnationPartition, PartitionState]:
    """Return the partitions of the topics that were captured after restore point `since`. A manifest repeats the other
    topics as an earlier restore point has them."""
    captured: set[Incarnation] = set()
    for topic_key, topic in manifest.incarnations().items():
        if since < topic.captured <= manifest.number:
            captured.add(topic_key)
    return {key: partition for key, partition in manifest.partitions().items() if key[:2] in captured}


def _check_totals(
    state: State,
    number: int,
    key: IncarnationPartition,
    partition: PartitionState,
    found: tuple[int, int],
    gone: Sequence[RewrittenRow],
    findings: Findings,
) -> None:
    """Compare the records and bytes that a manifest counts in a partition with `found`, the sums of its segments.
    `gone` is what rewrites have taken out of them, and the manifest goes on counting."""
    records, size = found
    log_start = state.starts.get(key)
    if log_start is not None:
        # A manifest goes on counting records that have expired. A manifest that reaches the log start counts all of
        # them. One that ends before it counts a part that nobody knows: there is nothing to compare without segments.
        if partition.end >= log_start.start:
            records += log_start.records
            size += log_start.bytes
        elif not records:
            return
    records += sum(row.records for row in gone)
    size += sum(row.bytes for row in gone)
    if (partition.records, partition.bytes) == (records, size):
        return
    row = state.point(number)
    findings.add(
        row.documents[0] if row is not None else "",
        f"says that {key[0]}-{key[2]} has {partition.records} records in {partition.bytes} bytes, "
        f"its segments have {records} in {size}",
        CHANGED,
    )


def _extents(added: Ordered, numbers: Sequence[int], findings: Findings) -> Iterator[tuple[int, Iterator[_Extent]]]:
    """Yield each restore point with the segments that count for it, by partition. A segment that begins before the end
    of the segment before it becomes a finding. Segments are in order of partition and offset.

    All is done in columns: an archive may have a million segments, and 100,000 partitions in each restore point.
    """
    segments = added.segments
    places = list(added.places)
    sizes = [part.stop - part.start for part in added.places.values()]
    owner = np.repeat(np.arange(len(places)), sizes)
    # the place in `numbers` of the restore point that each segment counts for: its own, or the next that is there
    point_at = np.searchsorted(np.array(numbers, np.int64), added.points)
    rows = np.flatnonzero(point_at < len(numbers))
    first = segments.integers("first")[rows]
    last = segments.integers("last")[rows]
    _check_overlaps(segments, rows, owner[rows], first, last, findings)
    order = np.lexsort((first, added.points[rows], owner[rows]))  # by the last of these before all others
    rows, first, last = rows[order], first[order], last[order]
    owner, point_at = owner[rows], point_at[rows]

    begins = (np.diff(owner, prepend=-1) != 0) | (np.diff(point_at, prepend=-1) != 0)
    starts = np.flatnonzero(begins)
    if not len(starts):
        for number in numbers:
            yield number, iter(())
        return
    stops = np.append(starts[1:], len(rows))
    records = np.add.reduceat(segments.integers("count")[rows], starts)
    size = np.add.reduceat(segments.integers("bytes")[rows], starts)
    lowest = np.minimum.reduceat(first, starts)
    highest = np.maximum.reduceat(last, starts)
    columns = (owner[starts], starts, stops, records, size, lowest, highest)

    def extents_of(part: Int64Array) -> Iterator[_Extent]:
        values = [column[part].tolist() for column in columns]
        for place, start, stop, *sums in zip(*values, strict=True):
            yield _Extent(places[place], rows[start:stop], *sums)

    by_point = np.argsort(point_at[starts], kind="stable")
    edges = np.searchsorted(point_at[starts][by_point], np.arange(len(numbers) + 1))
    for number, low, high in zip(numbers, edges[:-1], edges[1:], strict=True):
        yield number, extents_of(by_point[low:high])


def _check_overlaps(
    segments: Segments, rows: Int64Array, owner: Int64Array, first: Int64Array, last: Int64Array, findings: Findings
) -> None:
    """Add a finding for each segment that begins before the end of the one before it in its partition. `rows` are the
    numbers of segments, in order; the other arrays have a value for each of them."""
    same_partition = np.diff(owner) == 0
    overlaps = first[1:] <= last[:-1]
    for at in (1 + np.flatnonzero(same_partition & overlaps)).tolist():
        keys = segments.column("key")
        before, key = (keys[int(row)].as_py() for row in rows[at - 1 : at + 1])
        findings.add(key, f"begins at offset {first[at]}, but {before} ends at {last[at - 1]}", CHANGED)


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
    """The readable documents of an archive.

    `archive_id` is the id in archive.json, '' if that file is damaged. `archive` is as of the newest whole catalog,
    None if there is none. `manifests` is in order of numbers and lacks damaged ones. `catalogs` are the readable
    catalogs of the archive's history, by number. `whole`: the newest catalog, its tables and its manifests could be
    read. `documents_whole`: so could the documents that the manifests refer to.
    """

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
    """Read every catalog and every document of the restore points. What is damaged or missing becomes a finding."""
    result = Survey()
    info = _read_info(store, findings)
    result.archive_id = info.id
    if layout.LOCK in sizes:
        with findings.catching(layout.LOCK):
            load(Lease, store.get(layout.LOCK), layout.LOCK)
    parsed = [layout.parse_catalog_key(key) for key in sizes]
    numbers = {number for number in parsed if number is not None}
    catalogs, owner = _read_catalogs(store, numbers, result, findings)
    _read_marks(store, sizes, owner, result, findings)
    _check_history(numbers, catalogs, result, findings)
    newest = _newest_whole(store, result, findings)
    if newest is None:
        return result

    # archive.json may be of another archive, and the catalogs still are what is to be verified
    archive = Archive(store, replace(info, id=newest.state.archive_id), newest)
    result.archive = archive

    def read(point: PointRow) -> tuple[Manifest | None, bool]:
        return _read_point(archive, point, sizes, findings)

    for manifest, documents_whole in in_threads(read, result.points):
        if manifest is not None:
            result.manifests[manifest.number] = manifest
        result.documents_whole = result.documents_whole and documents_whole
    result.whole = result.whole and len(result.manifests) == len(result.points)
    return result


def _read_info(store: Store, findings: Findings) -> ArchiveInfo:
    """Return archive.json; an empty one where it is damaged."""
    info = ArchiveInfo(id="", created_at="")
    with findings.catching(layout.ARCHIVE):
        info = load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE)
        check_encryption(store, info)
    return info


def _read_marks(store: Store, sizes: Sizes, owner: str, result: Survey, findings: Findings) -> None:
    """Read the two documents that name a committed catalog. Both are written after that commit, so the catalog was
    there even if it is missing now."""
    if layout.LATEST in sizes:
        with findings.catching(layout.LATEST):
            latest = load(Latest, store.get(layout.LATEST), layout.LATEST)
            check_archive(layout.LATEST, latest.archive_id, owner or latest.archive_id)
            result.latest = max(result.latest, latest.number)
    if layout.DERIVED in sizes:
        with findings.catching(layout.DERIVED):
            derived = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
            check_archive(layout.DERIVED, derived.archive_id, owner or derived.archive_id)
            result.derived_for = derived.catalog
            result.latest = max(result.latest, derived.catalog)


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

    catalogs: Catalogs = {}
    for number, catalog in zip(numbers, in_threads(read, numbers), strict=True):
        if catalog is not None:
            catalogs[number] = catalog
    readable = {number: catalog for number, catalog in catalogs.items() if isinstance(catalog, Catalog)}
    owner = result.archive_id
    if readable and owner not in {catalog.archive_id for catalog in readable.values()}:
        # Not one catalog is of the archive that archive.json names: then that file is the odd one, not all catalogs.
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
    """Walk from the newest catalog to the oldest that no sweep reached: each catalog names the one before it.

    A repair goes on from the newest whole catalog. The catalogs that the repair passed over are not of the history.
    """
    whole = {number: catalog for number, catalog in catalogs.items() if isinstance(catalog, Catalog)}
    errors = {number: error for number, error in catalogs.items() if isinstance(error, CorruptError)}
    far = _name_far_catalogs(numbers, whole, errors, findings)
    known = {result.latest, *numbers} - far
    newest = max(known, default=0)
    swept = whole[max(whole)].swept if whole else 0
    number = newest
    expected_checksum = ""  # what the catalog after this one says of it; '' where that one is lost
    while number > swept:
        key = layout.catalog_key(number)
        catalog = whole.get(number)
        if catalog is None:
            if number in errors:
                findings.entries.add(of_error(key, errors[number]))
            else:
                findings.add(key, "is missing", ANOTHER_COPY)
            number = _number_before(number, numbers)
            expected_checksum = ""
            continue
        result.catalogs[number] = catalog
        if expected_checksum and catalog.checksum != expected_checksum:
            findings.add(key, "is not the catalog that the next one follows", CHANGED)
        link = catalog.previous
        if link is None:
            break
        number = min(link.number, number - 1)  # a damaged link must not lead upwards, or the walk would not end
        expected_checksum = link.checksum
    result.whole = not newest or newest in result.catalogs


def _name_far_catalogs(
    numbers: Collection[int], whole: Mapping[int, Catalog], errors: Mapping[int, CorruptError], findings: Findings
) -> set[int]:
    """Return the numbers of unreadable catalogs that are too high for any run to have given them."""
    readable = max(whole, default=min(numbers, default=0))
    far = far_numbers(errors, readable)
    for number in far:
        what = f"is no catalog, {readable} is the newest that can be read: {errors[number].message}"
        findings.add(layout.catalog_key(number), what, "delete it: no run gave it that number")
    return far


def _number_before(number: int, numbers: Collection[int]) -> int:
    """Return where to go on below a catalog that can't be read: at the number before. If the next lower catalog in the
    listing is so far away that no run gave this number, the catalogs between the two never existed."""
    lower = max((n for n in numbers if n < number), default=0)
    return lower if far_numbers([number], lower) else number - 1


def _newest_whole(store: Store, result: Survey, findings: Findings) -> Committed | None:
    """Return the newest catalog whose tables can all be read, None if there is none."""
    for _, catalog in sorted(result.catalogs.items(), reverse=True):
        state = state_of(store, catalog)
        damaged = Findings()
        for rows in state.tables().values():
            for chunk in rows.chunks:
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
    # the tables of the newest catalog were read for its state
    own: set[str] = set()
    if committed.catalog is not None:
        own.update(ref.key for ref in table_refs(committed.catalog))
    refs: dict[str, tuple[str, TableRef]] = {}
    for catalog in result.catalogs.values():
        for name, refs_of_table in asdict(catalog.tables).items():
            refs |= {ref.key: (name, ref) for ref in refs_of_table}

    def read(entry: tuple[str, TableRef]) -> set[str]:
        name, ref = entry
        referred: set[str] = set()
        with findings.catching(ref.key):
            if name not in _NAMING:
                read_ref(store, ref)
                return referred
            for (value,) in open_rows(store, SCHEMAS[name], [ref]).rows(_NAMING[name]):
                keys = (value, layout.index_key_of(value)) if isinstance(value, str) else value
                referred.update(key for key in keys if key in among)
        return referred

    referred = own.union(refs)
    for (documents,) in committed.state.points.rows("documents"):
        referred.update(documents)
    earlier = [entry for key, entry in refs.items() if key not in own]
    return referred.union(*in_threads(read, earlier))


_NAMING = {"points": "documents", "segments": "key"}
"""The tables that name objects, and the column that does."""


def _read_point(archive: Archive, point: PointRow, sizes: Sizes, findings: Findings) -> tuple[Manifest | None, bool]:
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
    """Name each file of segments that is `lacking`, by `sizes`; return the segments that have a file left."""
    if not lacking:
        return segments
    there = np.ones(len(segments), np.bool_)
    for at, (records, index) in enumerate(objects_of(segments)):
        has_records = records.key not in lacking or _has(records.key, records.size, sizes, findings, ANOTHER_COPY)
        has_index = index.key not in lacking or _has(index.key, index.size, sizes, findings, INDEX_HINT)
        there[at] = has_records or has_index
    return segments.where(there)


def _has(key: str, size: int, sizes: Sizes, findings: Findings, missing: str, other: str = CHANGED) -> bool:
    """Return whether an object is there in the right size. If not it becomes a finding, with the hint `missing`, or
    `other` for one of another size."""
    stored = sizes.get(key)
    if stored is None:
        findings.add(key, "is missing", missing)
    elif stored != size:
        findings.add(key, f"has {stored} bytes, not {size}", other)
    return stored == size


def check_stored_checksums(store: Store, segments: Segments, lacking: Collection[str], findings: Findings) -> int:
    """Compare the checksums that the store keeps with the checksums in the tables, except for `lacking` objects. Return
    how many objects the store keeps no checksum for."""

    def compare(expected: ExpectedObject) -> bool:
        """Return whether the store keeps a checksum, or the object is gone."""
        with findings.catching(expected.key):
            kept = store.checksum(expected.key)
            if kept is None:
                return False
            if expected.crc and f"{kept:016x}" != expected.crc:
                findings.add(expected.key, f"has checksum {kept:016x} in the store, not {expected.crc}", CHANGED)
        return True

    def objects_that_are_there() -> Iterator[ExpectedObject]:
        for pair in objects_of(segments):
            for expected in pair:
                if expected.key not in lacking:
                    yield expected

    present = objects_that_are_there()
    unknown = 0
    # In batches: a pool of threads takes in all that it is given at once, and there may be a million objects.
    while batch := list(islice(present, _AT_ONCE)):
        has_checksum = in_threads(compare, batch, threads=32)
        unknown += has_checksum.count(False)
    return unknown


def note_orphans(sizes: Sizes, referred: Collection[str], whole: bool, findings: Findings) -> None:
    """Note the objects that no catalog refers to. They harm nobody, but take room until a sweep."""
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
    same_size: list[str] = []
    for key, data in files.items():
        if _has(key, len(data), sizes, findings, REBUILD, REBUILD):
            same_size.append(key)

    def compare(key: str) -> None:
        with findings.catching(key):
            if store.get(key) != files[key]:
                what = "segments" if "/index_" in key else "groups"
                findings.add(key, f"is not what follows from the {what} of its topic", REBUILD)

    if deep:
        in_threads(compare, same_size)


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
    # A backup may have committed while this verification ran: then its derived files are newer than the survey.
    later = set(list_catalogs(store, newest.number + 1))
    return later == far_numbers(later, newest.number)
