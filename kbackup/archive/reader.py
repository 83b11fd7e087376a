"""Open an archive and read what its catalog promises. An opened archive stays at the catalog it was opened at."""

from __future__ import annotations

import difflib
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed, open_later, open_newest
from kbackup.archive.catalog.labels import is_label
from kbackup.archive.catalog.state import PointRow, State
from kbackup.archive.catalog.sweep import referred_keys
from kbackup.archive.identity import REPAIR, checked_document, read_info
from kbackup.archive.models import (
    ArchiveInfo,
    Capture,
    Deletions,
    DocumentRef,
    Groups,
    Loss,
    Manifest,
    Metadata,
    Schemas,
    TopicState,
    load,
)
from kbackup.archive.segments import table as tables
from kbackup.archive.segments.table import PLACE, SCHEMA, Segment, in_order, integers
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, RefusedError, UsageError
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, TopicPartition
from kbackup.util.system import in_threads

_KEPT_BYTES = 64 << 20
"""Documents of captures that stay in memory: restore points share them. A large cluster has some megabytes each."""
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")


@dataclass
class Archive:
    """An archive as of one catalog. Documents are read once and kept: they never change."""

    store: Store
    info: ArchiveInfo
    committed: Committed
    _manifests: dict[int, Manifest] = field(default_factory=dict)
    _captures: dict[int, Capture] = field(default_factory=dict)
    _documents: OrderedDict[DocumentRef, bytes] = field(default_factory=OrderedDict)
    _kept_bytes: int = 0
    _keeping: Lock = field(default_factory=Lock)
    _reading: defaultdict[DocumentRef, Lock] = field(default_factory=lambda: defaultdict(Lock))
    _reading_manifests: defaultdict[int, Lock] = field(default_factory=lambda: defaultdict(Lock))

    @property
    def state(self) -> State:
        return self.committed.state

    @property
    def restore_points(self) -> tuple[PointRow, ...]:
        """Every restore point, oldest first."""
        return self.state.restore_points

    @property
    def head(self) -> Manifest | None:
        """The newest restore point."""
        newest = self.state.newest
        return self.manifest(newest) if newest is not None else None

    def restore_point(self, name: str | int) -> Manifest:
        """Return a restore point by number, label, or 'latest'. `NoArchiveError` without any, `UsageError` for an
        unknown name."""
        row = self.find_point(name)
        return self.manifest(row)

    def find_point(self, name: str | int) -> PointRow:
        """Return the row of a restore point by number, label, or 'latest'; errors as for `restore_point`.

        A number is never taken for a label, though older versions could write a label that looks like one."""
        state = self.state
        text = str(name)
        if state.newest is None:
            raise NoArchiveError(f"archive {self.store.url} has no restore point", "run 'kbackup backup' first")
        if text == "latest":
            return state.newest
        number = 0
        if _NUMBER.fullmatch(text):
            number = int(text)
        elif is_label(text):
            number = state.labels.get(text, 0)
        row = state.point(number)
        if row is None:
            raise self._no_point(text, number)
        return row

    def _no_point(self, text: str, number: int) -> UsageError:
        """Return the error for a restore point that is not there. `number` is what `text` was read as, or 0."""
        state = self.state
        numbers = [point.number for point in self.restore_points]
        if number in state.past_manifests:
            before = [n for n in numbers if n < number]
            # The newest restore point never expires, so there is always a later one.
            after = [n for n in numbers if n > number]
            nearest = before[-1:] + after[:1]
            names = " and ".join(map(str, nearest))
            return UsageError(
                f"restore point {number} expired or was lost",
                f"select another one: the nearest is {names}; see 'kbackup list'",
            )
        if text in state.labels and not is_label(text):
            labelled = state.labels[text]
            return UsageError(
                f"there is no restore point {text}; the label {text!r} of restore point {labelled} looks like "
                "a number or a word of commands",
                f"select {labelled}, and give it another label: see 'kbackup label'",
            )
        hint = f"select another one: the newest is {numbers[-1]}; see 'kbackup list'"
        similar = difflib.get_close_matches(text, filter(is_label, state.labels), 1)
        if similar:
            hint = f"did you mean {similar[0]!r}?"
        return UsageError(f"there is no restore point {text}", hint)

    def manifest(self, point: PointRow | int) -> Manifest:
        """Return the manifest of a restore point of this archive."""
        row = self.state.point(point) if isinstance(point, int) else point
        assert row is not None  # noqa: S101 (callers name restore points of this archive)
        # Threads may ask for the same restore point: one of them reads it, the others wait for that.
        with self._reading_manifests[row.number]:
            manifest = self._manifests.get(row.number)
            if manifest is None:
                manifest = self._read_manifest(row)
                self._manifests[row.number] = manifest
        return manifest

    def _read_manifest(self, row: PointRow) -> Manifest:
        """Read a manifest, and note its captures. `CorruptError` if it is not the one that the catalog names."""
        key = row.documents[0]
        manifest = load(Manifest, self._document(key), key)
        if manifest.archive_id != self.info.id:
            raise CorruptError(
                f"file {key} belongs to archive {manifest.archive_id}, {layout.ARCHIVE} to {self.info.id}",
                "take the right one from a bucket version: this one was copied from elsewhere",
            )
        if manifest.checksum != row.manifest or manifest.number != row.number:
            raise CorruptError(f"file {key} is not the manifest that the catalog names", REPAIR)
        for capture in manifest.captures:
            self._captures[capture.number] = capture
        return manifest

    def manifests(self, points: Sequence[PointRow]) -> list[Manifest]:
        """Return the manifests of `points`, read side by side."""
        return in_threads(self.manifest, points)

    def _document(self, key: str) -> bytes:
        try:
            return self.store.get(key)
        except NotFoundError as error:
            raise CorruptError(f"file {key} is missing", REPAIR) from error

    def read_document(self, ref: DocumentRef) -> bytes:
        """Return the bytes that `ref` promises; `CorruptError` if they are missing or others."""
        # Restore points that are read side by side share documents: the second thread waits for the first.
        with self._reading[ref]:
            data = self._documents.get(ref)
            if data is None:
                stored = self._document(ref.key)
                data = checked_document(ref, stored)
                self._keep_document(ref, data)
            return data

    def _keep_document(self, ref: DocumentRef, data: bytes) -> None:
        """Keep a document in memory, in place of those that were read first."""
        # The lock of a document does not keep out threads that read other ones.
        with self._keeping:
            self._documents[ref] = data
            self._kept_bytes += len(data)
            while self._kept_bytes > _KEPT_BYTES and len(self._documents) > 1:
                _, oldest = self._documents.popitem(last=False)
                self._kept_bytes -= len(oldest)

    def capture(self, number: int) -> Capture:
        """Return the capture of a restore point: of one that is listed, or that a manifest read before names."""
        if number not in self._captures:
            self.manifest(number)
        return self._captures[number]

    def groups(self, point: Manifest | int) -> Groups:
        """Return the groups that were captured for a restore point, without kbackup's own, which older archives hold.

        `captured_at` is when they were captured for it, even if they equal those of an earlier restore point.
        """
        number = point if isinstance(point, int) else point.number
        capture = self.capture(number)
        ref = capture.groups
        document = load(Groups, self.read_document(ref), ref.key)
        groups = tuple(group for group in document.groups if not layout.is_own_group(group.group))
        captured_at = _last_captured(document.captured_at, capture)
        return replace(document, captured_at=captured_at, groups=groups)

    def metadata(self, point: Manifest | int) -> Metadata:
        """Return the metadata that was captured for a restore point (`capture`).

        `captured_at` is when it was captured for it, even if it equals the metadata of an earlier restore point.
        """
        number = point if isinstance(point, int) else point.number
        capture = self.capture(number)
        ref = capture.metadata
        document = load(Metadata, self.read_document(ref), ref.key)
        captured_at = _last_captured(document.captured_at, capture)
        return replace(document, captured_at=captured_at)

    def schemas(self, point: Manifest | int) -> Schemas | None:
        """Return what a restore point has of a schema registry, None if it has nothing."""
        manifest = self.manifest(point) if isinstance(point, int) else point
        ref = manifest.schemas
        if ref is None:
            return None
        return load(Schemas, self.read_document(ref), ref.key)

    def deletions(self, point: Manifest | int) -> Deletions | None:
        """Return the archived records that a restore of the restore point leaves out, since their keys were deleted at
        the source; None if there are none."""
        manifest = self.manifest(point) if isinstance(point, int) else point
        ref = manifest.deletions
        if ref is None:
            return None
        return load(Deletions, self.read_document(ref), ref.key)

    def losses(self, manifest: Manifest) -> list[Loss]:
        """Return every loss that concerns a restore point: its own, earlier ones, and damage that was found later."""
        return [loss for _, loss in self.losses_by_point(manifest)]

    def losses_by_point(self, manifest: Manifest) -> list[tuple[int, Loss]]:
        """Return every loss that concerns a restore point, with the restore point from which on the records are
        missing; in order of these."""
        own = manifest.incarnations()
        newest = {topic.name: topic.incarnation for topic in manifest.topics}
        losses: list[tuple[int, Loss]] = []
        for row in self.state.lost:
            loss = row.loss
            # A later incarnation shows that a loss is older. Damage concerns only restore points that have the segment.
            is_former = loss.kind != "damaged" and row.incarnation < newest.get(loss.topic, 0)
            if row.point <= manifest.number and (row.incarnation_key in own or is_former):
                losses.append((row.point, loss))
        return sorted(losses, key=_by_place)

    def table(
        self, last: int, columns: Sequence[str], after: int = 0, topics: Collection[str] | None = None
    ) -> pa.Table:
        """Return `columns` (of `catalog.tables.SEGMENTS`) of the segments that restore points from `after` (exclusive)
        to `last` added and that are there. With `topics`, which needs their column, return those of `topics` alone."""
        rows = self.state.segments
        if after:
            # Who follows an archive asks for the newest segments: chunks of older ones are not read.
            rows = rows.above("point", after)
        names = list(columns)
        read = names if "point" in names else [*names, "point"]
        table = rows.read(read, topics)
        points = integers(table, "point")
        is_within = (points > after) & (points <= last)
        return tables.rows_where(table, is_within).select(names)

    def ordered(self, after: int, last: int, topics: Collection[str] | None = None) -> tables.Ordered:
        """Return the segments that restore points from `after` (exclusive) to `last` added, of `topics` alone, by
        columns: no segment becomes a Python value. Keys are not checked."""
        table = self.table(last, [*SCHEMA.names, "point"], after, topics)
        return tables.ordered([table])

    def added(self, after: int, last: int) -> tables.Segments:
        """Return the segments that restore points from `after` (exclusive) to `last` added, in order."""
        return self.ordered(after, last).segments.checked()

    def partitions(
        self, manifest: Manifest, topics: Iterable[TopicState] | None = None
    ) -> dict[Incarnation, dict[int, tables.Segments]]:
        """Return the segments of a restore point by incarnation and partition, in order; for `topics` (default: all).
        No segment becomes a Python value."""
        selected = manifest.topics if topics is None else topics
        incarnations = {(topic.name, topic.incarnation) for topic in selected}
        names = {name for name, _ in incarnations}
        segments, _, places = self.ordered(0, manifest.number, names)
        partitions: dict[Incarnation, dict[int, tables.Segments]] = {}
        for (topic, incarnation, partition), part in places.items():
            key = (topic, incarnation)
            if key in incarnations:
                partitions.setdefault(key, {})[partition] = segments[part]
        return partitions

    def segments(self, manifest: Manifest, topics: Iterable[TopicState] | None = None) -> list[Segment]:
        """Return the segments of a restore point, for `topics` (default: all), in order of topic, partition, offset."""
        segments: list[Segment] = []
        for partitions in self.partitions(manifest, topics).values():
            for of_partition in partitions.values():
                segments += of_partition
        return segments

    def starts(self) -> tables.Starts:
        """Return the first offsets of all segments by partition: partition indexes are made of them."""
        table = self.state.segments.read(PLACE.names)
        return tables.starts_of([table])

    def keys(self) -> set[str]:
        """Return the keys of every segment's records object."""
        (keys,) = self.state.segments.columns("key")
        return set(keys)

    def reopen(self) -> None:
        """Move to the newest catalog. It costs one LIST if there is no later one."""
        later = open_later(self.store, self.committed)
        if later is not self.committed:
            self.move(later)

    def move(self, committed: Committed) -> None:
        """Move to another catalog; only the newest manifest stays in memory."""
        self.committed = committed
        newest = committed.state.newest
        kept: dict[int, Manifest] = {}
        if newest is not None and newest.number in self._manifests:
            kept[newest.number] = self._manifests[newest.number]
        # A follower moves on for months: manifests of wide clusters would fill the memory.
        self._manifests = kept


def _last_captured(written: str, capture: Capture) -> str:
    """Return when a document's content was captured last. One that equals the document of an earlier restore point is
    not written again: it has the time of that one, and the capture began later."""
    return max(written, capture.started_at)


def open_archive(store: Store) -> Archive:
    """Open an archive at its newest catalog. `NoArchiveError` if there is none, `CorruptError` for an unknown
    version, `WrongKeyError` if an encrypted archive has no key, or an archive without encryption has one."""
    info = read_info(store)
    return Archive(store, info, open_newest(store, info.id))


@contextmanager
def refuse_if_swept(archive: Archive, hint: str = "run the command again") -> Iterator[None]:
    """Raise `RefusedError` where objects of an opened archive are missing because a sweep has passed it since, as one
    without a grace time may: then nothing is damaged. An object that the newest catalog refers to is damaged whatever
    was swept."""
    try:
        yield
    except (CorruptError, NotFoundError) as error:
        newest = open_newest(archive.store, archive.info.id)
        if newest.state.swept <= archive.state.swept or _names_one_of(error.message, referred_keys(newest)):
            raise
        raise RefusedError(
            "an expiration beside this command deleted objects that it was about to read", hint
        ) from error


def _names_one_of(message: str, keys: Collection[str]) -> bool:
    """Return whether a message has one of `keys` as a word, alone or behind the address of a store."""
    for word in message.split():
        names = word.split("/")
        for at in range(len(names)):
            if "/".join(names[at:]) in keys:
                return True
    return False


# Check by the catalog that an archive still has the history that a follower (export, stream, mirror) has read.
#
# A follower remembers a restore point and its manifest's checksum.


def manifest_of(archive: Archive, number: int) -> str:
    """Return the checksum of the manifest of a restore point, also of an expired one; '' if there never was one."""
    point = archive.state.point(number)
    if point is None:
        return archive.state.past_manifests.get(number, "")
    return point.manifest


def check_same_point(archive: Archive, number: int, manifest: str, follower: str, hint: str) -> None:
    """Raise `RefusedError` if the archive's restore point `number` is not the one whose `manifest` the follower
    saved, as far as both are known. A repair may have made the manifest anew: the one before it counts as well."""
    known = {each for point, each in archive.state.lineage if point == number}
    if manifest and known and manifest not in known:
        raise RefusedError(
            f"{follower} has diverged from {archive.store.url}: restore point {number} is of another history", hint
        )


def missed(
    archive: Archive, after: int, selected: Callable[[TopicPartition], bool]
) -> list[tuple[TopicPartition, int]]:
    """Return the selected partitions of which records have expired that came after restore point `after`, and their
    log starts."""
    starts: dict[IncarnationPartition, int] = {}
    for (topic, incarnation, partition), log_start in archive.state.starts.items():
        if selected(TopicPartition(topic, partition)):
            starts[topic, incarnation, partition] = log_start.start
    # Ends cost a manifest, and segments for an expired restore point: most archives have no log start.
    if not starts:
        return []
    ends = _ends(archive, after)
    partitions: list[tuple[TopicPartition, int]] = []
    for (topic, incarnation, partition), start in starts.items():
        if start > ends.get((topic, incarnation, partition), 0):
            partitions.append((TopicPartition(topic, partition), start))
    return partitions


def new_offsets(archive: Archive, after: int, segments: Iterable[Segment]) -> dict[str, int]:
    """Return, by its key, the first offset of each merged segment that came after restore point `after`, if others of
    its records came before: who has followed the archive up to there has those. The restore point has expired."""
    if not after or not len(archive.state.rewritten):
        return {}
    merged = [segment for segment in segments if layout.rewrite_of(segment.key)]
    if not merged:
        return {}
    lasts: dict[IncarnationPartition, list[int]] = defaultdict(list)
    for row in archive.state.rewrites:
        if row.point <= after:
            lasts[row.incarnation_partition].append(row.last)
    firsts: dict[str, int] = {}
    for segment in merged:
        known = [last for last in lasts[segment.incarnation_partition] if segment.first <= last <= segment.last]
        if known:
            firsts[segment.key] = max(known) + 1
    return firsts


def added_offsets(archive: Archive, after: int, last: int) -> tuple[list[Segment], dict[str, tuple[int, int]]]:
    """Return the segments with records that restore points from `after` (exclusive) to `last` added, in order, and by
    its key the offsets (end exclusive) of each that was merged with others: both restore points may have expired."""
    candidates = list(archive.added(after, last))
    ends: dict[str, int] = {}
    if len(archive.state.rewritten):
        later = archive.added(last, archive.state.next_point)
        # What begins the records after `last` in a segment of a later restore point ends those up to it.
        ends = new_offsets(archive, last, later)
        candidates += [segment for segment in later if segment.key in ends]
    begins = new_offsets(archive, after, candidates)
    segments: list[Segment] = []
    offsets: dict[str, tuple[int, int]] = {}
    for segment in candidates:
        whole = (segment.first, segment.last + 1)
        part = (begins.get(segment.key, whole[0]), ends.get(segment.key, whole[1]))
        if part[0] >= part[1]:
            continue
        segments.append(segment)
        if part != whole:
            offsets[segment.key] = part
    segments.sort(key=in_order)
    return segments, offsets


def damaged(
    archive: Archive, after: int, last: int, selected: Callable[[TopicPartition], bool]
) -> list[tuple[TopicPartition, str]]:
    """Return the selected partitions with records of restore points from `after` (exclusive) to `last` that were found
    missing or damaged, each with a sentence."""
    found: list[tuple[TopicPartition, str]] = []
    for row in archive.state.damage:
        if row.loss.partition is None or not after < row.point <= last:
            continue
        tp = TopicPartition(row.loss.topic, row.loss.partition)
        if selected(tp):
            found.append((tp, row.loss.message))
    return found


def _by_place(entry: tuple[int, Loss]) -> tuple[int, str, int]:
    point, loss = entry
    return point, loss.topic, loss.partition or 0


def _ends(archive: Archive, number: int) -> dict[IncarnationPartition, int]:
    """Return the ends of partitions at restore point `number`; for an expired one, as far as other restore points and
    segments show."""
    ends: dict[IncarnationPartition, int] = {}
    points = [point for point in archive.restore_points if point.number <= number]
    if points:
        for place, partition in archive.manifest(points[-1]).partitions().items():
            ends[place] = partition.end
        if points[-1].number == number:
            return ends
    segments, _, places = archive.ordered(0, number)
    for place, part in places.items():
        _, last = tables.bounds(segments[part], "first", "last")
        ends[place] = max(ends.get(place, 0), 1 + (last or 0))
    # A merged segment is of a later restore point than some of those that it was made of.
    for row in archive.state.rewrites:
        if row.point <= number:
            place = row.incarnation_partition
            ends[place] = max(ends.get(place, 0), row.last + 1)
    return ends
