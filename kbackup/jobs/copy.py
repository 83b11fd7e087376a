"""The copy job: an archive's objects to another store, checked on the way; and copies made independent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple

from awscrt.checksums import crc64nvme

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.copies import begin_copy, check_lineage, follow_source, only_point
from kbackup.archive.catalog.copies import promote as promote_state
from kbackup.archive.catalog.documents import IsolationLevel, Link, Origin
from kbackup.archive.catalog.state import PointRow, State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import ArchiveInfo, DocumentRef, load
from kbackup.archive.reader import Archive, open_archive, refuse_if_swept
from kbackup.archive.run import WritingRun, begin_writing
from kbackup.archive.segments.table import ExpectedObject, Segments, not_in, objects_of, ordered, rows_where, sum_of
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, RefusedError
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.store.base import Store, check_apart, check_conditional_writes
from kbackup.store.crypt import read_chunks, size_of, stored
from kbackup.util.system import in_threads

THREADS = 8
_FEW = 256
"""So many objects are looked up one by one; for more, all between them are listed, a thousand per request."""
_DAMAGED = "run 'kbackup verify', which lists every finding; nothing of this object was copied"
_IN_THE_WAY = "delete it by hand while no copy runs, then run the copy again; no restore point there has it"
DIVERGED = "use another address: something other than 'kbackup copy' wrote to this one"


def missing(target: Store, expected: list[ExpectedObject]) -> list[ExpectedObject]:
    """Return the objects of `expected` that are not at `target`. `RefusedError` for an object that is there and is not
    whole, by size or by the checksum that `target` keeps: a copy deletes and replaces nothing that a later copy may
    send."""
    sizes = _sizes_at(target, {each.key for each in expected})

    def is_whole(each: ExpectedObject) -> bool:
        if sizes[each.key] != size_of(target, each.size):
            return False
        kept = target.checksum(each.key)
        return kept is None or f"{kept:016x}" == each.crc

    there = [each for each in expected if each.key in sizes]
    for each, whole in zip(there, in_threads(is_whole, there, THREADS), strict=True):
        if not whole:
            raise RefusedError(f"file {each.key} at {target.url} is damaged", _IN_THE_WAY)
    return [each for each in expected if each.key not in sizes]


def _sizes_at(target: Store, keys: Collection[str]) -> dict[str, int]:
    """Return the stored sizes of those objects that are at `target`."""
    raw = stored(target)
    sizes: dict[str, int] = {}
    if len(keys) > _FEW:
        last = max(keys)
        # A listing begins behind a key: the first one without its last letter comes before it.
        for entry in raw.list(layout.TOPICS, min(keys)[:-1]):
            if entry.key > last:
                break
            if entry.key in keys:
                sizes[entry.key] = entry.size
        return sizes

    def find(key: str) -> None:
        with suppress(NotFoundError):
            sizes[key] = raw.stat(key).size

    in_threads(find, keys, THREADS)
    return sizes


def send(source: Store, target: Store, expected: ExpectedObject) -> int:
    """Copy one object, and return its stored bytes. `CorruptError` if the object is not what the archive says: then
    nothing is left at `target`. `RefusedError` if other bytes arrived than were sent: they stay."""
    crc = sent_crc = sent = 0
    with stored(target).upload(expected.key) as upload:
        for piece, plain in read_chunks(source, expected.key, expected.size):
            sent += len(piece)
            sent_crc = crc64nvme(piece, sent_crc)
            # The archive's checksums are of plain bytes. Without encryption both are the same, and counted once.
            crc = sent_crc if plain is piece else crc64nvme(plain, crc)
            upload.write(piece)
        if f"{crc:016x}" != expected.crc:
            raise CorruptError(f"file {expected.key} is not what its manifest says (checksum)", _DAMAGED)
        try:
            arrived = upload.commit()
        except AlreadyExistsError:
            # Another copy was faster: its object is looked at like one that was there before.
            missing(target, [expected])
            return sent
    if arrived != (sent, sent_crc):
        raise RefusedError(f"file {expected.key} arrived at {target.url} as other bytes than were sent", _IN_THE_WAY)
    return sent


def put_same(target: Store, key: str, data: bytes) -> None:
    """Create an object of stored bytes. `RefusedError` if the key has other bytes already."""
    raw = stored(target)
    try:
        raw.put_new(key, data)
    except AlreadyExistsError as error:
        if raw.get(key) != data:
            raise RefusedError(
                f"file {key} at {target.url} is another one than that of the archive", DIVERGED
            ) from error


# Check that a destination can be a copy: it is empty, or a copy of the same archive.


def claim(source: Store, info: ArchiveInfo, target: Store) -> None:
    """Make `target` an archive of the same id, if it is empty. `RefusedError` if anything else than a copy is there,
    `StoreError` for a store that can't keep an archive safe."""
    check_apart(target, source)
    if _is_ours(info, target):
        return
    for entry in stored(target).list():
        if not entry.key.startswith(layout.SCRATCH):
            raise RefusedError(
                f"{target.url} is not empty and no archive: there is {entry.key}", "copy to an empty address"
            )
    check_conditional_writes(target, layout.SCRATCH.rstrip("/"))
    try:
        target.put_new(layout.ARCHIVE, source.get(layout.ARCHIVE))
    except AlreadyExistsError:  # another copy made it just now, of this archive or another one
        _is_ours(info, target)


def _is_ours(info: ArchiveInfo, target: Store) -> bool:
    try:
        existing = load(ArchiveInfo, target.get(layout.ARCHIVE), layout.ARCHIVE)
    except NotFoundError:
        return False
    if existing.id != info.id:
        raise RefusedError(
            f"{target.url} is another archive ({existing.id}, not {info.id})",
            "copy to an empty address, or to this archive's own copy",
        )
    return True


# Copy the files beside restore points: data keys, and the files of restores and drills.


def copy_keys(source: Store, target: Store) -> None:
    """Copy the files of data keys, before the objects that are encrypted under them. They are created and never
    replaced."""
    there = {entry.key for entry in stored(target).list(layout.KEYS)}
    for entry in stored(source).list(layout.KEYS):
        if entry.key not in there:
            put_same(target, entry.key, stored(source).get(entry.key))


def check_keys(source: Store, target: Store) -> None:
    """Raise `CorruptError` for a file of data keys that differs between the two. Such files are never replaced, so one
    of the two may hold the only genuine data keys."""
    raw_source = stored(source)
    raw_target = stored(target)

    def check(key: str) -> None:
        with suppress(NotFoundError):  # a rotation was faster
            if raw_source.get(key) != raw_target.get(key):
                raise CorruptError(
                    f"file {key} at {target.url} is not the one at {source.url}; nothing was copied",
                    "find out which one was replaced; move it away and restore it from the other",
                )

    there = {entry.key for entry in raw_target.list(layout.KEYS)}
    in_both = [entry.key for entry in raw_source.list(layout.KEYS) if entry.key in there]
    in_threads(check, in_both, THREADS)


def copy_beside(source: Store, target: Store) -> int:
    """Copy the files of restores and drills that are missing or different, and return their number. Reports are copied
    last: a report marks its restore as finished. Data keys that came since, under which some files may be encrypted,
    follow."""
    raw_source = stored(source)
    raw_target = stored(target)
    sizes: dict[str, int] = {}

    def copy_if_different(key: str) -> bool:
        data = raw_source.get(key)
        if key in sizes and raw_target.get(key) == data:
            return False
        raw_target.put(key, data)
        return True

    copied = 0
    for folder in (layout.RESTORES, layout.DRILLS):
        for entry in raw_target.list(folder):
            sizes[entry.key] = entry.size
        reports: list[str] = []
        others: list[str] = []
        for entry in raw_source.list(folder):
            # A document may change without its size: it is compared. The other files are written once.
            if sizes.get(entry.key) == entry.size and not entry.key.endswith(".json"):
                continue
            if entry.key.endswith(f"/{layout.REPORT}"):
                reports.append(entry.key)
            else:
                others.append(entry.key)
        for keys in (others, reports):
            copied += sum(in_threads(copy_if_different, keys, THREADS))
    copy_keys(source, target)
    return copied


# The promote job: a copy becomes an archive of its own.


@dataclass(frozen=True)
class PromoteReport:
    """`origin` is the address of the source that the copy followed."""

    archive: str
    archive_id: str
    origin: str


def promote(store: Store) -> PromoteReport:
    """Make the copy at `store` an archive of its own, also where its source is lost. `RefusedError` for no copy."""
    archive = open_archive(store)
    origin = archive.state.origin
    summary = f"promoted; it was a copy of {origin.archive}" if origin is not None else ""
    commit(store, archive.committed, promote_state, Author("promote", "", summary))
    return PromoteReport(store.url, archive.info.id, origin.archive if origin is not None else "")


# The copy job: an archive in another store, as of one catalog of its source.
#
# Objects are copied as they are stored. The destination is a whole archive at each moment: segments and documents
# come first, then one commit takes over the source's state.

SEGMENTS_AT_ONCE = 10_000
"""So many segments are compared and sent at a time."""


@dataclass(frozen=True)
class CopyReport:
    """What a copy did. `restore_points` are the numbers that were copied, `dropped` the numbers that expired in the
    source and were removed from the copy, `newest` is the newest number there now. `objects` and `bytes` (stored bytes)
    count what was sent of segments, `found` counts objects of segments that were there already, from an interrupted
    copy. `beside` counts the files of restores and drills that were copied."""

    archive: str
    destination: str
    archive_id: str
    restore_points: tuple[int, ...]
    dropped: tuple[int, ...]
    newest: int | None
    objects: int
    bytes: int
    found: int
    beside: int
    seconds: dict[str, float] = field(default_factory=dict)


def copy_archive(
    source: Store,
    target: Store,
    lease_seconds: float,
    listener: ProgressListener,
    *,
    point: str | None = None,
    keep: bool = False,
) -> CopyReport:
    """Bring `target` up to the newest catalog of `source`, or with `point` up to that restore point alone.

    With `keep`, restore points that the source let go stay in the copy. Takes the lease of `target` and none of
    `source`, which is only read: backups may go on there. `RefusedError` if `target` is anything but empty or a
    copy of the same history.
    """
    phases = Phases(listener)
    with phases.step("open"):
        archive = open_archive(source)
        ours = archive.state
        if point is not None:
            manifest = archive.restore_point(point)
            ours = only_point(archive.state, manifest.number, manifest.topics)
        claim(source, archive.info, target)
    with HeldLease(target, "kbackup copy", lease_seconds) as lease:
        with phases.step("compare"):
            # Keys first: what is there may be encrypted under them, and all that is copied may be.
            check_keys(source, target)
            copy_keys(source, target)
            there = open_archive(target)
            check_lineage(there.state, archive.state, target.url)
            if point is not None:
                _check_same_points(there, ours, target.url)
            writing = _begin(archive, ours, target, lease)
            before = writing.archive.state
            goal = partial(follow_source, source=ours, run=writing.run, origin=_origin_of(archive, ours), keep=keep)
            after = goal(before)
            lacking = lacking_segments(after, before)
        with phases.step("copy"), refuse_if_swept(archive):
            sent = _copy_segments(source, writing.store, lacking, listener)
            new = _added_points(before, after)
            _copy_documents(archive, writing.store, new)
            writing.commit(goal, "copy", f"{len(new)} restore points copied from {archive.store.url}")
            writing.refresh_derived()
        with phases.step("restores and drills"):
            beside = copy_beside(source, writing.store) if point is None else 0
        writing.end()
    numbers = [added.number for added in new]
    dropped = [former.number for former in before.restore_points if after.point(former.number) is None]
    return CopyReport(
        archive=archive.store.url,
        destination=target.url,
        archive_id=archive.info.id,
        restore_points=tuple(numbers),
        dropped=tuple(dropped),
        newest=after.newest.number if after.newest is not None else None,
        objects=sent.objects,
        bytes=sent.bytes,
        found=sent.found,
        beside=beside,
        seconds=phases.seconds,
    )


def _begin(archive: Archive, ours: State, target: Store, lease: HeldLease) -> WritingRun:
    """Fence off every other run at `target`, and commit that a copy of `archive` has begun: from then on the
    destination takes no backup, and knows how its segments were read."""
    level: IsolationLevel = min(ours.isolation_levels, default="read_committed")
    writing = begin_writing(target, lease, "copy", level)
    began = partial(begin_copy, run=writing.run, source=archive.state, address=archive.store.url)
    writing.commit(began, "copy", f"a copy of {archive.store.url} began")
    return writing


def _origin_of(archive: Archive, ours: State) -> Origin:
    """Return the catalog of the source that the copy follows."""
    catalog = archive.committed.catalog
    link = Link(number=ours.number, checksum=catalog.checksum if catalog is not None else "")
    return Origin(archive=archive.store.url, catalog=link)


def _added_points(before: State, after: State) -> list[PointRow]:
    """Return the restore points of `after` that `before` lacks. A restore point that was repaired in the source has
    kept its number, and has another manifest."""
    copied = {(point.number, point.manifest) for point in before.restore_points}
    return [point for point in after.restore_points if (point.number, point.manifest) not in copied]


def _check_same_points(there: Archive, ours: State, url: str) -> None:
    """Raise `RefusedError` if a copy of one restore point would remove others that the destination has."""
    numbers = {point.number for point in there.restore_points}
    if there.state.next_point > 1 and numbers != {point.number for point in ours.restore_points}:
        raise RefusedError(f"{url} has other restore points already", "copy to an empty address")


def lacking_segments(source: State, copy: State) -> Segments:
    """Return the segments of `source` that `copy` lacks, by topic, incarnation, partition and offset."""
    table = source.segments.read()
    known = copy.segments.read(["key"])
    lacking = rows_where(table, not_in(table["key"], known["key"]))
    return ordered([lacking]).segments.checked()


class SentObjects(NamedTuple):
    """How many objects of segments were sent, their stored bytes, and how many were found at the destination."""

    objects: int
    bytes: int
    found: int


def _copy_segments(source: Store, target: Store, segments: Segments, listener: ProgressListener) -> SentObjects:
    """Send the objects of segments that are not at `target`. Progress counts the records of each segment once."""
    expected = sum_of(segments, "count")
    objects = sent = found = records = plain = 0
    send_object = partial(send, source, target)
    for at in range(0, len(segments), SEGMENTS_AT_ONCE):
        part = segments[at : at + SEGMENTS_AT_ONCE]
        files = list(chain.from_iterable(objects_of(part)))
        counts = {key: (count, size) for key, count, size in part.rows("key", "count", "bytes")}
        lacking = missing(target, files)
        found += len(files) - len(lacking)
        with ThreadPoolExecutor(THREADS) as pool:
            for each, size in zip(lacking, pool.map(send_object, lacking), strict=True):
                objects += 1
                sent += size
                if each.key in counts:  # the records; their index has none to count
                    count, plain_size = counts[each.key]
                    records += count
                    plain += plain_size
                    listener.progress(records, plain, expected)
    return SentObjects(objects, sent, found)


def _copy_documents(archive: Archive, target: Store, points: Sequence[PointRow]) -> None:
    """Copy the documents of restore points, each checked against the reference to it."""
    # Restore points share documents: each is read and sent once.
    references: dict[DocumentRef, None] = {}
    for manifest in archive.manifests(points):
        references.update(dict.fromkeys(manifest.documents))
    in_threads(archive.read_document, references, THREADS)
    keys: dict[str, None] = {}
    for point in points:
        keys.update(dict.fromkeys(point.documents))

    def copy(key: str) -> None:
        put_same(target, key, stored(archive.store).get(key))

    in_threads(copy, keys, THREADS)
