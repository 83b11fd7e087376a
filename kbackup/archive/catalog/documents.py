"""The documents of a catalog as frozen models: `catalog/<number>.json`, `catalog/latest.json`, `derived.json`.

Numbers are int64, times RFC 3339 in UTC, checksums `sha256:` and 64 hex digits (`models.Document`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kbackup.archive.models import Document, Member
from kbackup.util.text import ArchiveId

OperationKind = Literal[
    "create", "begin", "backup", "end", "expire", "undo", "keep", "release", "label",
    "sweep", "repair", "adopt", "import", "copy", "promote", "erase", "rewrite",
]  # fmt: skip
IsolationLevel = Literal["read_committed", "read_uncommitted"]


class TableRef(Member, frozen=True, kw_only=True):
    """An immutable Parquet file: `size` in bytes and `sha256` (hex) of its plain bytes, and its number of rows."""

    key: str
    size: int
    sha256: str
    rows: int


class Tables(Member, frozen=True, kw_only=True, omit_defaults=True):
    """The tables of a catalog. The chunks of each hold disjoint rows, the oldest and largest chunk first. A table
    without rows is missing: so an older version reads an archive that has nothing of what it doesn't know."""

    points: tuple[TableRef, ...] = ()
    incarnations: tuple[TableRef, ...] = ()
    segments: tuple[TableRef, ...] = ()
    losses: tuple[TableRef, ...] = ()
    past: tuple[TableRef, ...] = ()
    log_starts: tuple[TableRef, ...] = ()
    history: tuple[TableRef, ...] = ()
    erased: tuple[TableRef, ...] = ()
    rewritten: tuple[TableRef, ...] = ()
    compacted: tuple[TableRef, ...] = ()


class Link(Member, frozen=True, kw_only=True):
    """A catalog by its number and its checksum."""

    number: int
    checksum: str


class Operation(Member, frozen=True, kw_only=True):
    """The operation that made a catalog: `token` is unique to one attempt, `by` is a host and process, `summary` a
    sentence."""

    kind: OperationKind
    token: str
    run: str
    by: str
    at: str
    summary: str


class OpenRun(Member, frozen=True, kw_only=True):
    """The one run that may write segments. A later `begin` closes the run: none of its commits succeeds then."""

    run: str
    command: str
    host: str
    started_at: str
    isolation_level: IsolationLevel


class Origin(Member, frozen=True, kw_only=True):
    """The source of a copy: its address without secrets, and the source's catalog that the copy followed last."""

    archive: str
    catalog: Link


class Pin(Member, frozen=True, kw_only=True):
    """A restore point that is exempt from retention, since `at`."""

    point: int
    at: str


class Label(Member, frozen=True, kw_only=True):
    """A name that a user gave a restore point. A name stands for one restore point."""

    name: str
    point: int


class Catalog(Document, frozen=True, kw_only=True):
    """catalog/<number>.json: the archive's state, by reference.

    `next_point` is the number of the next restore point. `swept` is the newest catalog whose objects a sweep may have
    deleted: no later operation returns to that state or an older one. `reinstated` is the newest catalog whose
    operation brought rows back that an earlier catalog had dropped, or put rewritten segments in. `isolation_levels`
    are those of every run that ever wrote. `rewrites_before` is at least the number of each rewrite from before the
    archive was promoted; it is missing where there was none: so an older version reads such an archive.
    """

    format: Literal["kbackup-catalog"] = "kbackup-catalog"
    archive_id: ArchiveId
    number: int
    previous: Link | None
    operation: Operation
    next_point: int
    swept: int = 0
    reinstated: int = 0
    isolation_levels: tuple[IsolationLevel, ...] = ()
    open_run: OpenRun | None = None
    origin: Origin | None = None
    pins: tuple[Pin, ...] = ()
    labels: tuple[Label, ...] = ()
    rewrites_before: int | msgspec.UnsetType = msgspec.UNSET
    tables: Tables


class Latest(Document, frozen=True, kw_only=True):
    """catalog/latest.json: a catalog that was committed. Newer catalogs may exist; catalog `number` did exist."""

    format: Literal["kbackup-latest"] = "kbackup-latest"
    archive_id: ArchiveId
    number: int


class Derived(Document, frozen=True, kw_only=True):
    """derived.json: the catalog that all derived files were last written for."""

    format: Literal["kbackup-derived"] = "kbackup-derived"
    archive_id: ArchiveId
    catalog: int
