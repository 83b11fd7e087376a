"""Opening an archive and reading what its manifests promise; a folder written by the Java tool opens too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.encryption import check_encryption
from kbackup.archive.models import ArchiveInfo, Document, Groups, Manifest, Metadata, TopicState, load
from kbackup.archive.segments import Segment, Starts, decode_segments, decode_starts, starts_of
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, UsageError
from kbackup.store.base import Store

_THREADS = 16
D = TypeVar("D", bound=Document)


@dataclass(frozen=True)
class Run:
    """One number under backups/: which of its files are there."""

    seq: int
    files: frozenset[str]


@dataclass
class Archive:
    """An opened archive. Manifests and segment tables are read once and kept: they never change."""

    store: Store
    info: ArchiveInfo
    _manifests: dict[int, Manifest] = field(default_factory=dict)
    _segments: dict[int, list[Segment]] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[Run]:
        """Every number under backups/ in order, committed or not."""
        found: dict[int, set[str]] = {}
        for entry in self.store.list(layout.BACKUPS):
            parsed = layout.parse_backup_key(entry.key)
            if parsed:
                found.setdefault(parsed[0], set()).add(parsed[1])
        return [Run(seq, frozenset(files)) for seq, files in sorted(found.items())]

    @cached_property
    def restore_points(self) -> list[Manifest]:
        """Every committed manifest, oldest first; each names its predecessor or `CorruptError` says where the
        chain breaks."""
        numbers = [run.seq for run in self.runs if layout.MANIFEST in run.files]
        self._read_manifests(numbers)
        committed = [self._manifests[seq] for seq in numbers if self._manifests[seq].status == "committed"]
        before: int | None = None
        for manifest in committed:
            if manifest.parent != before:
                raise CorruptError(
                    f"restore point {manifest.seq} names {manifest.parent} as its predecessor, but that is {before}",
                    "a manifest is missing; restore it from a bucket version or a copy",
                )
            before = manifest.seq
        return committed

    @property
    def head(self) -> Manifest | None:
        """The newest restore point."""
        return self.restore_points[-1] if self.restore_points else None

    @property
    def abandoned(self) -> list[Manifest]:
        """The seals over runs that never committed, oldest first."""
        numbers = [run.seq for run in self.runs if layout.MANIFEST in run.files]
        self._read_manifests(numbers)
        return [self._manifests[seq] for seq in numbers if self._manifests[seq].status == "abandoned"]

    def restore_point(self, wanted: str | int) -> Manifest:
        """By number, or 'latest'; `NoArchiveError` where there is none at all, `UsageError` for an unknown
        number."""
        if not self.restore_points:
            raise NoArchiveError(
                f"archive {self.store.url} has no restore point", "run 'kbackup backup' first"
            )
        if str(wanted) == "latest":
            return self.restore_points[-1]
        for manifest in self.restore_points:
            if str(manifest.seq) == str(wanted):
                return manifest
        last = self.restore_points[-1].seq
        raise UsageError(f"there is no restore point {wanted}", f"the newest is {last}; see 'kbackup list'")

    def _read_manifests(self, numbers: Iterable[int]) -> None:
        wanted = [seq for seq in numbers if seq not in self._manifests]
        with ThreadPoolExecutor(_THREADS) as pool:
            for manifest in pool.map(self._read_manifest, wanted):
                self._manifests[manifest.seq] = manifest

    def _read_manifest(self, seq: int) -> Manifest:
        key = layout.backup_key(seq, layout.MANIFEST)
        manifest = load(Manifest, self.store.get(key), key)
        if manifest.archive_id != self.info.id:
            raise CorruptError(
                f"file {key} belongs to archive {manifest.archive_id}", "it was copied from elsewhere"
            )
        if manifest.seq != seq:
            raise CorruptError(
                f"file {key} says restore point {manifest.seq}", "it was copied from elsewhere"
            )
        return manifest

    def read_part(self, manifest: Manifest, name: str) -> bytes:
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

    def groups(self, manifest: Manifest) -> Groups:
        return load(
            Groups, self.read_part(manifest, layout.GROUPS), layout.backup_key(manifest.seq, layout.GROUPS)
        )

    def metadata(self, manifest: Manifest) -> Metadata:
        key = layout.backup_key(manifest.seq, layout.METADATA)
        return load(Metadata, self.read_part(manifest, layout.METADATA), key)

    def added(self, manifest: Manifest) -> list[Segment]:
        """The segments that one run added."""
        if manifest.seq not in self._segments:
            key = layout.backup_key(manifest.seq, layout.SEGMENTS)
            self._segments[manifest.seq] = decode_segments(self.read_part(manifest, layout.SEGMENTS), key)
        return self._segments[manifest.seq]

    def segments(self, manifest: Manifest, topics: Sequence[TopicState] | None = None) -> list[Segment]:
        """All segments that a restore point stands on, for `topics` (default: all of it), in order of topic,
        partition, offset."""
        chain = [m for m in self.restore_points if m.seq <= manifest.seq]
        wanted = {(t.name, t.incarnation) for t in (manifest.topics if topics is None else topics)}
        with ThreadPoolExecutor(_THREADS) as pool:
            tables = list(pool.map(self.added, chain))
        found = [s for table in tables for s in table if (s.topic, s.incarnation) in wanted]
        return sorted(found, key=lambda s: (s.topic, s.incarnation, s.partition, s.first))

    def starts(self, manifest: Manifest) -> Starts:
        """Where the segments start that a restore point stands on: all that partition indexes need."""

        def table(point: Manifest) -> pa.Table:
            key = layout.backup_key(point.seq, layout.SEGMENTS)
            return decode_starts(self.read_part(point, layout.SEGMENTS), key)

        with ThreadPoolExecutor(_THREADS) as pool:
            return starts_of(list(pool.map(table, (m for m in self.restore_points if m.seq <= manifest.seq))))

    def forget(self) -> None:
        """Look again at what is there (after a commit, or after taking the lease)."""
        for name in ("runs", "restore_points"):
            self.__dict__.pop(name, None)


def open_archive(store: Store) -> Archive:
    """`NoArchiveError` where there is none; `CorruptError` for one in a version not known here; `WrongKeyError` where
    it is encrypted and the store is not, or the other way round."""
    try:
        data = store.get(layout.ARCHIVE)
    except NotFoundError as error:
        raise NoArchiveError(
            f"there is no archive at {store.url}", "check the address, or make one with 'kbackup backup'"
        ) from error
    info = load(ArchiveInfo, data, layout.ARCHIVE)
    check_encryption(store, info)
    return Archive(store, info)
