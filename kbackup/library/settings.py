"""The keys of sections as arguments of functions: a type checker knows their names and what they take.

A test holds them against the models of the configuration, which are the one table of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Literal, TypedDict

Time = str | int | datetime
"""A time: text such as '2h ago' or RFC 3339, milliseconds since 1970, or a datetime with a zone. Text without a zone is
in the zone of this machine."""


class BackupSettings(TypedDict, total=False):
    """Keys of the section `backup`, as `kbackup.backup` and `kbackup.status` take them. Sizes are bytes or text
    ("8MiB"), durations are seconds or text ("26h")."""

    topics: Collection[str]
    exclude_topics: Collection[str]
    groups: Collection[str]
    exclude_groups: Collection[str]
    segment_bytes: int | str
    compression: Literal["none", "zstd"]
    isolation_level: Literal["read_committed", "read_uncommitted"]
    transactions: Literal["whole", "partition"]
    transaction_wait_seconds: float | str
    split_records: int
    pack_records: int
    small_without_spark: bool
    lease_seconds: float | str
    wait: bool
    max_age: float | str
    max_drill_age: float | str
    allow_loss: bool
    recheck_compacted: bool
    recheck_bytes: int | str
    schemas: Literal["used", "all", "none"]
    adopt_topics: bool
    adopt_cluster: bool
    poll_timeout_seconds: float | str


class RestoreSettings(TypedDict, total=False):
    """Keys of the section `restore`, as `kbackup.restore` takes them."""

    restore_point: int | str
    to_time: Time | None
    from_time: Time | None
    range: Collection[str]
    skip: Collection[str]
    where: str | None
    transform: str | None
    topics: Collection[str]
    exclude_topics: Collection[str]
    map: Mapping[str, str]
    map_regex: Collection[str]
    groups: Collection[str]
    exclude_groups: Collection[str]
    no_groups: bool
    map_group: Mapping[str, str]
    schemas: Literal["same", "map", "none"] | None
    subject_prefix: str
    schemas_topics: Collection[str]
    no_schemas_topics: Collection[str]
    unmapped: Literal["keep", "fail"] | None
    settings: Collection[Literal["acls", "configs", "quotas", "users"]]
    replication_factor: int | None
    topic_config: Mapping[str, str]
    into_existing: bool
    strict: bool
    transactions: bool
    transaction_bytes: int | str
    same_offsets: bool
    fill: Literal["markers", "aborted", "tombstones"] | None
    state: str | None
    restore_id: str | None
