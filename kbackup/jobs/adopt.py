"""The adopt job: a folder of the Java tool becomes an archive, in its place.

Its segments are copied to where an archive has them, each read back whole first; the folder itself is left as it is. A
restore point of them is the last thing that is written: until then the folder reads as it did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.commit import open_or_create
from kbackup.archive.java import empty_groups, is_java_archive, java_topics, missing_indexes
from kbackup.archive.java_folder import JavaFolder
from kbackup.archive.java_segment import Flaw
from kbackup.archive.lease import HeldLease
from kbackup.archive.repair.choose import choose
from kbackup.archive.repair.left import MOST_PARTITIONS, Left, place_of
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, read_any
from kbackup.archive.segments import Segment
from kbackup.archive.verify.points import Points
from kbackup.archive.writer import Target
from kbackup.errors import (
    AlreadyExistsError,
    CorruptError,
    NoArchiveError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.repair import RepairReport, read_back
from kbackup.jobs.repair_point import commit_points
from kbackup.store.base import Store, encryption_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_EMPTY = 1  # bytes of a records file without records: the magic


@dataclass(frozen=True)
class AdoptWork:
    """A task: some segments of the folder, read back and (with `copy`) copied to their place in the archive."""

    store: JavaFolder
    copy: bool

    def __call__(self, task: Sequence[ToScan], progress: ProgressSender) -> Iterator[Whole | Damaged]:
        for item in task:
            try:
                segment, index, _, end = read_any(self.store, item)
            except (CorruptError, NotFoundError) as error:
                why = error.message.removeprefix("file ").removeprefix(item.key).lstrip(": ")
                yield Damaged(item.target, item.start, item.key, why)
                continue
            to = item.target
            key = layout.records_key(to.directory, to.partition, segment.first, to.compression)
            moved = replace(segment, key=key)
            if self.copy:
                _copy(self.store, item.key, moved, index)
            progress.add(segment.count, segment.bytes)
            warnings = tuple(flaw.message for flaw in self.store.flaws_of(item.key))
            yield Whole(moved, "whole", vouched=False, end=end, warnings=warnings)


def _copy(store: Store, key: str, to: Segment, index: bytes) -> None:
    """Create both objects. `CorruptError` where other bytes arrived than were read, or others are there already."""
    wrong = CorruptError(
        f"file {to.key} is there and is not what {key} holds", "remove what an adoption left under topics/"
    )
    with store.upload(to.key) as upload:
        for chunk in store.open_range(key, 0, to.stored):
            upload.write(chunk)
        try:
            if f"{upload.commit()[1]:016x}" != to.crc:
                store.delete([to.key])
                raise wrong
        except AlreadyExistsError:
            # an adoption that was cut off had come so far
            there = Target(to.topic, to.incarnation, to.partition, 0, layout.compression_of(to.key))
            item = ToScan(there, to.key, to.stored, to.first, ())
            if read_any(store, item).segment.crc != to.crc:
                raise wrong from None
    store.put(layout.index_key_of(to.key), index)


def adopt(
    store: Store,
    confirm: bool,
    lease_seconds: float,
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> RepairReport:
    """Without `confirm` nothing is written. `RefusedError` where there is an archive with restore points already, or
    what is left of one, `NoArchiveError` where there is no folder of the Java tool."""
    phases = Phases(listener)
    if encryption_of(store) is not None:
        raise UsageError(
            f"a folder of the Java tool is not encrypted, but a key is given for {store.url}",
            "adopt it without the key: an archive stays what it was made as",
        )
    _check_place(store)
    if not confirm:
        return _adopt(store, False, "", lambda: None, phases, spark, listener)
    with HeldLease(store, "kbackup adopt", lease_seconds) as lease:
        _check_place(store)
        return _adopt(store, True, lease.owner, lease.check, phases, spark, listener)


def _check_place(store: Store) -> None:
    for entry in store.list(layout.BACKUPS):
        parsed = layout.parse_backup_key(entry.key)
        if parsed is not None and parsed[1] == layout.MANIFEST:
            raise RefusedError(
                f"{store.url} is an archive already: there is {entry.key}", "see 'kbackup list'"
            )
    for folder in (layout.BACKUPS, layout.CHECKPOINTS, layout.EXPIRATIONS, layout.TOPICS):
        key = next((entry.key for entry in store.list(folder) if _is_of_commit(entry.key)), None)
        if key is not None:
            raise RefusedError(
                f"{store.url} is an archive that has lost its restore points: there is {key}",
                "see 'kbackup repair'",
            )
    if not is_java_archive(store):
        raise NoArchiveError(f"there is no folder of the Java tool at {store.url}", "check the address")


def _is_of_commit(key: str) -> bool:
    """Whether there was a restore point before this was written: an adoption that was cut off has none such."""
    backup, place = layout.parse_backup_key(key), place_of(key)
    return (
        (backup is not None and backup[1] == layout.REFRESHED)
        or layout.parse_checkpoint_key(key) is not None
        or layout.parse_expiration_key(key) is not None
        or (place is not None and layout.parse_partition_index(place[2]) is not None)
    )


def _adopt(
    store: Store,
    confirm: bool,
    owner: str,
    check: Callable[[], None],
    phases: Phases,
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> RepairReport:
    folder = JavaFolder(store)
    with phases.step("list objects"):
        left = Left({entry.key: entry.size for entry in store.list()}, Points(), set(), root="")
        left.last = max((n[0] for key in left.sizes if (n := layout.parse_backup_key(key))), default=0)
        items, empty, found, warnings = _survey(store, left)
    with phases.step("read segments"):
        found += read_back(items, AdoptWork(folder, confirm), spark, listener)
    left.rows = {each.segment.key: [each.segment] for each in found if isinstance(each, Whole)}
    chosen = choose(left, found)
    chosen.warnings += warnings
    chosen.warnings += [text for each in found if isinstance(each, Whole) for text in each.warnings]
    for place in empty:
        chosen.segments.setdefault(place, [])
    with phases.step("commit"):
        if confirm:
            check()
            left.archive_id = open_or_create(store).info.id
        (manifest,) = commit_points(folder, left, chosen, confirm, owner, check, why="adopted")
    return RepairReport(
        store.url,
        left.archive_id,
        confirm,
        is_loss=bool(chosen.losses or chosen.left_out),
        restore_point=manifest.seq,
        left_out=tuple(sorted(chosen.left_out)),
        losses=tuple(loss.message for loss in chosen.losses),
        warnings=tuple(chosen.warnings),
        not_known=manifest.repaired.not_known if manifest.repaired is not None else (),
        segments=sum(map(len, chosen.segments.values())),
        records=sum(s.count for some in chosen.segments.values() for s in some),
        seconds=phases.seconds,
    )


def _survey(
    store: Store, left: Left
) -> tuple[list[ToScan], list[tuple[str, int, int]], list[Whole | Damaged], list[str]]:
    """The segments that are there, the partitions, segments that partition indexes name and that are not there, and
    warnings of files that are missing or empty."""
    items: list[ToScan] = []
    places: set[tuple[str, int, int]] = set()
    missing: list[Whole | Damaged] = []
    flaws: list[Flaw] = []
    for topic in java_topics(store):
        if not _NAME.match(topic) or topic in (".", ".."):
            raise CorruptError(f"folder {topic!r} can't be a topic's", "move it elsewhere")
        for key in (key for key in left.sizes if key.startswith(f"{topic}/")):
            name = key.removeprefix(f"{topic}/")
            segment = layout.parse_segment(name)
            number = layout.parse_partition_index(name)
            if segment is not None and segment.partition < MOST_PARTITIONS:
                places.add((topic, 1, segment.partition))
                if segment.kind != "index" and left.sizes[key] > _EMPTY:
                    target = Target(topic, 1, segment.partition, 0, layout.compression_of(key))
                    items.append(ToScan(target, key, left.sizes[key], segment.start, ()))
            elif number is not None and number < MOST_PARTITIONS:
                places.add((topic, 1, number))
                missing += _not_there(store, left, topic, number, key)
            elif layout.parse_group_offsets(name) is not None and not left.sizes[key]:
                flaws.append(empty_groups(key))
        names = [key.removeprefix(f"{topic}/") for key in left.sizes if key.startswith(f"{topic}/")]
        flaws += missing_indexes(topic, names)
    return items, sorted(places), missing, [flaw.message for flaw in flaws]


def _not_there(store: Store, left: Left, topic: str, partition: int, key: str) -> Iterator[Damaged]:
    try:
        entries = decode_partition_index(store.get(key), key, partial=True)
    except (CorruptError, NotFoundError):
        return  # the segments speak for themselves
    for entry in entries:
        records = f"{topic}/{entry.name}_records"
        if records not in left.sizes and f"{records}.zst" not in left.sizes:
            target = Target(topic, 1, partition, 0, "none")
            yield Damaged(target, entry.start_offset, records, "is missing")
