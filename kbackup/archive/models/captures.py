"""The documents of a capture: groups.json and metadata.json."""

from __future__ import annotations

from typing import Literal

import msgspec

from kbackup.archive.models.document import Document, Member
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
    Znode,
)


class GroupOffset(Member, frozen=True, kw_only=True):
    """`offset` is the next to read; `leader_epoch` is null where none was committed."""

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
        """Return the source of a part of the metadata; None where the part was not captured."""
        return self.sources.get(part)
