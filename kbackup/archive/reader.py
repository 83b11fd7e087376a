"""Open an archive and read what its catalog promises. An opened archive stays at the catalog it was opened at."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed, open_later, open_newest
from kbackup.archive.catalog.labels import is_label
from kbackup.archive.catalog.state import PointRow, State
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
from kbackup.archive.segments.table import PLACE, SCHEMA, Segment, integers
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, RefusedError, UsageError
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, TopicPartition
from kbackup.util.system import in_threads

_KEPT = 4  # documents of captures: restore points share them
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")


@dataclass
class Archive:
    """An archive as of one catalog. Documents are read once and kept: they never change."""

    store: Store
    info: ArchiveInfo
    committed: Committed
    _manifests: dict[int, Manifest] = field(default_factory=dict)
    _captures: dict[int, Capture] = field(default_factory=dict)
    _documents: dict[DocumentRef, bytes] = field(default_factory=dict)
    _reading: defaultdict[DocumentRef, Lock] = field(default_factory=lambda: defaultdict(Lock))

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
        return self.manifest(self.state.newest) if self.state.newest is not None else None

    def restore_point(self, name: str | int) -> Manifest:
        """Return a restore point by number, label, or 'latest'. `NoArchiveError` without any, `UsageError` for an
        unknown name."""
        return self.manifest(self.find_point(name))

    def find_point(self, name: str | int) -> PointRow:
        """Return the row of a restore point by number, label, or 'latest'; errors as for `restore_point`.

        A number is never taken for a label, though older versions could write a label that looks like one."""
        state, text = self.state, str(name)
        if state.newest is None:
            raise NoArchiveError(f"archive {self.store.url} has no restore point", "run 'kbackup backup' first")
        if text == "latest":
            return state.newest
        number = 0
        if _NUMBER.fullmatch(text):
            number = int(text)
        elif is_label(text):
            number = state.labels.get(text, 0)
        found = state.point(number)
        if found is not None:
            return found
        numbers = [point.number for point in self.restore_points]
        if number in state.past_manifests:
            near = [max((n for n in numbers if n < number), default=0), min(n for n in numbers if n > number)]
            names = " and ".join(str(n) for n in near if n)
            raise UsageError(
                f"restore point {number} was let go", f"select another one: the nearest is {names}; see 'kbackup list'"
            )
        if text in state.labels and not is_label(text):
            raise UsageError(
                f"there is no restore point {text}; the label {text!r} of restore point {state.labels[text]} can't be "
                "told from a number or a word of commands",
                f"select {state.labels[text]}, and give it another label: see 'kbackup label'",
            )
        close = difflib.get_close_matches(text, filter(is_label, state.labels), 1)
        other = f"select another one: the newest is {numbers[-1]}; see 'kbackup list'"
        raise UsageError(f"there is no restore point {text}", f"did you mean {close[0]!r}?" if close else other)

    def manifest(self, point: PointRow | int) -> Manifest:
        """Return the manifest of a restore point of this archive."""
        row = self.state.point(point) if isinstance(point, int) else point
        assert row is not None  # noqa: S101 (callers name restore points of this archive)
        if row.number not in self._manifests:
            key = row.documents[0]
            manifest = load(Manifest, self._document(key), key)
            if manifest.archive_id != self.info.id:
                raise CorruptError(
                    f"file {key} belongs to archive {manifest.archive_id}, {layout.ARCHIVE} to {self.info.id}",
                    "take the right one from a bucket version: this one was copied from elsewhere",
                )
            if manifest.checksum != row.manifest or manifest.number != row.number:
                raise CorruptError(f"file {key} is not the manifest that the catalog names", REPAIR)
            self._manifests[row.number] = manifest
            self._captures |= {capture.number: capture for capture in manifest.captures}
        return self._manifests[row.number]

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
        with self._reading[ref]:  # restore points that are read side by side share documents
            if ref in self._documents:
                return self._documents[ref]
            data = checked_document(ref, self._document(ref.key))
            if len(self._documents) >= _KEPT:
                self._documents.clear()
            self._documents[ref] = data
            return data

    def capture(self, number: int) -> Capture:
        """Return the capture of a restore point: of one that is listed, or that a manifest read before names."""
        if number not in self._captures:
            self.manifest(number)
        return self._captures[number]

    def groups(self, point: Manifest | int) -> Groups:
        """Return the groups that were captured for a restore point, without kbackup's own, which older
        archives hold. `captured_at` is when they were, also where they equal those of an earlier restore point."""
        capture = self.capture(point if isinstance(point, int) else point.number)
        groups = load(Groups, self.read_document(capture.groups), capture.groups.key)
        return replace(
            groups,
            captured_at=_last_captured(groups.captured_at, capture),
            groups=tuple(g for g in groups.groups if not layout.is_own_group(g.group)),
        )

    def metadata(self, point: Manifest | int) -> Metadata:
        """Return the metadata that was captured for a restore point (`capture`). `captured_at` is when it was, also
        where it equals that of an earlier restore point."""
        capture = self.capture(point if isinstance(point, int) else point.number)
        metadata = load(Metadata, self.read_document(capture.metadata), capture.metadata.key)
        return replace(metadata, captured_at=_last_captured(metadata.captured_at, capture))

    def schemas(self, point: Manifest | int) -> Schemas | None:
        """Return what a restore point has of a schema registry, None if it has nothing."""
        ref = (self.manifest(point) if isinstance(point, int) else point).schemas
        return load(Schemas, self.read_document(ref), ref.key) if ref is not None else None

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
        newest = {t.name: t.incarnation for t in manifest.topics}
        losses: list[tuple[int, Loss]] = []
        for row in self.state.lost:
            loss = row.loss
            # a later incarnation shows that a loss is older; damage concerns those alone that have the segment
            is_former = loss.kind != "damaged" and row.incarnation < newest.get(loss.topic, 0)
            if row.point <= manifest.number and (row.incarnation_key in own or is_former):
                losses.append((row.point, loss))
        return sorted(losses, key=_by_place)

    def table(
        self, last: int, columns: Sequence[str], after: int = 0, topics: Collection[str] | None = None
    ) -> pa.Table:
        """`columns` (of `catalog.tables.SEGMENTS`) of the segments that restore points from `after` (exclusive) to
        `last` added and that are there; of `topics` alone, where `columns` has these."""
        rows = self.state.segments.above("point", after) if after else self.state.segments
        table = rows.read([*columns, *({"point"} - {*columns})], topics)
        points = integers(table, "point")
        return tables.rows_where(table, (points > after) & (points <= last)).select(list(columns))

    def ordered(self, after: int, last: int, topics: Collection[str] | None = None) -> tables.Ordered:
        """Return the segments that restore points from `after` (exclusive) to `last` added, of `topics` alone, by
        columns: no segment becomes a Python value. Keys are not checked."""
        return tables.ordered([self.table(last, [*SCHEMA.names, "point"], after, topics)])

    def added(self, after: int, last: int) -> tables.Segments:
        """Return the segments that restore points from `after` (exclusive) to `last` added, in order."""
        return self.ordered(after, last).segments.checked()

    def partitions(
        self, manifest: Manifest, topics: Iterable[TopicState] | None = None
    ) -> dict[Incarnation, dict[int, tables.Segments]]:
        """Return the segments of a restore point by incarnation and partition, in order; for `topics` (default: all).
        No segment becomes a Python value."""
        wanted = {(t.name, t.incarnation) for t in (manifest.topics if topics is None else topics)}
        found: dict[Incarnation, dict[int, tables.Segments]] = {}
        segments, _, places = self.ordered(0, manifest.number, {name for name, _ in wanted})
        for (topic, incarnation, partition), part in places.items():
            if (topic, incarnation) in wanted:
                found.setdefault((topic, incarnation), {})[partition] = segments[part]
        return found

    def segments(self, manifest: Manifest, topics: Iterable[TopicState] | None = None) -> list[Segment]:
        """Return the segments of a restore point, for `topics` (default: all), in order of topic, partition, offset."""
        return [s for of in self.partitions(manifest, topics).values() for each in of.values() for s in each]

    def starts(self) -> tables.Starts:
        """Return the first offsets of all segments by partition: partition indexes are made of them."""
        return tables.starts_of([self.state.segments.read(PLACE.names)])

    def keys(self) -> set[str]:
        """Return the keys of every segment's records object."""
        return set(self.state.segments.columns("key")[0])

    def reopen(self) -> None:
        """Move to the newest catalog. It costs one LIST where there is no later one."""
        later = open_later(self.store, self.committed)
        if later is not self.committed:
            self.move(later)

    def move(self, committed: Committed) -> None:
        """Move to another catalog; only the newest manifest stays in memory."""
        self.committed = committed
        newest = committed.state.newest
        self._manifests = {n: m for n, m in self._manifests.items() if newest is not None and n == newest.number}


def _last_captured(written: str, capture: Capture) -> str:
    """Return when a document's content was captured last. One that equals the document of an earlier restore point is
    not written again: it has the time of that one, and the capture began later."""
    return max(written, capture.started_at)


def open_archive(store: Store) -> Archive:
    """Open an archive at its newest catalog. `NoArchiveError` if there is none, `CorruptError` for an unknown
    version, `WrongKeyError` if an encrypted archive has no key, or an archive without encryption has one."""
    info = read_info(store)
    return Archive(store, info, open_newest(store, info.id))


# Check by the catalog that an archive still has the history that a follower (export, stream, mirror) has read.
#
# A follower remembers a restore point and its manifest's checksum.


def manifest_of(archive: Archive, number: int) -> str:
    """Return the checksum of that restore point's manifest, also of one that was let go; '' if there
    never was one."""
    point = archive.state.point(number)
    return point.manifest if point is not None else archive.state.past_manifests.get(number, "")


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
    """Return the selected partitions of which records that came after restore point `after` were let go, and their log
    starts."""
    starts = [
        (key, TopicPartition(key[0], key[2]), start.start)
        for key, start in archive.state.starts.items()
        if selected(TopicPartition(key[0], key[2]))
    ]
    ends = _ends(archive, after) if starts else {}
    return [(tp, start) for key, tp, start in starts if start > ends.get(key, 0)]


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
        ends = {place: p.end for place, p in archive.manifest(points[-1]).partitions().items()}
    if not points or points[-1].number < number:
        segments, _, places = archive.ordered(0, number)
        for place, part in places.items():
            ends[place] = max(ends.get(place, 0), 1 + (tables.bounds(segments[part], "first", "last")[1] or 0))
    return ends
