"""The adopt job: a folder of the Java tool becomes an archive, in its place.

Its segments are copied to where an archive has them, each read back whole first; the folder itself is left as it is. A
restore point of them is the last thing that is written: until then the folder reads as it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

from msgspec import structs

from kbackup.archive import layout
from kbackup.archive.catalog.operations import add_point, end_run
from kbackup.archive.catalog.state import State
from kbackup.archive.java import Flaw, JavaFolder
from kbackup.archive.lease import HeldLease
from kbackup.archive.query.java import empty_groups, is_java_archive, java_topics, missing_indexes
from kbackup.archive.reader import open_archive
from kbackup.archive.repair.points import groups_of_files, manifest_of_files, topic_states
from kbackup.archive.repair.segments import Arranged, Damaged, ToScan, Whole, arrange
from kbackup.archive.run import WritingRun, begin_writing, open_or_create, put_manifest
from kbackup.archive.segments.salvage import MOST_PARTITIONS, read_unlisted
from kbackup.archive.segments.table import Segment, in_table
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.errors import AlreadyExistsError, CorruptError, NoArchiveError, NotFoundError, RefusedError, UsageError
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.repair import RepairReport, read_back
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark
from kbackup.store.base import Store, encryption_of
from kbackup.types import IncarnationPartition

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_EMPTY = 1  # bytes of a records file without records: the magic


def _convert(
    store: JavaFolder, copy: bool, task: Sequence[ToScan], progress: ProgressSender
) -> Iterator[Whole | Damaged]:
    """Do a task: read back some segments of the folder, and with `copy`, copy them to their place in the archive."""
    for item in task:
        try:
            segment, index, _, end = read_unlisted(store, item.target, item.key)
        except (CorruptError, NotFoundError) as error:
            yield item.damaged(error)
            continue
        to = item.target
        key = layout.records_key(to.directory, to.partition, segment.first, to.compression)
        moved = replace(segment, key=key)
        if copy:
            _copy(store, item.key, moved, index)
        progress.add(segment.count, segment.bytes)
        warnings = tuple(flaw.message for flaw in store.flaws_of(item.key))
        yield Whole(moved, "whole", vouched=False, end=end, warnings=warnings)


def _copy(store: Store, key: str, to: Segment, index: bytes) -> None:
    """Create both objects of a segment. `CorruptError` if other bytes arrived than were read, or if other bytes are
    there already."""
    wrong = CorruptError(
        f"file {to.key} exists already and differs from {key}", "remove what an adoption left under topics/"
    )
    with store.upload(to.key) as upload:
        for chunk in store.open_range(key, 0, to.stored):
            upload.write(chunk)
        try:
            if f"{upload.commit()[1]:016x}" != to.crc:
                raise wrong
        except AlreadyExistsError:
            # an adoption that was cut off had come so far
            there = SegmentTarget(to.topic, to.incarnation, to.partition, 0, layout.compression_of(to.key))
            if read_unlisted(store, there, to.key).segment.crc != to.crc:
                raise wrong from None
    # After its records, as a backup writes them: an index that is there has whole records beside it.
    store.put(layout.index_key_of(to.key), index)


def adopt(store: Store, confirm: bool, lease_seconds: float, spark: Spark, listener: ProgressListener) -> RepairReport:
    """Make an archive of a folder of the Java tool; without `confirm` nothing is written. `RefusedError` if there is
    an archive with restore points already, or the remains of one, `NoArchiveError` if there is no such folder."""
    phases = Phases(listener)
    if encryption_of(store) is not None:
        raise UsageError(
            f"a folder of the Java tool is not encrypted, but a key is given for {store.url}",
            "adopt it without the key",
        )
    _check_address(store)
    if not confirm:
        return _adopt(store, None, phases, spark, listener)
    with HeldLease(store, "kbackup adopt", lease_seconds) as lease:
        _check_address(store)
        return _adopt(store, lease, phases, spark, listener)


def _check_address(store: Store) -> None:
    """Check that the address has a folder and no archive with restore points. An interrupted adoption has left an
    archive without one: the next adoption continues."""
    with suppress(NoArchiveError):
        if open_archive(store).restore_points:
            raise RefusedError(f"{store.url} is an archive already", "see 'kbackup list'")
    index = _first_partition_index(store)
    if index is not None:
        raise RefusedError(
            f"{store.url} is an archive that has lost its restore points: there is {index}", "run 'kbackup repair'"
        )
    if not is_java_archive(store):
        raise NoArchiveError(f"there is no folder of the Java tool at {store.url}", "check the address")


def _first_partition_index(store: Store) -> str | None:
    """Return the key of an archive's partition index. An interrupted adoption has left segments, but no such index:
    partition indexes are written after the first restore point."""
    for entry in store.list(layout.TOPICS):
        place = layout.parse_topic_key(entry.key)
        if place is not None and layout.parse_partition_index(place[1]) is not None:
            return entry.key
    return None


def _adopt(
    store: Store, lease: HeldLease | None, phases: Phases, spark: Spark, listener: ProgressListener
) -> RepairReport:
    folder = JavaFolder(store)
    with phases.step("list objects"):
        sizes = {entry.key: entry.size for entry in store.list()}
        items, partitions, scanned, warnings = _survey(store, sizes)
    writing = None
    if lease is not None:
        open_or_create(store)
        writing = begin_writing(store, lease, "adopt")
    with phases.step("read segments"):
        work = partial(_convert, folder, writing is not None)
        item_sizes = [item.size for item in items]
        scanned += read_back(items, item_sizes, work, spark, listener)
    for found in scanned:
        if isinstance(found, Whole):
            warnings += found.warnings
    chosen = arrange(scanned)
    if writing is not None:
        with phases.step("commit"):
            places = {*partitions, *chosen.segments}
            _commit(writing, folder, sizes, places, chosen, warnings)
    archive_id = ""
    new_point = 1  # that of a dry run, which has no archive yet
    if writing is not None:
        archive_id = writing.archive.info.id
        new_point = writing.next_point - 1
    segments = list(chain.from_iterable(chosen.segments.values()))
    losses = [loss.message for loss in chosen.losses]
    for key, why in chosen.skipped:
        warnings.append(f"{key}: {why}; left out")
    return RepairReport(
        archive=store.url,
        archive_id=archive_id,
        confirmed=writing is not None,
        read_data=True,
        new_point=new_point,
        losses=tuple(losses),
        warnings=tuple(warnings),
        segments=len(segments),
        records=sum(segment.count for segment in segments),
        seconds=phases.seconds,
    )


def _commit(
    writing: WritingRun,
    folder: JavaFolder,
    sizes: Mapping[str, int],
    partitions: Iterable[IncarnationPartition],
    chosen: Arranged,
    warnings: Sequence[str],
) -> None:
    places = set(partitions)
    incarnations = {(topic, incarnation) for topic, incarnation, _ in places}
    groups = groups_of_files(folder, sizes, incarnations, root="")
    topics = topic_states(writing.next_point, places, chosen.segments, {}, {}, groups)
    segments = list(chain.from_iterable(chosen.segments.values()))
    found = manifest_of_files(writing, writing.next_point, topics, segments, groups, chosen.losses, warnings)
    manifest = put_manifest(writing, structs.replace(found, origin="folder"))
    added = in_table(segments)

    def operation(state: State) -> State:
        state = add_point(state, manifest, added)
        return end_run(state, writing.run)

    writing.commit(operation, "adopt", f"restore point {manifest.number} of a folder of the Java tool")
    writing.refresh_derived()


def _survey(
    store: Store, sizes: Mapping[str, int]
) -> tuple[list[ToScan], list[IncarnationPartition], list[Whole | Damaged], list[str]]:
    """Return the segments of the folder, its partitions, missing segments that partition indexes name, and warnings of
    files that are missing or empty."""
    items: list[ToScan] = []
    partitions: set[IncarnationPartition] = set()
    missing: list[Whole | Damaged] = []
    flaws: list[Flaw] = []
    for topic in java_topics(store):
        if not _NAME.match(topic) or topic in (".", ".."):
            raise CorruptError(f"folder {topic!r} can't be a topic's", "move it elsewhere")
        names = [key.removeprefix(f"{topic}/") for key in sizes if key.startswith(f"{topic}/")]
        for name in names:
            key = f"{topic}/{name}"
            segment = layout.parse_segment(name)
            number = layout.parse_partition_index(name)
            if segment is not None and segment.partition < MOST_PARTITIONS:
                partitions.add((topic, 1, segment.partition))
                if segment.kind != "index" and sizes[key] > _EMPTY:
                    target = SegmentTarget(topic, 1, segment.partition, 0, layout.compression_of(key))
                    items.append(ToScan(target, key, sizes[key], segment.start))
            elif number is not None and number < MOST_PARTITIONS:
                partitions.add((topic, 1, number))
                missing += _missing_segments(store, sizes, topic, number, key)
            elif layout.parse_group_offsets(name) is not None and not sizes[key]:
                flaws.append(empty_groups(key))
        flaws += missing_indexes(topic, names)
    return items, sorted(partitions), missing, [flaw.message for flaw in flaws]


def _missing_segments(
    store: Store, sizes: Mapping[str, int], topic: str, partition: int, key: str
) -> Iterator[Damaged]:
    """Yield the segments that a partition index names and the folder lacks."""
    try:
        entries = decode_partition_index(store.get(key), key, partial=True)
    except (CorruptError, NotFoundError):
        return  # the segments speak for themselves
    for entry in entries:
        records = f"{topic}/{entry.name}_records"
        if records not in sizes and f"{records}.zst" not in sizes:
            target = SegmentTarget(topic, 1, partition, 0, "none")
            yield Damaged(target, entry.start_offset, records, "is missing")
