"""The configuration's frozen models. They are the one table of keys: name, type, limits, default and meaning.

Field names carry the unit: `*_bytes` and `*_size` take sizes ("8MiB"), `*_seconds`, `*_timeout` and `max_age` durations
("90s").
Free-form fields (`dict[str, str]`) take any name below their own.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kbackup.config.jobs import Backup, Export, Follow, Notify, Restore
from kbackup.config.secrets import redact
from kbackup.config.types import Names, Properties
from kbackup.metadata.sources import Sources
from kbackup.store.options import S3Options
from kbackup.util.text import SomeArchiveId

S3_DOCS = {
    "endpoint_url": "URL of the S3 server. Unset: AWS.",
    "region": "Region of the bucket.",
    "profile": "Profile of the AWS configuration files.",
    "path_style": "Put the bucket in the path of the URL. Unset: if an endpoint is set.",
    "access_key_id": "Access key. Unset: from the environment, the profile or the instance's role.",
    "secret_access_key": "Secret of `access_key_id`.",
    "session_token": "Token of temporary credentials.",
    "sse": "Encryption by the store. Unset: the bucket's default.",
    "sse_kms_key_id": "KMS key for `aws:kms`. Unset: the account's.",
    "storage_class": "Storage class of segments. Unset: the bucket's default.",
    "checksum": "Checksum of uploads; `none` for stores without CRC-64/NVME.",
    "part_size": "Size of an upload part.",
    "parts_in_flight": "Upload parts of one object in flight.",
    "max_attempts": "Attempts of a request.",
    "connect_timeout": "Time limit for a connection.",
    "read_timeout": "Time limit for an answer.",
    "ca_bundle": "PEM file of certificates to trust, in place of the system's.",
    "requester_pays": "Pay for reading somebody else's bucket.",
    "expected_bucket_owner": "Account that must own the bucket.",
    "object_lock_mode": "Lock objects when they are written. The bucket needs object lock.",
    "object_lock_days": "Days of the object lock.",
}
"""The meaning of `[s3]`'s keys; the keys themselves are the fields of `S3Options`."""


class Encryption(msgspec.Struct, frozen=True, kw_only=True):
    """`[encryption]`"""

    key: Annotated[
        str | None,
        Meta(
            description="Key of an encrypted archive: `file:/path`, `env:NAME` or `command:program arguments`. "
            "Unset: no encryption."
        ),
    ] = None


class Ui(msgspec.Struct, frozen=True, kw_only=True):
    """`[ui]`: the web page"""

    listen: Annotated[str, Meta(description="Address of the page.")] = "127.0.0.1:8484"
    token: Annotated[
        str | None,
        Meta(description="Token for browsers. Unset: a new one each time, in the printed link."),
    ] = None
    hosts: Annotated[
        Names,
        Meta(description="Accepted host names, besides localhost and this machine's own."),
    ] = ()


class Spark(msgspec.Struct, frozen=True, kw_only=True):
    """`[spark]`"""

    master: Annotated[str, Meta(description="Spark's master URL, unless `spark-submit` starts kbackup.")] = (
        "local[*]"
    )
    conf: Annotated[Properties, Meta(description="Spark properties.")] = {}
    task_attempts: Annotated[int, Meta(ge=1, description="Attempts of a task.")] = 4
    allow_plain_secrets: Annotated[
        bool,
        Meta(
            description="Send passwords and data keys to a cluster that neither authenticates nor encrypts its traffic."
        ),
    ] = False


class SchemaRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """`[schema_registry]`: where `cat` and `find` ask for the schemas of keys and values"""

    url: Annotated[
        str,
        Meta(description="URL of the schema registry: `https://host:8081`."),
    ] = ""
    user: Annotated[str, Meta(description="User of the registry, or an API key.")] = ""
    password: Annotated[str, Meta(description="Password of `user`, or an API secret.")] = ""
    token: Annotated[str, Meta(description="Bearer token, in place of a user.")] = ""
    ca_bundle: Annotated[
        str, Meta(description="PEM file of certificates to trust. Unset: those of the package certifi.")
    ] = ""
    client_certificate: Annotated[str, Meta(description="PEM file of kbackup's client certificate.")] = ""
    client_key: Annotated[str, Meta(description="PEM file of the certificate's private key.")] = ""
    client_key_password: Annotated[str, Meta(description="Password of `client_key`.")] = ""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set; shown redacted wherever it is printed."""

    archive: Annotated[
        str | None,
        Meta(
            description="Address of the archive: `s3://bucket/prefix` or a path; `~` is your home directory."
        ),
    ] = None
    archive_id: Annotated[
        SomeArchiveId | None,
        Meta(
            description="Id of the archive. Commands refuse another archive and an empty address. Unset: any.",
        ),
    ] = None
    source: Annotated[
        Properties,
        Meta(description="librdkafka properties of the cluster to back up, and sources of its metadata."),
    ] = {}
    target: Annotated[
        Properties, Meta(description="librdkafka properties of the cluster to restore into.")
    ] = {}
    metadata_cache: Annotated[
        bool,
        Meta(
            description="Keep what `status`, `info`, `list`, `log`, `ls`, `cat`, `find` and `ui` read of an archive's "
            "metadata, below `XDG_CACHE_HOME` or `~/.cache`. Also keep the number of the newest "
            "catalog, to notice an archive that went back."
        ),
    ] = True
    s3: S3Options = msgspec.field(default_factory=S3Options)
    encryption: Encryption = msgspec.field(default_factory=Encryption)
    backup: Backup = msgspec.field(default_factory=Backup)
    follow: Follow = msgspec.field(default_factory=Follow)
    restore: Restore = msgspec.field(default_factory=Restore)
    ui: Ui = msgspec.field(default_factory=Ui)
    export: Export = msgspec.field(default_factory=Export)
    notify: Notify = msgspec.field(default_factory=Notify)
    spark: Spark = msgspec.field(default_factory=Spark)
    schema_registry: SchemaRegistry = msgspec.field(default_factory=SchemaRegistry)

    @property
    def sources(self) -> Sources:
        """The place that the source's metadata are read from: brokers or ZooKeeper."""
        return Sources.of(self.source)

    def __repr__(self) -> str:
        return f"Config({redact(msgspec.to_builtins(self))})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(redact(msgspec.to_builtins(self)).items())
