"""The configuration as frozen models. They are the one table of keys: name, type, limits, default and meaning.

Field names carry the unit: `*_bytes` and `*_size` take sizes ("8MiB"), `*_seconds`, `*_timeout` and `*_age` durations
("90s"). Free-form fields (`dict[str, str]`) take any name below their own. The text in an annotation is the meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kbackup.config.secrets import redact
from kbackup.metadata.sources import Sources
from kbackup.schemas.base import RegistryOptions
from kbackup.store.registry import KINDS, StoreOptions, forms
from kbackup.util.text import SomeArchiveId

Names = tuple[str, ...]
Properties = dict[str, str]
Positive = Annotated[int, Meta(ge=1)]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """`[backup]`"""

    topics: Annotated[Names, "Topics: names or /regex/. Empty: all."] = ()
    exclude_topics: Annotated[Names, "Topics to leave out: names or /regex/."] = ()
    groups: Annotated[Names, "Consumer groups: names or /regex/. Empty: all."] = ()
    exclude_groups: Annotated[Names, "Consumer groups to leave out: names or /regex/."] = ()
    segment_bytes: Annotated[Positive, "A segment ends with the record that makes its file larger than this."] = (
        128 << 20
    )
    compression: Annotated[
        Literal["none", "zstd"], "Compression of new segments. `none` writes the Java tool's files byte for byte."
    ] = "zstd"
    isolation_level: Annotated[
        Literal["read_committed", "read_uncommitted"],
        "`read_committed` leaves out records of open and aborted transactions.",
    ] = "read_committed"
    transactions: Annotated[
        Literal["whole", "partition"],
        "`whole`: a restore point has each transaction with all its records and group offsets, or not at all. "
        "`partition`: each partition ends at its own last stable offset.",
    ] = "whole"
    transaction_wait_seconds: Annotated[
        float, Meta(ge=0), "Longest wait for open transactions to end. After it, a restore point is not whole."
    ] = 60
    split_records: Annotated[Positive, "Offsets in each range of a large partition."] = 4_000_000
    pack_records: Annotated[Positive, "Offsets of small partitions that share a task."] = 200_000
    small_without_spark: Annotated[
        bool,
        "Read a small backup (up to 16 MiB, and `pack_records` offsets) in kbackup's own process; no Spark is started.",
    ] = False
    lease_seconds: Annotated[int, Meta(ge=5), "Duration of the writer's lease without renewal."] = 60
    wait: Annotated[bool, "Wait for another writer, until its lease would run out."] = False
    max_age: Annotated[float, Meta(ge=1), "Age of the newest restore point from which on `status` is critical."] = (
        26 * 3600
    )
    max_drill_age: Annotated[float, Meta(ge=1), "Age of the newest drill from which on `status` warns."] = 9 * 86400
    allow_loss: Annotated[
        bool, "End with exit code 0 after a loss, or where deletions may have been compacted away unseen."
    ] = False
    recheck_compacted: Annotated[
        bool, "Compare every compacted topic with the archive, to find keys that were deleted unseen."
    ] = False
    recheck_bytes: Annotated[
        int,
        Meta(ge=0),
        "Archived bytes, at most, of compacted partitions that a backup rechecks by itself after it may have missed "
        "deletions. 0: none.",
    ] = 1 << 30
    schemas: Annotated[
        Literal["used", "all", "none"],
        "Subjects of `[schema_registry]` to back up: `used`, whose ids are in records, with what they refer to; `all`; "
        "or `none`.",
    ] = "used"
    adopt_topics: Annotated[bool, "Continue an archived topic of unknown id with the source's topic of that name."] = (
        False
    )
    adopt_cluster: Annotated[bool, "Continue the archive of a cluster that was rebuilt and has another id now."] = False
    poll_timeout_seconds: Annotated[Positive, "Time without progress after which a task fails."] = 60


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """`[follow]`: `backup --follow`"""

    interval_seconds: Annotated[float, Meta(ge=0.1), "Time between restore points, if there is anything new."] = 60
    max_age_seconds: Annotated[
        float, Meta(ge=0), "Longest time that a partition's new records wait for a segment to fill."
    ] = 600
    small_bytes: Annotated[int, Meta(ge=0), "A partition with fewer new bytes waits for more."] = 1 << 20
    small_segments: Annotated[
        int, Meta(ge=0), "Number of waiting partitions that each restore point takes all the same."
    ] = 100
    look_seconds: Annotated[float, Meta(ge=0.02), "Time between looks of a mirror's apply half at its archive."] = 0.5
    lease_seconds: Annotated[int, Meta(ge=5), "Duration of a follower's lease without renewal."] = 10
    listen: Annotated[str, "Address of `/metrics` and `/healthz` (`127.0.0.1:9464`). Unset: none."] = ""
    stale_after_seconds: Annotated[
        float, Meta(ge=1), "`/healthz` answers 503 after this time without a good round. Set it above the interval."
    ] = 300
    topic_metrics: Annotated[bool, "Also export the lag of each topic, as one series each."] = False


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """`[rewrite]`: what `rewrite`, and `expire` at its end, do with segments"""

    merge_below: Annotated[
        Positive | None,
        "Merge adjacent segments smaller than this, where no restore point ends between them. Unset: none.",
    ] = None
    compact: Annotated[
        bool, "Leave out of compacted topics what the oldest restore point has a later record of the same key for."
    ] = False


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """`[restore]`"""

    restore_point: Annotated[
        int | Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,99}$")],
        "Restore point: number, label or `latest`.",
    ] = "latest"
    to_time: Annotated[str | None, "Records up to this time, inclusive, with topics and groups of that time."] = None
    from_time: Annotated[str | None, "Records from this time on, inclusive."] = None
    range: Annotated[
        Names, "Offsets to restore, such as `orders:0:500-900`, which is 500 to 899. Either end may be empty."
    ] = ()
    skip: Annotated[
        Names,
        "Offsets to leave out: one, such as `orders:2:1376`, or some, such as `orders:2:1376-1380`, which is 1376 to "
        "1379.",
    ] = ()
    where: Annotated[
        str | None,
        "jq expression that selects the records to restore, as `find --raw --jq` tests it. Values that are JSON are "
        "parsed.",
    ] = None
    transform: Annotated[
        str | None,
        "Function that records go through, `FILE.py:FUNCTION`: it takes an Arrow batch and returns one with other "
        "keys, values and headers, or with fewer records.",
    ] = None
    topics: Annotated[Names, "Topics: names or /regex/. Empty: all."] = ()
    exclude_topics: Annotated[Names, "Topics to leave out: names or /regex/."] = ()
    map: Annotated[Properties, "New name of a topic (`orders=orders-restored`)."] = {}
    map_regex: Annotated[Names, r"New names by `pattern=replacement`, first match wins (`^(.*)$=restored.\1`)."] = ()
    groups: Annotated[Names, "Consumer groups: names or /regex/. Empty: all."] = ()
    exclude_groups: Annotated[Names, "Consumer groups to leave out: names or /regex/."] = ()
    no_groups: Annotated[bool, "Restore no consumer group."] = False
    map_group: Annotated[Properties, "New name of a consumer group."] = {}
    schemas: Annotated[
        Literal["same", "map", "none"] | None,
        "Register the schemas of the restored records in `[target_schema_registry]`: with the `same` ids; with new "
        "ones, which `map` writes into the records; or `none`. Unset: `same` if there is such a registry.",
    ] = None
    subject_prefix: Annotated[
        str, "Prefix of the names of restored subjects (`rehearsal.`), or a context (`:.rehearsal:`)."
    ] = ""
    schemas_topics: Annotated[
        Names, "Topics whose records get a new schema id wherever they look like a serializer's: names or /regex/."
    ] = ()
    no_schemas_topics: Annotated[
        Names, "Topics restored byte for byte, even where records look like a serializer's: names or /regex/."
    ] = ()
    unmapped: Annotated[
        Literal["keep", "fail"] | None,
        "What to do where a serializer's record can't get a new id, since its schema is unknown or does not fit it: "
        "`keep` it as it is, and end with exit code 3; or `fail`. Unset: `keep`.",
    ] = None
    settings: Annotated[
        tuple[Literal["acls", "configs", "quotas", "users"], ...],
        "Settings to restore: `acls`, `configs` (of brokers, groups and client metrics), "
        "`quotas`, `users` (listed only: a running cluster accepts no secrets).",
    ] = ()
    replication_factor: Annotated[
        Annotated[int, Meta(ge=1, le=32767)] | None, "Replication factor of created topics. Unset: as archived."
    ] = None
    topic_config: Annotated[
        Properties,
        "Topic configs that replace archived ones. An empty value (`retention.ms=`) leaves the archived one out.",
    ] = {}
    into_existing: Annotated[bool, "Allow target topics that hold records."] = False
    strict: Annotated[bool, "Refuse to restore if selected records were lost by damage."] = False
    transactions: Annotated[
        bool, "Restore exactly once, by transactions. Without: at least once, and no gaps in target offsets."
    ] = True
    transaction_bytes: Annotated[Positive, "Size of a transaction."] = 32 << 20
    same_offsets: Annotated[
        bool, "Give every record the offset that it had at the source, in new topics. Logs begin and end as they did."
    ] = False
    fill: Annotated[
        Literal["markers", "aborted", "tombstones"] | None,
        "What fills offsets without a record, with the same offsets: `markers` of empty transactions, however long "
        "they take; records of `aborted` transactions, which uncommitted reads see; or `tombstones` in compacted "
        "topics. Unset: markers, if they take less than ten minutes.",
    ] = None
    state: Annotated[
        str | None, "Address of plans, offset maps and reports of restores, and of mirrors' state. Unset: the archive."
    ] = None
    restore_id: Annotated[str | None, "Id of the restore, to resume it. Unset: a new id."] = None


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """`[export]`: what `export` and, after the restore point, `backup` write"""

    delta: Annotated[str | None, "Address of Delta tables: `s3://bucket/prefix` or a path."] = None
    parquet: Annotated[str | None, f"Address of Parquet files: {forms('`')}."] = None
    one_table: Annotated[bool, "Write one Delta table for all topics."] = False
    decode: Annotated[bool, "Add columns of decoded keys and values, by the schemas of the newest restore point."] = (
        False
    )
    transform: Annotated[
        str | None,
        "Function that records go through, `FILE.py:FUNCTION`, as of a restore. A destination keeps the one that it "
        "began with.",
    ] = None
    topics: Annotated[Names, "Topics: names or /regex/. Empty: all."] = ()
    exclude_topics: Annotated[Names, "Topics to leave out: names or /regex/."] = ()


class Notify(msgspec.Struct, frozen=True, kw_only=True):
    """`[notify]`: the webhook that hears of the end of runs"""

    url: Annotated[str, "URL of a webhook that gets the report of each run as JSON. It is a secret. Unset: none."] = ""
    on: Annotated[
        tuple[Literal["failure", "loss", "success"], ...],
        "Results to notify of: `success` is exit code 0, `loss` exit code 3, `failure` every other.",
    ] = ("failure", "loss")
    body: Annotated[str, 'JSON to send in place of the report, such as `{"text": "$summary"}`. A secret.'] = ""
    headers: Annotated[Properties, "Headers of the request. Their values are secrets."] = {}


class Encryption(msgspec.Struct, frozen=True, kw_only=True):
    """`[encryption]`"""

    key: Annotated[
        str | None,
        "Key of an encrypted archive: `file:/path`, `env:NAME` or `command:program arguments`. Unset: no encryption.",
    ] = None


class Ui(msgspec.Struct, frozen=True, kw_only=True):
    """`[ui]`: the web page"""

    listen: Annotated[str, "Address of the page."] = "127.0.0.1:8484"
    token: Annotated[str | None, "Token for browsers. Unset: a new one each time, in the printed link."] = None
    hosts: Annotated[Names, "Accepted host names, besides localhost and this machine's own."] = ()


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """`[serve]`: an archive that Kafka's clients read"""

    listen: Annotated[str, "Address for Kafka's clients."] = "127.0.0.1:9092"
    advertise: Annotated[
        str, "Address that clients are told to connect to, as they reach it. Unset: the one of `listen`."
    ] = ""
    topics: Annotated[Names, "Topics to serve: names or /regex/. Empty: all."] = ()
    exclude_topics: Annotated[Names, "Topics not to serve: names or /regex/."] = ()
    follow: Annotated[bool, "Serve new restore points as they come: logs grow, and readers go on."] = False
    memory_size: Annotated[Annotated[int, Meta(ge=64 << 20)], "Memory for records that are read, kept and sent."] = (
        512 << 20
    )
    commits: Annotated[
        Literal["memory", "refuse"],
        "Offsets that groups commit: `memory` keeps them until the end, `refuse` answers with an error.",
    ] = "memory"
    users: Annotated[
        str, "File of the users who may log in, made by `kbackup serve-user`. Unset: nobody has to log in."
    ] = ""
    tls_certificate: Annotated[str, "PEM file of the certificate for TLS, read again when it changes. Unset: none."] = (
        ""
    )
    tls_key: Annotated[str, "PEM file of the certificate's key, without a password."] = ""
    allow_plain: Annotated[
        bool,
        "Serve other machines without TLS, or without logins: whoever reaches the address reads every record, and the "
        "network sees them.",
    ] = False
    metrics_listen: Annotated[str, "Address of `/metrics` and `/healthz` (`127.0.0.1:9464`). Unset: none."] = ""


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """`[spark]`"""

    master: Annotated[str, "Spark's master URL, unless `spark-submit` starts kbackup."] = "local[*]"
    conf: Annotated[Properties, "Spark properties."] = {}
    task_attempts: Annotated[Positive, "Attempts of a task."] = 4
    allow_plain_secrets: Annotated[
        bool, "Send passwords and data keys to a cluster that neither authenticates nor encrypts its traffic."
    ] = False


def store_models() -> dict[str, type[Any]]:
    """Return the options of each kind of store by their section."""
    return {kind.section: kind.options for kind in KINDS.values() if kind.options is not None}


def default_stores() -> dict[str, Any]:
    return {section: model() for section, model in store_models().items()}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set; shown redacted wherever it is printed."""

    archive: Annotated[str | None, f"Address of the archive: {forms('`')}; `~` is your home directory."] = None
    archive_id: Annotated[
        SomeArchiveId | None, "Id of the archive. Commands refuse another archive and an empty address. Unset: any."
    ] = None
    source: Annotated[Properties, "librdkafka properties of the cluster to back up, and sources of its metadata."] = {}
    target: Annotated[Properties, "librdkafka properties of the cluster to restore into."] = {}
    metadata_cache: Annotated[
        bool,
        "Keep what `status`, `info`, `list`, `log`, `ls`, `cat`, `find`, `ui` and `serve` read of an archive's "
        "metadata, below `XDG_CACHE_HOME` or `~/.cache`. Also keep the number of the newest "
        "catalog, to notice when an archive was rolled back.",
    ] = True
    limit_rate: Annotated[
        Annotated[int, Meta(ge=1 << 20)] | None,
        "Most bytes per second between each machine and the archive, and to the target. Unset: no limit.",
    ] = None
    stores: StoreOptions = msgspec.field(default_factory=default_stores)
    encryption: Encryption = msgspec.field(default_factory=Encryption)
    backup: Backup = msgspec.field(default_factory=Backup)
    follow: Follow = msgspec.field(default_factory=Follow)
    rewrite: Rewrite = msgspec.field(default_factory=Rewrite)
    restore: Restore = msgspec.field(default_factory=Restore)
    ui: Ui = msgspec.field(default_factory=Ui)
    serve: Serve = msgspec.field(default_factory=Serve)
    export: Export = msgspec.field(default_factory=Export)
    notify: Notify = msgspec.field(default_factory=Notify)
    spark: Spark = msgspec.field(default_factory=Spark)
    schema_registry: RegistryOptions = msgspec.field(default_factory=RegistryOptions)
    target_schema_registry: RegistryOptions = msgspec.field(default_factory=RegistryOptions)

    def section(self, name: str) -> Any:
        return self.stores[name] if name in self.stores else getattr(self, name)

    @property
    def sources(self) -> Sources:
        """The place that the source's metadata are read from: brokers or ZooKeeper."""
        return Sources.of(self.source)

    def __repr__(self) -> str:
        return f"Config({redact(msgspec.to_builtins(self))})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(redact(msgspec.to_builtins(self)).items())
