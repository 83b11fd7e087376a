"""Metadata records by apiKey, control records by type. Written by scripts.dev.metadata_schemas."""

from __future__ import annotations

from kbackup.kafka.metadata_log.schema import Field, Schema

RECORDS: dict[int, Schema] = {
    0: Schema(
        "RegisterBrokerRecord",
        4,
        (
            Field("brokerId", "int32"),
            Field("isMigratingZkBroker", "bool", since=2, default=False),
            Field("incarnationId", "uuid"),
            Field("brokerEpoch", "int64"),
            Field(
                "endPoints",
                "[]struct",
                fields=(
                    Field("name", "string"),
                    Field("host", "string"),
                    Field("port", "uint16"),
                    Field("securityProtocol", "int16"),
                ),
            ),
            Field(
                "features",
                "[]struct",
                fields=(
                    Field("name", "string"),
                    Field("minSupportedVersion", "int16"),
                    Field("maxSupportedVersion", "int16"),
                ),
            ),
            Field("rack", "string", nullable=0),
            Field("fenced", "bool", default=True),
            Field("inControlledShutdown", "bool", since=1, default=False),
            Field("logDirs", "[]uuid", since=3, tag=0),
            Field("cordonedLogDirs", "[]uuid", since=4, nullable=4, tag=1, default=None),
        ),
    ),
    1: Schema(
        "UnregisterBrokerRecord",
        0,
        (
            Field("brokerId", "int32"),
            Field("brokerEpoch", "int64"),
        ),
    ),
    2: Schema(
        "TopicRecord",
        0,
        (
            Field("name", "string"),
            Field("topicId", "uuid"),
        ),
    ),
    3: Schema(
        "PartitionRecord",
        2,
        (
            Field("partitionId", "int32", default=-1),
            Field("topicId", "uuid"),
            Field("replicas", "[]int32"),
            Field("isr", "[]int32"),
            Field("removingReplicas", "[]int32"),
            Field("addingReplicas", "[]int32"),
            Field("leader", "int32", default=-1),
            Field("leaderRecoveryState", "int8", tag=0, default=0),
            Field("leaderEpoch", "int32", default=-1),
            Field("partitionEpoch", "int32", default=-1),
            Field("directories", "[]uuid", since=1),
            Field("eligibleLeaderReplicas", "[]int32", since=2, nullable=2, tag=1, default=None),
            Field("lastKnownElr", "[]int32", since=2, nullable=2, tag=2, default=None),
        ),
    ),
    4: Schema(
        "ConfigRecord",
        0,
        (
            Field("resourceType", "int8"),
            Field("resourceName", "string"),
            Field("name", "string"),
            Field("value", "string", nullable=0),
        ),
    ),
    5: Schema(
        "PartitionChangeRecord",
        2,
        (
            Field("partitionId", "int32", default=-1),
            Field("topicId", "uuid"),
            Field("isr", "[]int32", nullable=0, tag=0, default=None),
            Field("leader", "int32", tag=1, default=-2),
            Field("replicas", "[]int32", nullable=0, tag=2, default=None),
            Field("removingReplicas", "[]int32", nullable=0, tag=3, default=None),
            Field("addingReplicas", "[]int32", nullable=0, tag=4, default=None),
            Field("leaderRecoveryState", "int8", tag=5, default=-1),
            Field("directories", "[]uuid", since=1, nullable=1, tag=8, default=None),
            Field("eligibleLeaderReplicas", "[]int32", since=2, nullable=2, tag=6, default=None),
            Field("lastKnownElr", "[]int32", since=2, nullable=2, tag=7, default=None),
        ),
    ),
    7: Schema(
        "FenceBrokerRecord",
        0,
        (
            Field("id", "int32"),
            Field("epoch", "int64"),
        ),
    ),
    8: Schema(
        "UnfenceBrokerRecord",
        0,
        (
            Field("id", "int32"),
            Field("epoch", "int64"),
        ),
    ),
    9: Schema("RemoveTopicRecord", 0, (Field("topicId", "uuid"),)),
    10: Schema(
        "DelegationTokenRecord",
        0,
        (
            Field("owner", "string"),
            Field("requester", "string"),
            Field("renewers", "[]string"),
            Field("issueTimestamp", "int64"),
            Field("maxTimestamp", "int64"),
            Field("expirationTimestamp", "int64"),
            Field("tokenId", "string"),
        ),
    ),
    11: Schema(
        "UserScramCredentialRecord",
        0,
        (
            Field("name", "string"),
            Field("mechanism", "int8"),
            Field("salt", "bytes"),
            Field("storedKey", "bytes"),
            Field("serverKey", "bytes"),
            Field("iterations", "int32"),
        ),
    ),
    12: Schema(
        "FeatureLevelRecord",
        0,
        (
            Field("name", "string"),
            Field("featureLevel", "int16"),
        ),
    ),
    14: Schema(
        "ClientQuotaRecord",
        0,
        (
            Field(
                "entity",
                "[]struct",
                fields=(
                    Field("entityType", "string"),
                    Field("entityName", "string", nullable=0),
                ),
            ),
            Field("key", "string"),
            Field("value", "float64"),
            Field("remove", "bool"),
        ),
    ),
    15: Schema(
        "ProducerIdsRecord",
        0,
        (
            Field("brokerId", "int32"),
            Field("brokerEpoch", "int64", default=-1),
            Field("nextProducerId", "int64"),
        ),
    ),
    17: Schema(
        "BrokerRegistrationChangeRecord",
        3,
        (
            Field("brokerId", "int32"),
            Field("brokerEpoch", "int64"),
            Field("fenced", "int8", tag=0),
            Field("inControlledShutdown", "int8", since=1, tag=1),
            Field("logDirs", "[]uuid", since=2, tag=2),
            Field("cordonedLogDirs", "[]uuid", since=3, nullable=3, tag=3, default=None),
        ),
    ),
    18: Schema(
        "AccessControlEntryRecord",
        0,
        (
            Field("id", "uuid"),
            Field("resourceType", "int8"),
            Field("resourceName", "string"),
            Field("patternType", "int8"),
            Field("principal", "string"),
            Field("host", "string"),
            Field("operation", "int8"),
            Field("permissionType", "int8"),
        ),
    ),
    19: Schema("RemoveAccessControlEntryRecord", 0, (Field("id", "uuid"),)),
    20: Schema("NoOpRecord", 0, ()),
    21: Schema("ZkMigrationStateRecord", 0, (Field("zkMigrationState", "int8"),)),
    22: Schema(
        "RemoveUserScramCredentialRecord",
        0,
        (
            Field("name", "string"),
            Field("mechanism", "int8"),
        ),
    ),
    23: Schema("BeginTransactionRecord", 0, (Field("name", "string", nullable=0, tag=0, default=None),)),
    24: Schema("EndTransactionRecord", 0, ()),
    25: Schema("AbortTransactionRecord", 0, (Field("reason", "string", nullable=0, tag=0, default=None),)),
    26: Schema("RemoveDelegationTokenRecord", 0, (Field("tokenId", "string"),)),
    27: Schema(
        "RegisterControllerRecord",
        0,
        (
            Field("controllerId", "int32"),
            Field("incarnationId", "uuid"),
            Field("zkMigrationReady", "bool"),
            Field(
                "endPoints",
                "[]struct",
                fields=(
                    Field("name", "string"),
                    Field("host", "string"),
                    Field("port", "uint16"),
                    Field("securityProtocol", "int16"),
                ),
            ),
            Field(
                "features",
                "[]struct",
                fields=(
                    Field("name", "string"),
                    Field("minSupportedVersion", "int16"),
                    Field("maxSupportedVersion", "int16"),
                ),
            ),
        ),
    ),
    28: Schema("ClearElrRecord", 0, (Field("topicName", "string"),)),
}


CONTROL_RECORDS: dict[int, Schema] = {
    2: Schema(
        "LeaderChangeMessage",
        1,
        (
            Field("version", "int16"),
            Field("leaderId", "int32"),
            Field(
                "voters",
                "[]struct",
                fields=(
                    Field("voterId", "int32"),
                    Field("voterDirectoryId", "uuid", since=1),
                ),
            ),
            Field(
                "grantingVoters",
                "[]struct",
                fields=(
                    Field("voterId", "int32"),
                    Field("voterDirectoryId", "uuid", since=1),
                ),
            ),
        ),
    ),
    3: Schema(
        "SnapshotHeaderRecord",
        0,
        (
            Field("version", "int16"),
            Field("lastContainedLogTimestamp", "int64"),
        ),
    ),
    4: Schema("SnapshotFooterRecord", 0, (Field("version", "int16"),)),
    5: Schema(
        "KRaftVersionRecord",
        0,
        (
            Field("version", "int16"),
            Field("kRaftVersion", "int16"),
        ),
    ),
    6: Schema(
        "VotersRecord",
        0,
        (
            Field("version", "int16"),
            Field(
                "voters",
                "[]struct",
                fields=(
                    Field("voterId", "int32"),
                    Field("voterDirectoryId", "uuid"),
                    Field(
                        "endpoints",
                        "[]struct",
                        fields=(
                            Field("name", "string"),
                            Field("host", "string"),
                            Field("port", "uint16"),
                        ),
                    ),
                    Field(
                        "kRaftVersionFeature",
                        "struct",
                        fields=(
                            Field("minSupportedVersion", "int16"),
                            Field("maxSupportedVersion", "int16"),
                        ),
                    ),
                ),
            ),
        ),
    ),
}
