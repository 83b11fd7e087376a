"""The destination of an export: its tables, and kbackup's files under `_kbackup/`, which readers of tables ignore.

- `export.json` says what the destination holds: another archive, or another form, is refused.
- `lock.json` is the lease of the one exporter. Delta's own log on S3 is safe with one writer alone.
- `seen.json` says which restore point was the archive's newest one: an archive that is behind, or has another one of
  that number, is refused.
- `reached.json` says up to which restore point all tables are; a hint that saves looking into each.
- `points/<n>.json`: the files that a restore point added to an export of Parquet files, written when all are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import Document, Member, dump, load
from kbackup.archive.reader import Archive, check_same_point
from kbackup.archive.transforms import TransformRef, is_same_transform, named_transform
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, RefusedError, UsageError
from kbackup.store import Store, StoreOptions, open_store
from kbackup.store.base import check_apart
from kbackup.store.registry import DIRECTORY, KINDS, directory_of, kind_of, options_for

FOLDER = "_kbackup"
_EXPORT = "export.json"
_REACHED = "reached.json"
_SEEN = "seen.json"

ExportKind = Literal["delta tables", "delta table", "parquet"]


class ExportInfo(Document, frozen=True, kw_only=True):
    """_kbackup/export.json. `topics` and `exclude_topics` hold for a destination whose topics are written together.
    `transform` is the function that all of its records went through, missing without one."""

    format: Literal["kbackup-export"] = "kbackup-export"
    archive_id: str
    kind: ExportKind
    topics: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()
    transform: TransformRef | msgspec.UnsetType = msgspec.UNSET


class Reached(Document, frozen=True, kw_only=True):
    """_kbackup/reached.json: every table of the topics so selected is at `restore_point`, or has nothing to get."""

    format: Literal["kbackup-export-reached"] = "kbackup-export-reached"
    archive_id: str
    restore_point: int
    topics: tuple[str, ...]
    exclude_topics: tuple[str, ...]


class Seen(Document, frozen=True, kw_only=True):
    """_kbackup/seen.json: the newest restore point that the archive ever had when an export began. The file is written
    before any record of that restore point is exported. `manifest` is the checksum of its manifest: in a copy of the
    archive that was written to, another restore point may have the same number."""

    format: Literal["kbackup-export-seen"] = "kbackup-export-seen"
    archive_id: str
    restore_point: int
    manifest: str


class ExportedFile(Member, frozen=True, kw_only=True):
    path: str
    records: int
    bytes: int


class ExportedPoint(Document, frozen=True, kw_only=True):
    """_kbackup/points/<n>.json: a restore point whose Parquet files are all there."""

    format: Literal["kbackup-export-point"] = "kbackup-export-point"
    archive_id: str
    restore_point: int
    committed_at: str
    files: tuple[ExportedFile, ...]


@dataclass(frozen=True)
class Destination:
    """The address of exported tables. `url` is `s3://bucket/prefix` or a directory. kbackup encrypts nothing there."""

    url: str
    stores: StoreOptions

    @classmethod
    def at(cls, url: str, stores: StoreOptions) -> Destination:
        plain = url.rstrip("/") or url
        # Users also give the address by Spark's own scheme, such as s3a://.
        scheme, separator, rest = plain.partition("://")
        for known in KINDS.values():
            if separator and known.tables is not None and known.tables.scheme == scheme:
                plain = f"{known.scheme}://{rest}"
        kind = kind_of(plain)
        if kind is DIRECTORY and plain.startswith("~"):
            plain = str(directory_of(plain))  # Spark expands none
        # an archive may be locked for years, and its segments in a cold class: tables are worked with
        options = kind.worked_with(options_for(kind, stores))
        return cls(plain, {kind.section: options})

    @cached_property
    def store(self) -> Store:
        return open_store(self.url, self.stores)

    @cached_property
    def own(self) -> Store:
        return open_store(f"{self.url}/{FOLDER}", self.stores, key_class=layout.key_class)

    def check_apart(self, archive: Store) -> None:
        """Raise `UsageError` if the destination is in the folder of `archive`, or has this or another archive in its
        own folder: Delta's VACUUM deletes every file around a table that the table does not know."""
        check_apart(self.store, archive)
        try:
            self.store.stat(layout.ARCHIVE)
        except NotFoundError:
            return
        raise UsageError(
            f"{self.url} is an archive: there is {layout.ARCHIVE}", "export to a destination outside of the archive"
        )

    def check_links(self, tables: Iterable[str]) -> None:
        """Raise `StoreError` if the folder of a table in a directory is a link: Spark would follow it. `tables` are
        paths from the destination on, '' for the destination itself."""
        if kind_of(self.url) is not DIRECTORY:
            return
        for table in tables:
            # A store of a directory follows no link on the way to a file, whether the file is there or not.
            key = f"{table}/_delta_log/0".lstrip("/")
            with suppress(NotFoundError):
                self.store.stat(key)

    def claim(self, info: ExportInfo) -> None:
        """Raise `RefusedError` if the destination holds another export."""
        # Put first, then look: of two exports that begin at once, one finds the other's file.
        try:
            self.own.put_new(_EXPORT, dump(info))
        except AlreadyExistsError:
            existing = load(ExportInfo, self.own.get(_EXPORT), f"{FOLDER}/{_EXPORT}")
        else:
            return
        if existing.archive_id != info.archive_id:
            raise RefusedError(
                f"{self.url} holds records of archive {existing.archive_id}, this is {info.archive_id}",
                "export every archive to a destination of its own",
            )
        if existing.kind != info.kind:
            raise RefusedError(
                f"{self.url} holds {_KINDS[existing.kind]}, not {_KINDS[info.kind]}",
                "see --one-table and --parquet, or use another destination",
            )
        if (existing.topics, existing.exclude_topics) != (info.topics, info.exclude_topics):
            topics = f"--topic {' --topic '.join(existing.topics)}" if existing.topics else "all"
            excluded = "".join(f" --exclude-topic {name}" for name in existing.exclude_topics)
            raise RefusedError(
                f"{self.url} was begun with other topics ({topics}{excluded})",
                "give the same topics, or use another destination: an export of this kind has one selection of topics",
            )
        self._check_transform(named_transform(existing.transform), named_transform(info.transform))

    def _check_transform(self, existing: TransformRef | None, given: TransformRef | None) -> None:
        """Raise `RefusedError` for another transform than the destination began with: its records would be masked in
        two ways, or only some of them."""
        if is_same_transform(existing, given):
            return
        before = "without a transform" if existing is None else f"with transform {existing}"
        now = "without one" if given is None else f"with {given}"
        raise RefusedError(
            f"{self.url} was begun {before}, this export is {now}",
            "give --transform with the same bytes and function as then, or another destination",
        )

    def check_same_lineage(self, archive: Archive) -> None:
        """Raise `RefusedError` if `archive` is behind the export, or has diverged from it; note its newest point."""
        newest = archive.restore_points[-1]
        hint = "export from the archive that is ahead, or to another address"
        try:
            seen = load(Seen, self.own.get(_SEEN), f"{FOLDER}/{_SEEN}")
        except NotFoundError:
            seen = Seen(archive_id=archive.info.id, restore_point=0, manifest="")
        if archive.state.next_point <= seen.restore_point:
            raise RefusedError(
                f"{self.url} has all up to restore point {seen.restore_point}, but the newest one of "
                f"{archive.store.url} is {newest.number}",
                hint,
            )
        check_same_point(archive, seen.restore_point, seen.manifest, self.url, hint)
        if newest.number > seen.restore_point:
            here = Seen(archive_id=archive.info.id, restore_point=newest.number, manifest=newest.manifest)
            self.own.put(_SEEN, dump(here))

    def reached(self, due: Reached) -> int:
        """Return the restore point that all tables of the selection of `due` are known to be at; 0 if unknown."""
        # The file is a hint: without it, each table is asked how far it is.
        try:
            noted = load(Reached, self.own.get(_REACHED), f"{FOLDER}/{_REACHED}")
        except (NotFoundError, CorruptError):
            return 0
        same_selection = (noted.topics, noted.exclude_topics) == (due.topics, due.exclude_topics)
        if noted.archive_id != due.archive_id or not same_selection:
            return 0
        return noted.restore_point

    def note_reached(self, reached: Reached) -> None:
        self.own.put(_REACHED, dump(reached))


_KINDS = {"delta tables": "a Delta table for each topic", "delta table": "one Delta table", "parquet": "Parquet files"}


def point_key(number: int) -> str:
    return f"points/{number:010d}.json"


def point_of(key: str) -> int | None:
    """Return the number of the restore point of a file; None if the file is not kbackup's."""
    match = re.fullmatch(r"points/([0-9]{10,})\.json", key)
    return int(match[1]) if match else None
