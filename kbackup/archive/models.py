"""Read and write an archive's JSON files: each has a format, a version, and a checksum over its own canonical bytes.

A damaged or a later file is refused, not half understood. Times are RFC 3339 in UTC; offsets are int64; an `end` is
exclusive.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from kbackup.errors import CorruptError
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Feature,
    GroupConfig,
    MetadataPartName,
    NotCarried,
    Registration,
    ScramUser,
    Source,
    TopicMetadata,
    TopicName,
    Znode,
)
from kbackup.schemas.base import SchemaVersion, SubjectSettings
from kbackup.util.text import ArchiveId

if TYPE_CHECKING:
    from kbackup.types import Incarnation, IncarnationPartition  # they need pyarrow, which takes long to import


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON file of the archive. `checksum` is sha256 over the same text with an empty checksum (`text_checksum`)."""

    format: str
    version: int = 1
    checksum: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


D = TypeVar("D", bound=Document)
_HINT = (
    "take it from a bucket version or another copy of the archive; run 'kbackup verify', which lists every finding, "
    "and 'kbackup repair', which shows what can be mended"
)


USE_NEWER = "use the kbackup that wrote it, or a newer one"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NO_ID = "matching regex"
"""In errors about an archive's id of another form, which no later version has under the same number."""
_CHECKSUM = re.compile(rb'"checksum":"[^"]*"')


def text_checksum(text: bytes) -> str:
    """Return the sha256 over the JSON text itself, without white space between its tokens and with an empty `checksum`
    (the first member of that name).

    It is over the text and not over what is understood of the text, so that a member with a default can be added to a
    model without making every older file look damaged.
    """
    compact = msgspec.json.format(text, indent=-1)
    bare = _CHECKSUM.sub(b'"checksum":""', compact, count=1)
    return "sha256:" + hashlib.sha256(bare).hexdigest()


def dump(document: Document, indent: int = 1) -> bytes:
    """Return the file's bytes, with its checksum filled in. `indent` is for people; -1 writes one line."""
    unsigned = msgspec.json.encode(document)
    signed = msgspec.structs.replace(document, checksum=text_checksum(unsigned))
    text = msgspec.json.encode(signed)
    return msgspec.json.format(text, indent=indent) + b"\n"


class NewerError(CorruptError):
    """A file that is whole by its own checksum, in a version or with members that are not known here. It is not
    damaged, and must not be replaced."""


class _Head(msgspec.Struct, frozen=True):
    """The members that are checked before any other is parsed."""

    format: Any = None
    version: Any = None
    checksum: Any = None


_HEAD = msgspec.json.Decoder(_Head)

_decoders: dict[type[Document], msgspec.json.Decoder[Any]] = {}
_decoders_lock = threading.Lock()


def _decoder(kind: type[D]) -> msgspec.json.Decoder[D]:
    """Return the decoder of a kind of document, made once.

    The lock is there because msgspec 0.22 crashes the process if two threads look a type up for the first time."""
    with _decoders_lock:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


@cache
def _format_of(kind: type[Document]) -> tuple[object, object]:
    """Return the format and the version of a kind of document; msgspec takes 2 ms to find them."""
    defaults = {each.name: each.default for each in msgspec.structs.fields(kind)}
    return defaults["format"], defaults["version"]


def load(kind: type[D], data: bytes, name: str) -> D:
    """Return the document that is in `data`, the bytes of file `name`.

    `CorruptError` for anything that is not a whole file of this kind in a version known here; `NewerError` if the file
    is whole, but newer.
    """
    try:
        head = _HEAD.decode(data)
    except msgspec.ValidationError:
        # JSON, but no object.
        head = _Head()
    except _UNREADABLE as error:
        raise CorruptError(f"file {name} is not JSON: {error}", _HINT) from error
    expected, version = _format_of(kind)
    if head.format != expected:
        raise CorruptError(
            f"file {name} says format {head.format!r}, not {expected!r}",
            "check that the address is one of a kbackup archive",
        )
    # A repair may replace what is damaged. It must not take a file of a newer version for that.
    is_whole = head.checksum == text_checksum(data)
    if head.version != version:
        error_of = NewerError if is_whole else CorruptError
        raise error_of(f"file {name} has version {head.version!r}, known is {version}", USE_NEWER)
    try:
        document = _decoder(kind).decode(data)
    except _UNREADABLE as error:
        if is_whole and _NO_ID not in str(error):
            raise NewerError(f"file {name}: {error}", USE_NEWER) from error
        raise CorruptError(f"file {name}: {error}", _HINT) from error
    if not is_whole:
        raise CorruptError(f"file {name} does not match its own checksum", _HINT)
    return document


# The documents of a capture: groups.json and metadata.json.


SHARE = "share"
"""The type of a share group, which is set by other requests than groups that commit offsets."""


class GroupOffset(Member, frozen=True, kw_only=True):
    """`offset` is the next to read, of a share group the start offset of the partition: records from there on may have
    been read. `leader_epoch` is null if none was committed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class Group(Member, frozen=True, kw_only=True):
    group: str
    type: str
    state: str
    offsets: tuple[GroupOffset, ...]


class Groups(Document, frozen=True, kw_only=True):
    """points/<number>-<run>/groups.json: every group's committed offsets at that time, taken before the end offsets.

    `not_carried` names groups that could not be captured, each with the reason; a regular expression that selected no
    group stands there between its slashes."""

    format: Literal["kbackup-groups"] = "kbackup-groups"
    captured_at: str
    groups: tuple[Group, ...]
    not_carried: dict[str, str] = msgspec.field(default_factory=dict)


class Metadata(Document, frozen=True, kw_only=True):
    """points/<number>-<run>/metadata.json: what a cluster needs beside records and groups.

    Lists that are null were not captured: `not_carried` says why, unless an older version wrote the file. `sources`
    maps the name of each captured part to where it was read; `deletions` are topics that wait for their deletion.
    `znodes` are /controller, /controller_epoch and /migration of ZooKeeper, those that were there."""

    format: Literal["kbackup-metadata"] = "kbackup-metadata"
    version: int = 2
    captured_at: str
    cluster_id: str
    brokers: int
    topics: tuple[TopicMetadata, ...]
    acls: tuple[Acl, ...] | None = None
    scram_users: tuple[ScramUser, ...] | None = None
    broker_configs: tuple[BrokerConfig, ...] | None = None
    group_configs: tuple[GroupConfig, ...] | None = None
    client_quotas: tuple[ClientQuota, ...] | None = None
    delegation_tokens: tuple[DelegationToken, ...] | None = None
    client_metrics: tuple[ClientMetrics, ...] | None = None
    features: tuple[Feature, ...] | None = None
    registrations: tuple[Registration, ...] | None = None
    deletions: tuple[str, ...] | None = None
    next_producer_id: int | None = None
    znodes: tuple[Znode, ...] | None = None
    sources: dict[MetadataPartName, Source] = msgspec.field(default_factory=dict)
    not_carried: tuple[NotCarried, ...] = ()

    def source_of(self, part: MetadataPartName) -> Source | None:
        """Return the source of a part of the metadata; None if the part was not captured."""
        return self.sources.get(part)


# The schemas of a restore point: what a schema registry held, as far as records of the restore point may need it.


class Schemas(Document, frozen=True, kw_only=True):
    """points/<number>-<run>/schemas.json: what the schema registry held when the restore point was taken.

    `kept` is 'all', or 'used': the subjects of the schemas whose ids records carry, and their references.
    `versions` are in order of subject and version.
    """

    format: Literal["kbackup-schemas"] = "kbackup-schemas"
    captured_at: str
    registry: str
    kept: Literal["all", "used"]
    versions: tuple[SchemaVersion, ...]
    settings: tuple[SubjectSettings, ...] = ()


# The deletions of a restore point: archived records of keys that the source's logs have no more.


class DeletedRecords(Member, frozen=True, kw_only=True):
    """Archived records of a partition whose keys were deleted at the source, by tombstones that the archive lacks.

    `offsets` are ranges of source offsets with exclusive ends, disjoint and rising.
    """

    topic: TopicName
    incarnation: int
    partition: int
    offsets: tuple[tuple[int, int], ...]


class Deletions(Document, frozen=True, kw_only=True):
    """points/<number>-<run>/deletions.json: the records that a restore leaves out, since their keys were deleted.

    A backup finds them by comparing a whole compacted log with the archive. `found_at` is the time when the last of
    them were found.
    """

    format: Literal["kbackup-deletions"] = "kbackup-deletions"
    found_at: str
    partitions: tuple[DeletedRecords, ...]


# The manifest of a restore point: its topics, its losses, and the documents that it refers to.


class LastRecord(Member, frozen=True, kw_only=True):
    """The last archived record of a partition, by which a later run recognizes the same log.

    `leader_epoch` is the leader epoch of the record's batch, null if it is unknown. `digest` is the first 16 hex digits
    of SHA-256 over the encoded record.
    """

    offset: int
    leader_epoch: int | None
    digest: str


class EpochEnd(Member, frozen=True, kw_only=True):
    """The last archived record that is known to be of a leader epoch."""

    leader_epoch: int
    offset: int


class UnseenDeletions(Member, frozen=True, kw_only=True):
    """Deletions of a compacted partition that may have been compacted away before a backup could read them.

    `offsets` counts the offsets that were missing where backups read after more time than `delete.retention.ms`. All
    deletions from before `since` are archived.
    """

    offsets: int
    since: str


class PartitionState(Member, frozen=True, kw_only=True):
    """One partition in a restore point: the archive has records with `start` <= offset < `end`, apart from what the
    losses name.

    `log_start` and `log_end` are the partition's own at the time of the run. `last` is null if there is no record,
    and where the run did not read the last one itself. `tail` are the few records before `last`, of compacted topics;
    `earlier` has the digests of records at growing distance before `last`, by offset, in order; `epochs` are leader
    epochs before that of `last`, in order. `held` are ranges of offsets below `end` (exclusive
    ends; rising) of transactions that are not in the restore point: the next one has them.

    Two members are of compacted topics alone. `seen_at` is the last time at which the archive had, or was about to
    read, all that the log had; empty: not known, the start of the capture counts. `unseen` stays until the whole log
    is compared with the archive.
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
    held: tuple[tuple[int, int], ...] = ()
    earlier: dict[int, str] = msgspec.field(default_factory=dict)
    seen_at: str = ""
    unseen: UnseenDeletions | None = None

    @property
    def unbroken(self) -> int:
        """The offset up to which nothing is held."""
        if not self.held:
            return self.end
        first_held, _ = self.held[0]
        return first_held

    def has(self, first: int) -> bool:
        """Whether the restore point has the segment, or the lack of one, that begins at `first`."""
        is_held = any(start <= first < end for start, end in self.held)
        return first < self.end and not is_held


class UsedSchemas(Member, frozen=True, kw_only=True, omit_defaults=True):
    """The schemas that the keys, or the values, of a topic name: by a frame in front of the data or in a header.

    `fields` of the counted records are not null, `framed` of these name a schema. `sure` of those can't be anything
    else: eight bytes of which the first is 0 may be a number as well, and gRPC writes a byte 0 and a length. `ids` are
    counts by id or GUID (`formats.schema_ids.list_ids`), `unlisted` counts those that are not among them, and `odd`
    those of 2^24 or more (0 where all are listed: `ids` shows them). `apicurio` are counts of Apicurio's own forms: by
    form and id ('contentId 7'), or by form alone.

    Members with defaults are written only where they say something, so that older versions read the others.
    """

    part: Literal["key", "value"]
    fields: int
    framed: int
    sure: int
    ids: dict[str, int]
    unlisted: int = 0
    odd: int = 0
    apicurio: dict[str, int] = msgspec.field(default_factory=dict)


class TopicState(Member, frozen=True, kw_only=True):
    """A topic in a restore point. `state` is 'present' (captured by this run), 'unselected' (not looked at by
    this run: as of `captured`) or 'deleted' (gone from the source; kept so that its return is noticed).

    `schemas` are those of the `counted` records that were archived; older versions counted none."""

    name: TopicName
    id: str
    incarnation: int
    captured: int
    state: Literal["present", "unselected", "deleted"]
    partitions: tuple[PartitionState, ...]
    schemas: tuple[UsedSchemas, ...] = ()
    counted: int = 0

    @property
    def all_counted(self) -> bool:
        """Whether `schemas` knows every archived record."""
        archived = sum(partition.records for partition in self.partitions)
        return self.counted >= archived

    def is_other_than(self, topic_id: str) -> bool:
        """Return whether the topic with this id and the same name is another topic. Brokers before 2.8 give topics no
        ids: there nobody can tell one topic from the next of its name."""
        return bool(self.id and topic_id and self.id != topic_id)


LossKind = Literal["retention", "truncated", "recreated", "damaged"]


class Loss(Member, frozen=True, kw_only=True):
    """Records that this run found it can never archive. `end` is null if it is not known how many there
    were."""

    kind: LossKind
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


class HangingTransaction(Member, frozen=True, kw_only=True):
    """A transaction of a partition that did not end while a backup waited. `start` is the offset of its first record
    there; `timestamp` is of its producer's last record, in ms. A producer of -1: it may have ended, but could not be
    told from others, for the reason in `Transactions.why`."""

    topic: str
    partition: int
    producer_id: int
    start: int
    timestamp: int


def abort_command(of: HangingTransaction, servers: str = "HOST:PORT") -> str:
    """Return the command of Kafka's own tools that ends a transaction. `servers` are addresses of brokers."""
    place = f"--topic {shlex.quote(of.topic)} --partition {of.partition} --start-offset {of.start}"
    return f"kafka-transactions.sh --bootstrap-server {shlex.quote(servers)} abort {place}"


class Transactions(Member, frozen=True, kw_only=True):
    """`whole`: the restore point has each transaction with all its records and group offsets, or not at all. Else `why`
    says why not. `open` are the transactions that did not end in time, or could not be told apart."""

    whole: bool
    why: str = ""
    open: tuple[HangingTransaction, ...] = ()


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

    `started_at` is when its run began to look at the source, `committed_at` when all of it was there and its documents
    began to be written; they are one time where files alone were the source. `captures` are the captures that `topics`
    refer to by `captured`, and its own. `schemas` has what all of them need of a schema registry; null if none was
    configured, or it could not be read. `origin` is what the restore point was made from: a cluster, a folder of the
    Java tool, Delta tables, or by a repair the objects that were found. `not_known` says in words what a repair or an
    adoption could not find out. `transactions` is null where older versions, a repair or an adoption made the restore
    point. `deletions` are the archived records that a restore leaves out; null if there are none.
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
    schemas: DocumentRef | None = None
    transactions: Transactions | None = None
    deletions: DocumentRef | None = None
    topics: tuple[TopicState, ...] = ()

    def incarnations(self) -> dict[Incarnation, TopicState]:
        """Return the topics by name and incarnation."""
        return {(t.name, t.incarnation): t for t in self.topics}

    @property
    def documents(self) -> list[DocumentRef]:
        """The documents that the restore point needs beside its manifest."""
        refs: list[DocumentRef] = []
        for capture in self.captures:
            refs += [capture.groups, capture.metadata]
        if self.schemas is not None:
            refs.append(self.schemas)
        if self.deletions is not None:
            refs.append(self.deletions)
        # Two captures may have the same document.
        return list(dict.fromkeys(refs))

    def partitions(self) -> dict[IncarnationPartition, PartitionState]:
        """Return the partitions of all topics."""
        states: dict[IncarnationPartition, PartitionState] = {}
        for topic in self.topics:
            for state in topic.partitions:
                states[topic.name, topic.incarnation, state.partition] = state
        return states


def document_ref(key: str, data: bytes) -> DocumentRef:
    """Return the reference to the document at `key` with the bytes `data`."""
    return DocumentRef(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def file_sum(data: bytes) -> FileSum:
    """Return the size and the checksum of a file with the bytes `data`."""
    return FileSum(size=len(data), sha256=hashlib.sha256(data).hexdigest())


# The files at the root of an archive: archive.json and lock.json.


class ArchiveInfo(Document, frozen=True, kw_only=True):
    """archive.json"""

    format: Literal["kbackup-archive"] = "kbackup-archive"
    version: int = 2
    id: ArchiveId
    created_at: str
    encryption: str | None = None


class Lease(Document, frozen=True, kw_only=True):
    """lock.json. A holder renews it; `released` is set when it ended well."""

    format: Literal["kbackup-lease"] = "kbackup-lease"
    owner: str
    host: str
    pid: int
    command: str
    acquired_at: str
    expires_at: str
    released: bool = False
