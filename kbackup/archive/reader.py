"""Opening an archive and reading what its manifests promise; a folder written by the Java tool opens too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter, itemgetter

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.checkpoints import Covered, chained, folded, given_up, newest
from kbackup.archive.encryption import check_encryption
from kbackup.archive.expired import gone_with, newest_expired, segments_left
from kbackup.archive.models import (
    ArchiveInfo,
    Expired,
    FoldedPart,
    Gone,
    Groups,
    Loss,
    Manifest,
    Metadata,
    Point,
    TopicState,
    load,
)
from kbackup.archive.segments import (
    FOLDED,
    PLACE,
    SCHEMA,
    Segment,
    Starts,
    decode_table,
    from_batches,
    in_order,
    of_topics,
    rows_where,
    starts_of,
    with_seq,
)
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, UsageError
from kbackup.store.base import Store

_THREADS = 16
_FILES = {
    "committed": (
        layout.INTENT,
        layout.SEGMENTS,
        layout.GROUPS,
        layout.METADATA,
        layout.MANIFEST,
        layout.REFRESHED,
    ),
    "abandoned": (layout.INTENT, layout.MANIFEST),
}
ANOTHER_COPY = "take it from a bucket version or another copy of the archive"
_REPAIR = f"{ANOTHER_COPY}; if there is none, see 'kbackup repair'"
_WITHOUT = f"remove {layout.CHECKPOINTS} to go on without checkpoints"
_LOST = f"a restore point is lost: {_REPAIR}"


@dataclass(frozen=True)
class Run:
    """One number under backups/: which of its files are there."""

    seq: int
    files: frozenset[str]


@dataclass
class Archive:
    """An opened archive. Manifests and segment tables are read once and kept: they never change.

    A checkpoint stands for the restore points that it covers: they come as `Point`s, without their topics.
    """

    store: Store
    info: ArchiveInfo
    _manifests: dict[int, Manifest] = field(default_factory=dict)
    _segments: dict[int, list[Segment]] = field(default_factory=dict)

    @cached_property
    def expired(self) -> Expired | None:
        """What the archive does not have any more."""
        return newest_expired(self.store, self.info.id)

    @property
    def gone(self) -> tuple[Gone, ...]:
        """The restore points that were expired, in order."""
        return self.expired.gone if self.expired is not None else ()

    @cached_property
    def covered(self) -> Covered | None:
        """The newest checkpoint, with the restore points that it stands for."""
        return newest(self.store, self.info.id, self.gone)

    @cached_property
    def runs(self) -> list[Run]:
        """Every number under backups/ in order, committed or not, but for those that are gone. Those long past come
        from the checkpoint: their files are the ones that they must have."""
        since = self.covered.since if self.covered is not None else 0
        past = self.covered.points if self.covered is not None else ()
        found: dict[int, set[str]] = {p.seq: set(_FILES[p.status]) for p in past if p.seq <= since}
        # '0' is the character after '/': the listing begins behind the whole folder
        for entry in self.store.list(
            layout.BACKUPS, layout.backup_key(since, "")[:-1] + "0" if since else ""
        ):
            parsed = layout.parse_backup_key(entry.key)
            if parsed:
                found.setdefault(parsed[0], set()).add(parsed[1])
        return [
            Run(seq, frozenset(files))
            for seq, files in sorted(found.items())
            if gone_with(self.gone, seq) is None
        ]

    @cached_property
    def closed(self) -> list[Point]:
        """The manifests of every number that has one, seals too, in order, but for those that a repair gave up."""
        found = self._closed()
        if self.covered is not None and not {p.seq for p in self.covered.points} <= {p.seq for p in found}:
            # it is of before a repair, and has what that gave up
            self.covered = None
            self.__dict__.pop("runs")
            found = self._closed()
        return found

    def _closed(self) -> list[Point]:
        past = {point.seq: point for point in self.covered.points} if self.covered is not None else {}
        numbers = [run.seq for run in self.runs if layout.MANIFEST in run.files]
        found: dict[int, Point | CorruptError] = {
            run.seq: _missing(run.seq, "though it was committed", _REPAIR)
            for run in self.runs
            if layout.REFRESHED in run.files and layout.MANIFEST not in run.files
        }
        head = self.covered.seq if self.covered is not None else 0
        if head and head not in numbers and gone_with(self.gone, head) is None:
            found[head] = _missing(head, "", _LOST)
        found |= self._tried(seq for seq in numbers if seq not in past)
        found |= {seq: past[seq] for seq in numbers if seq in past}
        gone = given_up(entry for entry in found.values() if isinstance(entry, Point))
        points: list[Point] = []
        for seq, entry in sorted(found.items()):
            if any(seq in numbers for numbers in gone):
                continue
            if isinstance(entry, CorruptError):
                raise entry
            points.append(entry)
        return points

    def _tried(self, numbers: Iterable[int]) -> dict[int, Point | CorruptError]:
        """The manifests of `numbers`, or what is wrong with them."""

        def one(seq: int) -> tuple[int, Point | CorruptError]:
            try:
                return seq, self._read_manifest(seq)
            except CorruptError as error:
                return seq, error

        found: dict[int, Point | CorruptError] = {}
        wanted = list(numbers)
        found |= {seq: self._manifests[seq] for seq in wanted if seq in self._manifests}
        left = [seq for seq in wanted if seq not in found]
        if left:
            with ThreadPoolExecutor(_THREADS) as pool:
                found |= dict(pool.map(one, left))
        self._manifests |= {seq: entry for seq, entry in found.items() if isinstance(entry, Manifest)}
        return found

    def is_given_up(self, seq: int) -> bool:
        """Whether a repair gave that number up: nothing of it counts any more."""
        return any(seq in numbers for numbers in given_up(self.restore_points))

    @cached_property
    def restore_points(self) -> list[Point]:
        """Every committed manifest, oldest first, with or without its topics (`manifest` has them); each names its
        predecessor or `CorruptError` says where the chain breaks."""
        return chained(self.closed, gone=self.gone)

    @property
    def captures(self) -> dict[int, Point]:
        """By number the restore points whose groups and metadata are there: all, and those gone ones that others still
        name."""
        carried = self.expired.carried if self.expired is not None else ()
        return {p.seq: p for p in sorted((*carried, *self.restore_points), key=attrgetter("seq"))}

    def losses(self, upto: int) -> list[Loss]:
        """All that restore points up to that one found lost, those that are gone too."""
        found = [(link.last, link.losses) for link in self.gone]
        found += [(point.seq, point.losses) for point in self.restore_points]
        return [loss for seq, losses in sorted(found, key=itemgetter(0)) if seq <= upto for loss in losses]

    @property
    def head(self) -> Manifest | None:
        """The newest restore point."""
        return self.manifest(self.restore_points[-1]) if self.restore_points else None

    @property
    def abandoned(self) -> list[Point]:
        """The seals over runs that never committed, oldest first."""
        return [point for point in self.closed if point.status == "abandoned"]

    def restore_point(self, wanted: str | int) -> Manifest:
        """By number, or 'latest'; `NoArchiveError` where there is none at all, `UsageError` for an unknown
        number."""
        if not self.restore_points:
            raise NoArchiveError(
                f"archive {self.store.url} has no restore point", "run 'kbackup backup' first"
            )
        if str(wanted) == "latest":
            return self.manifest(self.restore_points[-1])
        for point in self.restore_points:
            if str(point.seq) == str(wanted):
                return self.manifest(point)
        self._refuse_gone(str(wanted))
        last = self.restore_points[-1].seq
        raise UsageError(f"there is no restore point {wanted}", f"the newest is {last}; see 'kbackup list'")

    def _refuse_gone(self, wanted: str) -> None:
        seq = int(wanted) if wanted.isdecimal() else 0
        link = gone_with(self.gone, seq)
        if link is None:
            return
        kept = [point.seq for point in self.restore_points]
        near = [
            str(max(filter(seq.__gt__, kept), default="")),
            str(min(filter(seq.__lt__, kept), default="")),
        ]
        raise UsageError(
            f"restore point {seq} is not there any more: it was expired on {link.expired_at}",
            f"nearest to it is {' and '.join(filter(None, near))}; see 'kbackup list'",
        )

    def manifest(self, point: Point) -> Manifest:
        """All that a restore point says. `CorruptError` where its manifest is another one than the checkpoint was
        made of."""
        self._read_manifests([point.seq])
        found = self._manifests[point.seq]
        if found.checksum != point.checksum:
            key = layout.backup_key(point.seq, layout.MANIFEST)
            raise CorruptError(
                f"file {key} is not the one that checkpoint {self.covered.seq if self.covered else '?'} was made of",
                f"one of them was changed; where 'kbackup verify' trusts the manifest, {_WITHOUT}",
            )
        return found

    def _read_manifests(self, numbers: Iterable[int]) -> None:
        wanted = [seq for seq in numbers if seq not in self._manifests]
        if not wanted:
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for manifest in pool.map(self._read_manifest, wanted):
                self._manifests[manifest.seq] = manifest

    def _read_manifest(self, seq: int) -> Manifest:
        key = layout.backup_key(seq, layout.MANIFEST)
        try:
            data = self.store.get(key)
        except NotFoundError as error:
            raise CorruptError(f"file {key} is missing", _LOST) from error
        manifest = load(Manifest, data, key)
        if manifest.archive_id != self.info.id:
            raise CorruptError(
                f"file {key} belongs to archive {manifest.archive_id}, {layout.ARCHIVE} to {self.info.id}",
                "one of them was copied from elsewhere",
            )
        if manifest.seq != seq:
            raise CorruptError(
                f"file {key} says restore point {manifest.seq}", "it was copied from elsewhere"
            )
        return manifest

    def read_part(self, manifest: Point, name: str) -> bytes:
        """A file beside a manifest, equal to what the manifest says of it."""
        key = layout.backup_key(manifest.seq, name)
        try:
            data = self.store.get(key)
        except NotFoundError as error:
            raise CorruptError(
                f"file {key} is missing", "restore point is not whole; run 'kbackup verify'"
            ) from error
        promised = manifest.files[name]
        if len(data) != promised.size or hashlib.sha256(data).hexdigest() != promised.sha256:
            raise CorruptError(
                f"file {key} is not what its manifest says", "it was changed after it was written"
            )
        return data

    def groups(self, manifest: Point) -> Groups:
        return load(
            Groups, self.read_part(manifest, layout.GROUPS), layout.backup_key(manifest.seq, layout.GROUPS)
        )

    def metadata(self, manifest: Point) -> Metadata:
        key = layout.backup_key(manifest.seq, layout.METADATA)
        return load(Metadata, self.read_part(manifest, layout.METADATA), key)

    def added(self, manifest: Point) -> list[Segment]:
        """The segments that one run added."""
        if manifest.seq not in self._segments:
            self._segments[manifest.seq] = from_batches(self.table(manifest).to_batches())
        return self._segments[manifest.seq]

    def table(self, manifest: Point, columns: Sequence[str] | None = None) -> pa.Table:
        """The same as a table of schema `SCHEMA`, or some columns of it."""
        key = layout.backup_key(manifest.seq, layout.SEGMENTS)
        rows = manifest.totals.segments if manifest.totals is not None else None
        return decode_table(self.read_part(manifest, layout.SEGMENTS), key, SCHEMA, columns, rows)

    def segments(self, manifest: Manifest, topics: Sequence[TopicState] | None = None) -> list[Segment]:
        """All segments that a restore point stands on, for `topics` (default: all of it), in order of topic,
        partition, offset."""
        wanted = {(t.name, t.incarnation) for t in (manifest.topics if topics is None else topics)}
        names = {name for name, _ in wanted}
        found: list[Segment] = []
        for table in self.tables(manifest.seq, SCHEMA.names):
            some = from_batches(of_topics(table, names).to_batches())
            found += [in_place(s) for s in some if (s.topic, s.incarnation) in wanted]
        return sorted(found, key=in_order)

    def starts(self, manifest: Point) -> Starts:
        """Where the segments start that a restore point stands on: all that partition indexes need."""
        return starts_of(list(self.tables(manifest.seq, PLACE.names)))

    def keys(self) -> set[str]:
        """The records object of every segment of every restore point."""
        last = self.restore_points[-1].seq if self.restore_points else 0
        return {str(key) for table in self.tables(last, ["key"]) for key in table.column("key").to_pylist()}

    def tables(self, last: int, columns: list[str], after: int = 0) -> Iterator[pa.Table]:
        """`columns` (of schema `FOLDED`) of the segments that runs from `after` (exclusive) to `last` added, as far as
        they are left: tables in no order."""
        upto = self.expired.upto if self.expired is not None else 0

        def between(table: pa.Table, low: int) -> pa.Table:
            seqs = table.column("seq").to_numpy()
            return rows_where(table, (seqs > max(low, after)) & (seqs <= last)).select(columns)

        def of_part(part: FoldedPart) -> pa.Table:
            try:
                table = folded(self.store, part, [*columns, *({"seq"} - {*columns})])
            except (CorruptError, NotFoundError):
                table = self.unfolded(self.points_of(part))  # the runs' own tables say the same
            return between(table, upto)

        def of_run(point: Point) -> pa.Table:
            own = self.table(point, [name for name in columns if name != "seq"])
            return with_seq(own, point.seq).select(columns)

        known = self.restore_points  # finds out whether the checkpoint counts
        parts = self.covered.checkpoint.parts if self.covered is not None else ()
        covered = max(parts[-1].last if parts else 0, upto, after)
        if self.expired is not None and after < upto:
            yield between(segments_left(self.store, self.expired, [*columns, *({"seq"} - {*columns})]), 0)
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(of_part, [p for p in parts if p.first <= last and p.last > max(upto, after)])
            yield from pool.map(of_run, [p for p in known if covered < p.seq <= last])

    def points_of(self, part: FoldedPart) -> list[Point]:
        return [p for p in self.restore_points if part.first <= p.seq <= part.last]

    def unfolded(self, points: Iterable[Point]) -> pa.Table:
        """The runs' own tables as one of schema `FOLDED`, with what of them is gone."""
        committed = [point for point in points if point.status == "committed"]
        with ThreadPoolExecutor(_THREADS) as pool:
            tables = list(pool.map(lambda p: with_seq(self.table(p), p.seq), committed))
        return pa.concat_tables([FOLDED.empty_table(), *tables])

    def reopen(self) -> None:
        """Look again at what is there and what is gone, as whoever opens it now."""
        for name in ("expired", "covered"):
            self.__dict__.pop(name, None)
        self.forget()

    def forget(self) -> None:
        """Look again at what is there (after a commit, or after taking the lease); a checkpoint stays true, and what it
        stands for is not kept: whoever commits all the time would keep ever more."""
        for name in ("runs", "closed", "restore_points"):
            self.__dict__.pop(name, None)
        covered: Covered | None = self.__dict__.get("covered")
        if covered is None:
            self.__dict__.pop("covered", None)
            return
        for kept in (self._manifests, self._segments):
            for seq in [seq for seq in kept if seq < covered.seq]:
                del kept[seq]


def _missing(seq: int, why: str, hint: str) -> CorruptError:
    key = layout.backup_key(seq, layout.MANIFEST)
    return CorruptError(f"file {key} is missing{', ' if why else ''}{why}", hint)


def in_place(segment: Segment) -> Segment:
    """`CorruptError` for one that is not where its name says: it could be anything else's."""
    folder = layout.topic_dir(segment.topic, segment.incarnation)
    due = layout.records_key(folder, segment.partition, segment.first, layout.compression_of(segment.key))
    if segment.key != due:
        raise CorruptError(
            f"file {segment.key} is named by a restore point where {due} belongs",
            "is the archive damaged? run 'kbackup verify'",
        )
    return segment


def open_archive(store: Store) -> Archive:
    """`NoArchiveError` where there is none; `CorruptError` for one in a version not known here; `WrongKeyError` where
    it is encrypted and the store is not, or the other way round."""
    try:
        data = store.get(layout.ARCHIVE)
    except NotFoundError as error:
        if next(store.list(layout.BACKUPS), None) is not None:
            raise CorruptError(
                f"file {layout.ARCHIVE} is missing at {store.url}, though there are restore points",
                ANOTHER_COPY,
            ) from error
        raise NoArchiveError(
            f"there is no archive at {store.url}", "check the address, or make one with 'kbackup backup'"
        ) from error
    info = load(ArchiveInfo, data, layout.ARCHIVE)
    check_encryption(store, info)
    return Archive(store, info)
