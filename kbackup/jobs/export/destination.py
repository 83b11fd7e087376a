"""Where exported tables are: what is kept beside them under `_kbackup/`, which readers of tables leave alone.

- `export.json` says what the place holds: another archive, or another form, is refused.
- `lock.json` is the lease of the one exporter. Delta's own log on S3 is safe with one writer alone.
- `seen.json` says which restore point was the archive's newest one: an archive that is behind, or has another one of
  that number, is refused.
- `reached.json` says up to which restore point all tables are; a hint that saves looking into each.
- `points/<n>.json`: the files that a restore point added to an export of Parquet files, written when all are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.followers import check_same_point
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.models import Document, Part, dump, load
from kbackup.archive.reader import Archive
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, RefusedError, UsageError
from kbackup.store import S3Options, Store, open_store
from kbackup.store.address import parse_url
from kbackup.store.apart import check_apart

FOLDER = "_kbackup"
_EXPORT = "export.json"
_REACHED = "reached.json"
_SEEN = "seen.json"


class ExportInfo(Document, frozen=True, kw_only=True):
    """_kbackup/export.json. `topics` and `exclude_topics` hold for a place whose topics are written together."""

    format: Literal["kbackup-export"] = "kbackup-export"
    archive_id: str
    kind: Literal["delta tables", "delta table", "parquet"]
    topics: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()


class Reached(Document, frozen=True, kw_only=True):
    """_kbackup/reached.json: every table of the topics so selected is at `restore_point`, or has nothing to get."""

    format: Literal["kbackup-export-reached"] = "kbackup-export-reached"
    archive_id: str
    restore_point: int
    topics: tuple[str, ...]
    exclude_topics: tuple[str, ...]


class Seen(Document, frozen=True, kw_only=True):
    """_kbackup/seen.json: the newest restore point that the archive ever had when an export began, written before
    anything of it. `manifest` is its checksum: of a copy that was written to another one may have that number."""

    format: Literal["kbackup-export-seen"] = "kbackup-export-seen"
    archive_id: str
    restore_point: int
    manifest: str


class ExportedFile(Part, frozen=True, kw_only=True):
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
class Place:
    """`url` is `s3://bucket/prefix` or a directory; nothing there is encrypted by kbackup."""

    url: str
    s3: S3Options

    @classmethod
    def at(cls, url: str, s3: S3Options) -> Place:
        plain = url.rstrip("/") or url
        if plain.startswith("s3a://"):
            plain = "s3://" + plain.removeprefix("s3a://")
        if plain.startswith("~"):
            plain = str(parse_url(plain))  # Spark expands none
        # an archive may be locked for years, and its segments in a cold class: tables are worked with
        return cls(plain, replace(s3, object_lock_mode="", object_lock_days=0, storage_class=""))

    @cached_property
    def store(self) -> Store:
        return open_store(self.url, self.s3)

    @cached_property
    def own(self) -> Store:
        return self.sub(FOLDER)

    def sub(self, folder: str, key: str = "") -> Store:
        return open_store(f"{self.url}/{folder}", self.s3, key)

    @contextmanager
    def held(self, seconds: float) -> Iterator[HeldLease]:
        """The lease; `LockedError` where another exporter is at work."""
        with HeldLease(self.own, "kbackup export", seconds) as lease:
            yield lease

    def check_apart(self, archive: Store) -> None:
        """`UsageError` where the place is in the folder of `archive`, or has it or another one in its own: Delta's
        VACUUM deletes every file around a table that the table does not know."""
        check_apart(self.store, archive)
        try:
            self.store.stat(layout.ARCHIVE)
        except NotFoundError:
            return
        raise UsageError(f"{self.url} is an archive: there is {layout.ARCHIVE}", _APART)

    def claim(self, info: ExportInfo) -> None:
        """`RefusedError` where the place holds something else."""
        try:
            self.own.put_new(_EXPORT, dump(info))
        except AlreadyExistsError:
            self._check_same(info)

    def _check_same(self, info: ExportInfo) -> None:
        found = self.info()
        assert found is not None  # noqa: S101 (it is there)
        if found.archive_id != info.archive_id:
            raise RefusedError(
                f"{self.url} holds records of archive {found.archive_id}, this is {info.archive_id}",
                "export every archive to a place of its own",
            )
        if found.kind != info.kind:
            raise RefusedError(
                f"{self.url} holds {_KINDS[found.kind]}, not {_KINDS[info.kind]}",
                "see --one-table and --parquet, or use another place",
            )
        if (found.topics, found.exclude_topics) != (info.topics, info.exclude_topics):
            raise RefusedError(
                f"{self.url} was begun with other topics ({_selected(found)})",
                "what is written together has one selection of topics: give the same, or use another place",
            )

    def check_goes_on(self, archive: Archive) -> None:
        """`RefusedError` where `archive` is behind what was exported, or has gone another way; notes how far it is."""
        newest, hint = (
            archive.restore_points[-1],
            "export from the archive that is ahead, or to another address",
        )
        try:
            seen = load(Seen, self.own.get(_SEEN), f"{FOLDER}/{_SEEN}")
        except NotFoundError:
            seen = Seen(archive_id=archive.info.id, restore_point=0, manifest="")
        if archive.state.next_point <= seen.restore_point:
            raise RefusedError(
                f"{self.url} was brought up to restore point {seen.restore_point}, the newest of {archive.store.url} "
                f"is {newest.number}",
                hint,
            )
        check_same_point(archive, seen.restore_point, seen.manifest, self.url, hint)
        if newest.number > seen.restore_point:
            here = Seen(archive_id=archive.info.id, restore_point=newest.number, manifest=newest.manifest)
            self.own.put(_SEEN, dump(here))

    def info(self) -> ExportInfo | None:
        """What the place holds; None where nothing was exported to it."""
        try:
            return load(ExportInfo, self.own.get(_EXPORT), f"{FOLDER}/{_EXPORT}")
        except NotFoundError:
            return None

    def reached(self, due: Reached) -> int:
        """The restore point that all tables of the selection of `due` are at, as far as is known."""
        found = self.noted()
        if found is None:
            return 0
        same = (found.archive_id, found.topics, found.exclude_topics)
        return found.restore_point if same == (due.archive_id, due.topics, due.exclude_topics) else 0

    def noted(self) -> Reached | None:
        """What the last export that came to its end has noted; None where nobody knows."""
        try:
            return load(Reached, self.own.get(_REACHED), f"{FOLDER}/{_REACHED}")
        except (NotFoundError, CorruptError):
            return None

    def note_reached(self, reached: Reached) -> None:
        self.own.put(_REACHED, dump(reached))


_APART = "export to a place of its own, beside the archive"
_KINDS = {
    "delta tables": "a Delta table for each topic",
    "delta table": "one Delta table",
    "parquet": "Parquet files",
}


def _selected(info: ExportInfo) -> str:
    wanted = f"--topic {' --topic '.join(info.topics)}" if info.topics else "all"
    left_out = "".join(f" --exclude-topic {name}" for name in info.exclude_topics)
    return wanted + left_out


def point_key(number: int) -> str:
    return f"points/{number:010d}.json"


def point_of(key: str) -> int | None:
    """The number of the restore point whose file this is; None where somebody else put it there."""
    found = re.fullmatch(r"points/([0-9]{10,})\.json", key)
    return int(found[1]) if found else None
