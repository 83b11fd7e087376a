"""The metadata of a cluster as read from one source."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The parts of a cluster's metadata that `source` has, named as in metadata.json. None: not read.

    `not_carried` has the reasons, unless the source never has the part. `outdated`: why the source is no longer the
    truth of the cluster, such as ZooKeeper after a migration; "" where it is. `migration`: Kafka's word for the state
    of the migration, from a metadata log that has it.
    """

    source: Source
    cluster_id: str
    topics: tuple[TopicMetadata, ...] | None = None
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
    not_carried: tuple[NotCarried, ...] = ()
    outdated: str = ""
    migration: str = ""

    def source_of(self, part: MetadataPartName) -> Source:
        """The source of each part."""
        return self.source
