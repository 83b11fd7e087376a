"""Answer what clients ask of settings: configs, ACLs, quotas and users, as the restore point has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbackup.archive.segments.table import sum_of
from kbackup.kafka.control.messages import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, admin
from kbackup.metadata.entities import ACL_OPERATIONS, ACL_PATTERNS, ACL_PERMISSIONS, ACL_RESOURCES, Acl, ClientQuota
from kbackup.serve.current import Current
from kbackup.serve.logs import ServedArchive
from kbackup.serve.protocol import BROKER_ID, Api, ClientRequest, ErrorCode, RequestRefusedError

_TOPIC = 2
_BROKER = 4
_CLIENT_METRICS = 16
_GROUP = 32

_SOURCES = {_TOPIC: 1, _BROKER: 3, _CLIENT_METRICS: 7, _GROUP: 8}
"""Where a config comes from, by the kind of its resource: it was set on the resource itself."""

_ANY = 1
_MATCH = 2
_WILDCARD = "*"

_RESOURCES = {word: number for number, word in ACL_RESOURCES.items()}
_PATTERNS = {word: number for number, word in ACL_PATTERNS.items()}
_OPERATIONS = {word: number for number, word in ACL_OPERATIONS.items()}
_PERMISSIONS = {word: number for number, word in ACL_PERMISSIONS.items()}
_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}

_EXACT, _DEFAULT = 0, 1
"""How a filter of quotas matches a part of their entity."""

_LOG_FOLDER = "/archive"

_Configs = admin.DescribeConfigsResponse.DescribeConfigsResult
_Config = _Configs.DescribeConfigsResourceResult
_Resource = admin.ListConfigResourcesResponse.ConfigResource
_AclResource = admin.DescribeAclsResponse.DescribeAclsResource
_AclEntry = _AclResource.AclDescription
_Quota = admin.DescribeClientQuotasResponse.EntryData
_User = admin.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_LogFolder = admin.DescribeLogDirsResponse.DescribeLogDirsResult
_LogTopic = _LogFolder.DescribeLogDirsTopic
_Producers = admin.DescribeProducersResponse.TopicResponse
_Transaction = admin.DescribeTransactionsResponse.TransactionState


class ArchivedSettings:
    """Answers what is asked of settings, and of what an archive has none of: producers, transactions, moves."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def apis(self) -> list[Api]:
        return [
            Api(admin.DescribeConfigsRequest, admin.DescribeConfigsResponse, 1, 4, self.configs),
            Api(admin.ListConfigResourcesRequest, admin.ListConfigResourcesResponse, 0, 1, self.config_resources),
            Api(admin.DescribeAclsRequest, admin.DescribeAclsResponse, 1, 3, self.acls),
            Api(admin.DescribeClientQuotasRequest, admin.DescribeClientQuotasResponse, 0, 1, self.quotas),
            Api(
                admin.DescribeUserScramCredentialsRequest, admin.DescribeUserScramCredentialsResponse, 0, 0, self.users
            ),
            Api(admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse, 1, 4, self.log_folders),
            Api(admin.DescribeProducersRequest, admin.DescribeProducersResponse, 0, 0, self.producers),
            Api(admin.ListTransactionsRequest, admin.ListTransactionsResponse, 0, 2, self.transactions),
            Api(admin.DescribeTransactionsRequest, admin.DescribeTransactionsResponse, 0, 0, self.transaction),
            Api(
                admin.ListPartitionReassignmentsRequest,
                admin.ListPartitionReassignmentsResponse,
                0,
                0,
                self.reassignments,
            ),
            Api(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, 1, 3, self.tokens),
        ]

    async def configs(self, request: ClientRequest) -> Any:
        results = [self._described(resource) for resource in request.message.resources]
        return admin.DescribeConfigsResponse(results=results)

    def _described(self, resource: Any) -> Any:
        archive = self._current.archive
        kind, name = resource.resource_type, resource.resource_name
        configs: Mapping[str, str | None] = {}
        if kind == _TOPIC and name not in archive.topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif kind not in _SOURCES:
            code = ErrorCode.INVALID_REQUEST
        else:
            code, configs = ErrorCode.NONE, _configs_of(archive, kind, name)
        wanted = resource.configuration_keys
        entries: list[Any] = []
        for key, value in sorted(configs.items()):
            if wanted is not None and key not in wanted:
                continue
            entry = _Config(
                name=key,
                value=value,
                read_only=True,
                config_source=_SOURCES[kind],
                is_sensitive=value is None,
                synonyms=[],
                config_type=0,
                documentation=None,
            )
            entries.append(entry)
        return _Configs(error_code=code, error_message=None, resource_type=kind, resource_name=name, configs=entries)

    async def config_resources(self, request: ClientRequest) -> Any:
        archive = self._current.archive
        kinds = request.message.resource_types or ()
        if not kinds:
            # No kinds are all; version 0 lists client metrics alone.
            kinds = (_CLIENT_METRICS,) if request.version == 0 else tuple(_SOURCES)
        names: dict[int, Iterable[str]] = {_TOPIC: archive.topics, _BROKER: (str(BROKER_ID),)}
        if archive.metadata is not None:
            names[_CLIENT_METRICS] = [each.name for each in archive.metadata.client_metrics or ()]
            names[_GROUP] = {each.group for each in archive.metadata.group_configs or ()}
        resources: list[Any] = []
        for kind in kinds:
            for name in sorted(names.get(kind, ())):
                resources.append(_Resource(resource_name=name, resource_type=kind))
        return admin.ListConfigResourcesResponse(config_resources=resources)

    async def acls(self, request: ClientRequest) -> Any:
        metadata = self._current.archive.metadata
        if metadata is None or metadata.acls is None:
            raise RequestRefusedError(ErrorCode.SECURITY_DISABLED, "the archive has no ACLs of its cluster")
        by_resource: dict[tuple[str, str, str], list[Acl]] = {}
        for acl in metadata.acls:
            if _passes(request.message, acl):
                by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
        resources: list[Any] = []
        for (resource, name, pattern), acls in by_resource.items():
            entries = [
                _AclEntry(
                    principal=acl.principal,
                    host=acl.host,
                    operation=_OPERATIONS.get(acl.operation, 0),
                    permission_type=_PERMISSIONS.get(acl.permission, 0),
                )
                for acl in acls
            ]
            described = _AclResource(
                resource_type=_RESOURCES.get(resource, 0),
                resource_name=name,
                pattern_type=_PATTERNS.get(pattern, 0),
                acls=entries,
            )
            resources.append(described)
        return admin.DescribeAclsResponse(error_code=0, error_message=None, resources=resources)

    async def quotas(self, request: ClientRequest) -> Any:
        metadata = self._current.archive.metadata
        known = metadata.client_quotas if metadata is not None else None
        entries: list[Any] = []
        for quota in known or ():
            if not _is_asked_for(request.message, quota):
                continue
            entity = [_Quota.EntityData(entity_type=kind, entity_name=name) for kind, name in quota.entity.items()]
            values = [_Quota.ValueData(key=key, value=value) for key, value in quota.quotas.items()]
            entries.append(_Quota(entity=entity, values=values))
        return admin.DescribeClientQuotasResponse(error_code=0, error_message=None, entries=entries)

    async def users(self, request: ClientRequest) -> Any:
        metadata = self._current.archive.metadata
        known = metadata.scram_users if metadata is not None else None
        credentials: dict[str, list[Any]] = {}
        for user in known or ():
            info = _User.CredentialInfo(mechanism=_MECHANISMS.get(user.mechanism, 0), iterations=user.iterations)
            credentials.setdefault(user.user, []).append(info)
        asked = [each.name for each in request.message.users or ()]
        results: list[Any] = []
        for name in asked or sorted(credentials):
            found = credentials.get(name, [])
            code = ErrorCode.NONE if found else ErrorCode.RESOURCE_NOT_FOUND
            results.append(_User(user=name, error_code=code, error_message=None, credential_infos=found))
        return admin.DescribeUserScramCredentialsResponse(error_code=0, error_message=None, results=results)

    async def log_folders(self, request: ClientRequest) -> Any:
        """Tell the sizes of logs: those of their records in the archive's own encoding, before compression."""
        archive = self._current.archive
        asked: dict[str, list[int] | None] = dict.fromkeys(archive.topics)
        if request.message.topics is not None:
            asked = {each.topic: each.partitions for each in request.message.topics}
        topics: list[Any] = []
        for name, numbers in asked.items():
            if name not in archive.topics:
                continue
            partitions: list[Any] = []
            for log in archive.logs_of(name):
                if numbers is None or log.tp.partition in numbers:
                    size = sum_of(log.segments, "bytes")
                    partition = _LogTopic.DescribeLogDirsPartition(
                        partition_index=log.tp.partition, partition_size=size, offset_lag=0, is_future_key=False
                    )
                    partitions.append(partition)
            topics.append(_LogTopic(name=name, partitions=partitions))
        folder = _LogFolder(error_code=0, log_dir=_LOG_FOLDER, topics=topics, total_bytes=-1, usable_bytes=-1)
        return admin.DescribeLogDirsResponse(results=[folder])

    async def producers(self, request: ClientRequest) -> Any:
        """Tell that nobody produces."""
        archive = self._current.archive
        topics: list[Any] = []
        for topic in request.message.topics:
            known = archive.topics.get(topic.name)
            count = known.partitions if known is not None else 0
            partitions: list[Any] = []
            for number in topic.partition_indexes:
                code = ErrorCode.NONE if number < count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partition = _Producers.PartitionResponse(
                    partition_index=number, error_code=code, error_message=None, active_producers=[]
                )
                partitions.append(partition)
            topics.append(_Producers(name=topic.name, partitions=partitions))
        return admin.DescribeProducersResponse(topics=topics)

    async def transactions(self, request: ClientRequest) -> Any:
        return admin.ListTransactionsResponse(error_code=0, unknown_state_filters=[], transaction_states=[])

    async def transaction(self, request: ClientRequest) -> Any:
        states: list[Any] = []
        for name in request.message.transactional_ids:
            states.append(_Transaction(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name))
        return admin.DescribeTransactionsResponse(transaction_states=states)

    async def reassignments(self, request: ClientRequest) -> Any:
        return admin.ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=[])

    async def tokens(self, request: ClientRequest) -> Any:
        raise RequestRefusedError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


def _configs_of(archive: ServedArchive, kind: int, name: str) -> Mapping[str, str | None]:
    """Return the configs that were set on a resource."""
    if kind == _TOPIC:
        return dict(archive.configs[name])
    metadata = archive.metadata
    found: dict[str, str | None] = {}
    if metadata is None:
        return found
    if kind == _BROKER:
        # Of the archived brokers none is this one: what was set for all of them is shown.
        for broker in metadata.broker_configs or ():
            if broker.broker is None:
                found[broker.name] = broker.value
    elif kind == _GROUP:
        for group in metadata.group_configs or ():
            if group.group == name:
                found[group.name] = group.value
    else:
        for metrics in metadata.client_metrics or ():
            if metrics.name == name:
                found.update(metrics.configs)
    return found


def _passes(asked: Any, acl: Acl) -> bool:
    """Return whether an ACL passes the filter of a request."""
    numbers = (
        (asked.resource_type_filter, _RESOURCES.get(acl.resource, 0)),
        (asked.operation, _OPERATIONS.get(acl.operation, 0)),
        (asked.permission_type, _PERMISSIONS.get(acl.permission, 0)),
    )
    if any(wanted not in (_ANY, number) for wanted, number in numbers):
        return False
    if asked.principal_filter not in (None, acl.principal) or asked.host_filter not in (None, acl.host):
        return False
    name, pattern = asked.resource_name_filter, asked.pattern_type_filter
    if pattern == _MATCH and name is not None:
        if acl.pattern == "prefixed":
            return str(name).startswith(acl.name)
        return acl.name in (name, _WILDCARD)
    return name in (None, acl.name) and pattern in (_ANY, _MATCH, _PATTERNS.get(acl.pattern, 0))


def _is_asked_for(asked: Any, quota: ClientQuota) -> bool:
    """Return whether a quota passes the filter of a request."""
    entity: dict[str, str | None] = {str(kind): name for kind, name in quota.entity.items()}
    for each in asked.components:
        if each.entity_type not in entity:
            return False
        name = entity.pop(each.entity_type)
        if each.match_type == _EXACT and name != each.match:
            return False
        if each.match_type == _DEFAULT and name is not None:
            return False
    # A strict filter names every part of the entity.
    return not (asked.strict and entity)
