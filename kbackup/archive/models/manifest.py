"""The manifest of a restore point: its topics, its losses, and the documents that it refers to."""

from __future__ import annotations

import hashlib
from typing import Literal

from kbackup.archive.models.document import Document, Member
from kbackup.metadata.entities import TopicName
from kbackup.util.text import ArchiveId


class LastRecord(Member, frozen=True, kw_only=True):
    """The last archived record of a partition, by which a later run knows whether the log is still the same one.

    `leader_epoch` is that of the record's batch, null where nothing told it. `digest` is the first 16 hex digits of
    SHA-256 over the encoded record.
    """

    offset: int
    leader_epoch: int | None
    digest: str


class EpochEnd(Member, frozen=True, kw_only=True):
    """The last archived record that is known to be of a leader epoch."""

    leader_epoch: int
    offset: int


class PartitionState(Member, frozen=True, kw_only=True):
    """One partition in a restore point: the archive has records with `start` <= offset < `end`, apart from what the
    losses name.

    `log_start` and `log_end` are the partition's own at the time of the run. `last` is null where there is no record,
    and where the run did not read the last one itself. `tail` are the few records before `last`, of compacted topics;
    `epochs` are leader epochs before that of `last`, in order.
    """

    partition: int
    start: int
    end: int
    log_start: int
    log_end: int
    records: int
    bytes: int
    last: LastRecord | None = None
    tail: tuple[LastRecord, ...] = ()
    epochs: tuple[EpochEnd, ...] = ()


class TopicState(Member, frozen=True, kw_only=True):
    """A topic in a restore point. `state` is 'present' (captured by this run), 'unselected' (not looked at by
    this run: as of `captured`) or 'deleted' (gone from the source; kept so that its return is noticed)."""

    name: TopicName
    id: str
    incarnation: int
    captured: int
    state: Literal["present", "unselected", "deleted"]
    partitions: tuple[PartitionState, ...]


class Loss(Member, frozen=True, kw_only=True):
    """Records that this run found it can never archive. `end` is null where it is not known how many there
    were."""

    kind: Literal["retention", "truncated", "recreated", "damaged"]
    topic: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    message: str


class Totals(Member, frozen=True, kw_only=True):
    """Counts and sizes of what the run added."""

    topics: int
    partitions: int
    segments: int
    records: int
    bytes: int
    stored_bytes: int
    groups: int


class DocumentRef(Member, frozen=True, kw_only=True):
    """An immutable document by its key: `size` in bytes and `sha256` (hex) of its plain bytes."""

    key: str
    size: int
    sha256: str


class FileSum(Member, frozen=True, kw_only=True):
    """A file that lies beside a document, as it must be."""

    size: int
    sha256: str


class Capture(Member, frozen=True, kw_only=True):
    """The groups and the metadata that were captured for restore point `number`, whose run began at `started_at`."""

    number: int
    started_at: str
    groups: DocumentRef
    metadata: DocumentRef


class Manifest(Document, frozen=True, kw_only=True):
    """points/<number>-<run>/manifest.json: one restore point.

    `captures` are those that `topics` name by `captured`, its own among them. `origin` is what it was made from: a
    cluster, a folder of the Java tool, Delta tables, or by a repair the objects that were found. `not_known` says in
    words what a repair or an adoption could not find out.
    """

    format: Literal["kbackup-manifest"] = "kbackup-manifest"
    version: int = 2
    archive_id: ArchiveId
    number: int
    run: str
    previous: int | None
    origin: Literal["cluster", "folder", "tables", "repair"] = "cluster"
    tool: str
    started_at: str
    committed_at: str
    cluster_id: str = ""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    losses: tuple[Loss, ...] = ()
    warnings: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()
    totals: Totals
    captures: tuple[Capture, ...]
    topics: tuple[TopicState, ...] = ()


def document_ref(key: str, data: bytes) -> DocumentRef:
    return DocumentRef(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def file_sum(data: bytes) -> FileSum:
    return FileSum(size=len(data), sha256=hashlib.sha256(data).hexdigest())
