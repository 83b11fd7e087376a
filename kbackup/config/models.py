"""The configuration's frozen models. They are the one table of keys: name, type, limits, default and meaning.

Field names carry the unit: `*_bytes` and `*_size` take sizes ("8MiB"), `*_seconds` and `*_timeout` durations
("90s").
Free-form fields (`dict[str, str]`) take any name below their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kbackup.config.secrets import redact
from kbackup.metadata.sources import Sources
from kbackup.store.options import S3Options

Names = tuple[str, ...]
Properties = dict[str, str]


S3_DOCS = {
    "endpoint_url": "The store's URL, for others than AWS.",
    "region": "The bucket's region.",
    "profile": "A profile of the AWS configuration files.",
    "path_style": "Buckets in the path rather than in the host name. Unset: where an endpoint is set.",
    "access_key_id": "Credentials. Unset: what the environment, the profile or the instance's role says.",
    "secret_access_key": "The secret to `access_key_id`.",
    "session_token": "The token of temporary credentials.",
    "sse": "Encryption by the store. Unset: the bucket's default.",
    "sse_kms_key_id": "The KMS key for `aws:kms`. Unset: the account's.",
    "storage_class": "The storage class of segments. Unset: the bucket's default.",
    "checksum": "What the store checks on upload; `none` for stores that know no CRC-64/NVME.",
    "part_size": "Size of an uploaded part.",
    "parts_in_flight": "Parts of one upload that are sent at the same time.",
    "max_attempts": "How often a request is tried.",
    "connect_timeout": "How long to wait for a connection.",
    "read_timeout": "How long to wait for an answer.",
    "ca_bundle": "A PEM file of certificates to trust, in place of the system's.",
    "requester_pays": "Accept the bill of reading somebody else's bucket.",
    "expected_bucket_owner": "The account that must own the bucket.",
    "object_lock_mode": "Put objects under retention when they are written; the bucket must have object lock.",
    "object_lock_days": "For how many days.",
}
"""The meaning of `[s3]`'s keys; the keys themselves are the fields of `S3Options`."""


class Encryption(msgspec.Struct, frozen=True, kw_only=True):
    """`[encryption]`"""

    key: Annotated[
        str | None,
        Meta(
            description="The key that the archive is encrypted under: `file:/path`, `env:NAME` or "
            "`command:program arguments`. Unset: kbackup encrypts nothing."
        ),
    ] = None


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """`[backup]`"""

    topics: Annotated[Names, Meta(description="Topics to back up: names or /regex/. Empty: all.")] = ()
    exclude_topics: Annotated[Names, Meta(description="Topics to leave out: names or /regex/.")] = ()
    groups: Annotated[
        Names, Meta(description="Consumer groups whose offsets are saved: names or /regex/. Empty: all.")
    ] = ()
    exclude_groups: Annotated[Names, Meta(description="Consumer groups to leave out: names or /regex/.")] = ()
    segment_bytes: Annotated[
        int, Meta(ge=1, description="A segment ends with the record that makes its file larger than this.")
    ] = 128 << 20
    compression: Annotated[
        Literal["none", "zstd"],
        Meta(description="How segments are stored. `none` is the documented format byte for byte."),
    ] = "none"
    isolation_level: Annotated[
        Literal["read_committed", "read_uncommitted"],
        Meta(description="Whether records of open and aborted transactions are left out."),
    ] = "read_committed"
    split_records: Annotated[
        int, Meta(ge=1, description="Offsets per range that a big partition is cut into.")
    ] = 4_000_000
    pack_records: Annotated[
        int, Meta(ge=1, description="Small partitions are packed into one task up to this many offsets.")
    ] = 200_000
    lease_seconds: Annotated[
        int, Meta(ge=5, description="How long the writer's lease holds without being renewed.")
    ] = 60
    allow_loss: Annotated[
        bool, Meta(description="End with exit code 0 instead of 3 when the run reports a loss.")
    ] = False
    adopt_topics: Annotated[
        bool,
        Meta(
            description="Go on after topics of the archive whose id is not known, with those of the same name."
        ),
    ] = False
    adopt_cluster: Annotated[
        bool,
        Meta(description="Go on after the backups of another cluster: for a cluster that was rebuilt."),
    ] = False
    poll_timeout_seconds: Annotated[
        int, Meta(ge=1, description="A task fails after so long without progress.")
    ] = 60


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """`[follow]`: `backup --follow`"""

    interval_seconds: Annotated[
        float, Meta(ge=0.1, description="How often there is a restore point, where there is anything new.")
    ] = 60
    max_age_seconds: Annotated[
        float, Meta(ge=0, description="How long new records of a partition may wait to become a segment.")
    ] = 600
    small_bytes: Annotated[
        int, Meta(ge=0, description="A partition with less than this of new records waits for more.")
    ] = 1 << 20
    small_segments: Annotated[
        int, Meta(ge=0, description="So many of those that wait go with each restore point all the same.")
    ] = 100
    listen: Annotated[
        str,
        Meta(description="Where `/metrics` and `/healthz` are served (`127.0.0.1:9464`). Unset: nowhere."),
    ] = ""
    stale_after_seconds: Annotated[
        float,
        Meta(
            ge=1,
            description="`/healthz` says 503 when no round has ended well for so long; more than the interval.",
        ),
    ] = 300
    topic_metrics: Annotated[
        bool, Meta(description="Count the lag of each topic, too: as many series as there are topics.")
    ] = False


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """`[restore]`"""

    backup: Annotated[
        int | Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,99}$")],
        Meta(description="The restore point: its number, its label, or `latest`."),
    ] = "latest"
    to_time: Annotated[
        str | None,
        Meta(description="Restore records up to this time, itself included, with topics and groups of then."),
    ] = None
    from_time: Annotated[
        str | None, Meta(description="Restore records from this time on, itself included.")
    ] = None
    range: Annotated[
        Names,
        Meta(
            description="Restore these offsets alone: `from` included, `to` not, either may be left out "
            "(`orders:0:500-900`)."
        ),
    ] = ()
    topics: Annotated[Names, Meta(description="Topics to restore: names or /regex/. Empty: all.")] = ()
    exclude_topics: Annotated[Names, Meta(description="Topics to leave out: names or /regex/.")] = ()
    map: Annotated[
        Properties, Meta(description="New names of topics, by their old one (`orders=orders-restored`).")
    ] = {}
    map_regex: Annotated[
        Names,
        Meta(description=r"New names by `pattern=replacement`, first match wins (`^(.*)$=restored.\1`)."),
    ] = ()
    groups: Annotated[
        Names, Meta(description="Consumer groups to restore: names or /regex/. Empty: all.")
    ] = ()
    exclude_groups: Annotated[Names, Meta(description="Consumer groups to leave out: names or /regex/.")] = ()
    no_groups: Annotated[bool, Meta(description="Restore no consumer group.")] = False
    map_group: Annotated[Properties, Meta(description="New names of consumer groups, by their old one.")] = {}
    settings: Annotated[
        tuple[Literal["acls", "configs", "quotas", "users"], ...],
        Meta(
            description="What to restore beside records: `acls`, `configs` of brokers and groups and subscriptions to "
            "client metrics, `quotas` of clients, `users` (whose secrets no running cluster takes: they are listed)."
        ),
    ] = ()
    replication_factor: Annotated[
        Annotated[int, Meta(ge=1, le=32767)] | None,
        Meta(description="Replication factor of the topics that are made. Unset: as archived."),
    ] = None
    topic_config: Annotated[
        Properties, Meta(description="Topic configs that take the place of the archived ones.")
    ] = {}
    into_existing: Annotated[
        bool, Meta(description="Allow target topics that exist and hold records already.")
    ] = False
    strict: Annotated[
        bool, Meta(description="Refuse to restore where the archive has lost records of it by damage.")
    ] = False
    transactions: Annotated[
        bool,
        Meta(description="Exactly-once by transactions. Without: no gaps in target offsets, at-least-once."),
    ] = True
    transaction_bytes: Annotated[
        int, Meta(ge=1, description="A transaction is committed when it holds this much.")
    ] = 32 << 20
    state: Annotated[
        str | None,
        Meta(
            description="Where restores keep plans, offset maps and reports, and mirrors the state"
            " of their flows. Unset: in the archive."
        ),
    ] = None
    from_delta: Annotated[
        str | None,
        Meta(description="Restore records from the Delta tables at this place, not from an archive."),
    ] = None
    restore_id: Annotated[
        str | None, Meta(description="Names a restore, so that it can be resumed. Unset: a new one is made.")
    ] = None


class Ui(msgspec.Struct, frozen=True, kw_only=True):
    """`[ui]`: the web page"""

    listen: Annotated[str, Meta(description="Where the page is served.")] = "127.0.0.1:8484"
    token: Annotated[
        str | None,
        Meta(description="What browsers must know. Unset: a new one each time, printed as part of the link."),
    ] = None
    hosts: Annotated[
        Names,
        Meta(description="Names under which browsers may come, beside localhost and this machine's own."),
    ] = ()


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """`[export]`: what `export` and, after the restore point, `backup` write"""

    delta: Annotated[
        str | None,
        Meta(description="Keep Delta tables in step with the archive: `s3://bucket/prefix` or a path."),
    ] = None
    parquet: Annotated[
        str | None,
        Meta(description="Where `export` writes Parquet files: `s3://bucket/prefix` or a path."),
    ] = None
    one_table: Annotated[
        bool, Meta(description="One Delta table for all topics, in place of one for each.")
    ] = False
    topics: Annotated[Names, Meta(description="Topics to export: names or /regex/. Empty: all.")] = ()
    exclude_topics: Annotated[Names, Meta(description="Topics to leave out: names or /regex/.")] = ()


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """`[spark]`"""

    master: Annotated[
        str, Meta(description="Spark's master URL, where no session is given by `spark-submit`.")
    ] = "local[*]"
    conf: Annotated[Properties, Meta(description="Spark properties, as they are.")] = {}
    task_attempts: Annotated[int, Meta(ge=1, description="How often a task is tried.")] = 4


class SchemaRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """`[schema_registry]`: where `cat` and `find` ask for the schemas of keys and values"""

    url: Annotated[
        str,
        Meta(description="Where the schema registry is: `https://host:8081`. It is asked where decoding is."),
    ] = ""
    user: Annotated[str, Meta(description="The user that the registry knows, or an API key.")] = ""
    password: Annotated[str, Meta(description="The password to `user`, or an API secret.")] = ""
    token: Annotated[str, Meta(description="A bearer token, in place of a user.")] = ""
    ca_bundle: Annotated[
        str, Meta(description="A PEM file of certificates to trust. Unset: the package certifi's.")
    ] = ""
    client_certificate: Annotated[
        str, Meta(description="A PEM file with the certificate that kbackup shows to the registry.")
    ] = ""
    client_key: Annotated[str, Meta(description="A PEM file with the certificate's private key.")] = ""
    client_key_password: Annotated[str, Meta(description="The password to `client_key`.")] = ""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set; shown redacted wherever it is printed."""

    archive: Annotated[
        str | None,
        Meta(description="Where the archive is: `s3://bucket/prefix` or a path; `~` is your home directory."),
    ] = None
    archive_id: Annotated[
        str | None,
        Meta(
            description="The id of the archive that must be there: commands refuse another one, and an empty place. "
            "Unset: any.",
        ),
    ] = None
    source: Annotated[
        Properties,
        Meta(
            description="librdkafka properties of the cluster that is backed up; also where else its metadata is read."
        ),
    ] = {}
    target: Annotated[
        Properties, Meta(description="librdkafka properties of the cluster that is restored into.")
    ] = {}
    metadata_cache: Annotated[
        bool,
        Meta(
            description="Keep what `info`, `list`, `log`, `ls`, `cat`, `find` and `ui` read of an archive's metadata "
            "in a bucket for the next of them, below `XDG_CACHE_HOME` or `~/.cache`; also the newest catalog that "
            "any command saw, so that an archive that went back is noticed."
        ),
    ] = True
    s3: S3Options = msgspec.field(default_factory=S3Options)
    encryption: Encryption = msgspec.field(default_factory=Encryption)
    backup: Backup = msgspec.field(default_factory=Backup)
    follow: Follow = msgspec.field(default_factory=Follow)
    restore: Restore = msgspec.field(default_factory=Restore)
    ui: Ui = msgspec.field(default_factory=Ui)
    export: Export = msgspec.field(default_factory=Export)
    spark: Spark = msgspec.field(default_factory=Spark)
    schema_registry: SchemaRegistry = msgspec.field(default_factory=SchemaRegistry)

    @property
    def sources(self) -> Sources:
        """Where the metadata of the source is read."""
        return Sources.of(self.source)

    def __repr__(self) -> str:
        return f"Config({redact(msgspec.to_builtins(self))})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(redact(msgspec.to_builtins(self)).items())
