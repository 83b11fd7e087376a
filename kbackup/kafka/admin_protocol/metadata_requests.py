"""Read and change metadata by requests that confluent-kafka has no call for.

Loading this module takes a third of a second, for kafka-python: import it where a connection is opened.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaError
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.api_message import ApiMessage
from msgspec.structs import astuple

from kbackup.kafka.admin_protocol.connection import BrokerConnection
from kbackup.kafka.admin_protocol.endpoint import NoConnectionError, RefusedRequestError
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT
from kbackup.kafka.security import ACLS_AT_ONCE, DynamicConfig, Untold
from kbackup.metadata.entities import (
    ACL_OPERATIONS,
    ACL_PATTERNS,
    ACL_PERMISSIONS,
    ACL_RESOURCES,
    Acl,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Feature,
    Listener,
    QuotaKey,
    Registration,
)

T = TypeVar("T")
K = TypeVar("K")

_ANY = 1
_BROKER, _CLIENT_METRICS = 4, 16
"""Types of config resources."""
_DEFAULT_OF_BROKERS, _SET_ON_CLIENT_METRICS = 3, 7
"""Sources of config values."""
_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""
_FETCH = 1  # the apiKey of Fetch
_LOG = "__cluster_metadata"


class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
    """By a definition of our own beside this module: kafka-python has none."""


class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # the same
    """The same."""


class ClusterReader:
    """Each method sends one request, or few. What they return is sorted."""

    def __init__(self, connection: Connection, broker: BrokerConnection) -> None:
        self._connection = connection
        self._broker = broker

    def client_quotas(self) -> list[ClientQuota] | Untold:
        request = DescribeClientQuotasRequest(components=[], strict=False)
        return self._answer_or_untold("describing client quotas", lambda: quotas_of(self._broker.ask(request)))

    def delegation_tokens(self) -> list[DelegationToken] | Untold:
        """Return the tokens that our user may describe."""
        request = DescribeDelegationTokenRequest(owners=None)
        return self._answer_or_untold("describing delegation tokens", lambda: tokens_of(self._broker.ask(request)))

    def acls(self) -> tuple[list[Acl], list[str]] | Untold:
        """Return every ACL, and a description of each ACL of an unknown kind."""
        request = DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        return self._answer_or_untold("describing ACLs", lambda: acls_of(self._broker.ask(request)))

    def default_broker_configs(self) -> list[DynamicConfig] | Untold:
        """Return the cluster-wide default of brokers' dynamic configs."""

        def ask() -> list[DynamicConfig]:
            (described,) = self._configs(_BROKER, [""])
            return defaults_of(described.configs)

        return self._answer_or_untold("reading configs of brokers", ask)

    def client_metrics(self) -> list[ClientMetrics] | Untold:
        """Return the subscriptions to metrics of clients."""

        def ask() -> list[ClientMetrics]:
            request = ListConfigResourcesRequest(resource_types=[_CLIENT_METRICS])
            listed = self._broker.ask(request).config_resources
            names = [r.resource_name for r in listed if r.resource_type == _CLIENT_METRICS]
            return metrics_of(self._configs(_CLIENT_METRICS, names) if names else ())

        return self._answer_or_untold("describing client metrics", ask)

    def features(self) -> list[Feature] | Untold:
        found = self._broker.features
        if found is None:
            return Untold("not supported", f"{self._connection.address} does not tell its features")
        return [Feature(name=name, level=level) for name, level in sorted(found.items())]

    def registrations(self) -> list[Registration] | Untold:
        """Brokers, by the listener that we use, and controllers where there is a quorum that we may ask for."""

        def ask() -> list[Registration]:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True
            )
            protocol = self._connection.properties.get("security.protocol", "plaintext").upper()
            brokers = brokers_of(self._broker.ask(request), protocol)
            try:
                return [*brokers, *controllers_of(self._broker.ask(_quorum()))]
            except RefusedRequestError:  # ZooKeeper's cluster, or a right that we don't have
                return brokers

        return self._answer_or_untold("describing the cluster", ask)

    def fetch_version(self) -> int:
        """Return the newest version of Fetch that the broker knows. It identifies the release."""
        return self._broker.newest_version(_FETCH)

    def reassignments(self) -> list[str] | Untold:
        """Return the partitions that are on their way to other brokers, such as orders-0."""

        def ask() -> list[str]:
            request = ListPartitionReassignmentsRequest(timeout_ms=int(TIMEOUT * 1000), topics=None)
            topics = self._broker.ask(request).topics
            return sorted(f"{topic.name}-{p.partition_index}" for topic in topics for p in topic.partitions)

        return self._answer_or_untold("listing reassignments", ask)

    def _configs(self, kind: int, names: list[str]) -> list[Any]:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[resource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names],
            include_synonyms=False,
            include_documentation=False,
        )
        described = list(self._broker.ask(request).results)
        for each in described:
            if each.error_code:
                raise RefusedRequestError(each.error_code, each.error_message or "")
        return described

    def _answer_or_untold(self, doing: str, ask: Callable[[], T]) -> T | Untold:
        try:
            return ask()
        except RefusedRequestError as refused:
            error = KafkaError(refused.code, refused.words) if refused.words else KafkaError(refused.code)
            return Untold.of(error, doing, self._connection)
        except NoConnectionError as error:
            return Untold("failed", f"{self._connection.address} did not answer {doing}: {error}")


def _quorum() -> Any:
    topic = DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    return DescribeQuorumRequest(topics=[topic(topic_name=_LOG, partitions=[partition])])


class Writer:
    """Sends changes to any broker: brokers forward them to the controller."""

    def __init__(self, connection: Connection, broker: BrokerConnection) -> None:
        self._connection = connection
        self._broker = broker

    def set_quotas(self, quotas: Mapping[QuotaKey, Mapping[str, float | None]]) -> dict[QuotaKey, str]:
        """Set the quotas of each entity, or remove them (None)."""
        kind = AlterClientQuotasRequest.EntryData
        entries = [
            kind(
                entity=[kind.EntityData(entity_type=t, entity_name=name) for t, name in entity],
                ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
            )
            for entity, values in quotas.items()
        ]
        request = AlterClientQuotasRequest(entries=entries, validate_only=False)
        return self._each(quotas, request, "changing client quotas", lambda answer: answer.entries)

    def set_default_broker_configs(self, values: Mapping[str, str | None]) -> dict[str, str]:
        """Set cluster-wide defaults of brokers one by one, or remove them (None)."""
        return {
            name: self._configs(_BROKER, "", {name: value}, f"setting {name} of all brokers")
            for name, value in values.items()
        }

    def set_client_metrics(self, name: str, values: Mapping[str, str | None]) -> str:
        """Set configs of a subscription, or remove them (None); one without configs is gone."""
        return self._configs(_CLIENT_METRICS, name, values, f"setting client metrics {name}")

    def create_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        return self._in_batches(rules, _creations, "creating an ACL", lambda answer: answer.results)

    def delete_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        """Delete exactly these; one that is not there counts as deleted."""
        return self._in_batches(rules, _deletions, "deleting an ACL", lambda answer: answer.filter_results)

    def _in_batches(
        self,
        rules: Sequence[Acl],
        request: Callable[[Sequence[Acl]], Any],
        doing: str,
        results: Callable[[Any], Sequence[Any]],
    ) -> dict[Acl, str]:
        refused: dict[Acl, str] = {}
        for at in range(0, len(rules), ACLS_AT_ONCE):
            batch = rules[at : at + ACLS_AT_ONCE]
            refused |= self._each(batch, request(batch), doing, results)
        return refused

    def _configs(self, kind: int, owner: str, values: Mapping[str, str | None], doing: str) -> str:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
            for name, value in values.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=kind, resource_name=owner, configs=configs)], validate_only=False
        )
        return self._each([owner], request, doing, lambda answer: answer.responses)[owner]

    def _each(
        self, items: Sequence[K] | Mapping[K, object], request: Any, doing: str, results: Callable[[Any], Sequence[Any]]
    ) -> dict[K, str]:
        """Send a request and return, by item, '' or the refusal: brokers answer in the order of the items."""
        try:
            answers = results(self._broker.ask(request))
        except RefusedRequestError as refused:
            return dict.fromkeys(items, self._why(refused.code, refused.words, doing))
        except NoConnectionError as error:
            return dict.fromkeys(items, f"{self._connection.address} did not answer {doing}: {error}")
        return {
            item: self._why(answer.error_code, answer.error_message, doing) if answer.error_code else ""
            for item, answer in zip(items, answers, strict=True)
        }

    def _why(self, code: int, message: str | None, doing: str) -> str:
        error = KafkaError(code, message) if message else KafkaError(code)
        return self._connection.error(error, doing).message


def _creations(rules: Sequence[Acl]) -> CreateAclsRequest:
    creations = [
        CreateAclsRequest.AclCreation(
            **_numbers(rule, "resource_type", "resource_pattern_type"),
            resource_name=rule.name,
            principal=rule.principal,
            host=rule.host,
        )
        for rule in rules
    ]
    return CreateAclsRequest(creations=creations)


def _deletions(rules: Sequence[Acl]) -> DeleteAclsRequest:
    filters = [
        DeleteAclsRequest.DeleteAclsFilter(
            **_numbers(rule, "resource_type_filter", "pattern_type_filter"),
            resource_name_filter=rule.name,
            principal_filter=rule.principal,
            host_filter=rule.host,
        )
        for rule in rules
    ]
    return DeleteAclsRequest(filters=filters)


def _numbers(rule: Acl, resource: str, pattern: str) -> dict[str, int]:
    return {
        resource: _number(ACL_RESOURCES, rule.resource),
        pattern: _number(ACL_PATTERNS, rule.pattern),
        "operation": _number(ACL_OPERATIONS, rule.operation),
        "permission_type": _number(ACL_PERMISSIONS, rule.permission),
    }


def _number(words: Mapping[int, str], word: str) -> int:
    return next(number for number, each in words.items() if each == word)


# Answers of brokers as entities of metadata, sorted.


def quotas_of(answer: Any) -> list[ClientQuota]:
    quotas = [
        ClientQuota(
            entity=dict(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
            quotas=dict(sorted((value.key, value.value) for value in entry.values)),
        )
        for entry in answer.entries or ()
    ]
    return sorted(quotas, key=quota_order)


def quota_order(quota: ClientQuota) -> list[tuple[str, bool, str]]:
    """Return the key to sort quotas by: by entity, defaults first."""
    return [(kind, name is not None, name or "") for kind, name in sorted(quota.entity.items())]


def tokens_of(answer: Any) -> list[DelegationToken]:
    tokens = [
        DelegationToken(
            id=token.token_id,
            owner=f"{token.principal_type}:{token.principal_name}",
            requester=_requester(token),
            renewers=tuple(sorted(f"{r.principal_type}:{r.principal_name}" for r in token.renewers)),
            issued_at=token.issue_timestamp,
            expires_at=token.expiry_timestamp,
            max_at=token.max_timestamp,
            hmac=base64.b64encode(token.hmac).decode(),
        )
        for token in answer.tokens
    ]
    return sorted(tokens, key=lambda token: token.id)


def _requester(token: Any) -> str:
    """Known since Kafka 3.3; before, the owner of a token is who made it."""
    kind, name = token.token_requester_principal_type, token.token_requester_principal_name
    return f"{kind}:{name}" if name else f"{token.principal_type}:{token.principal_name}"


def acls_of(answer: Any) -> tuple[list[Acl], list[str]]:
    """Return every ACL, and a description of each ACL of an unknown kind."""
    rules: list[Acl] = []
    strange: list[str] = []
    for resource in answer.resources:
        for acl in resource.acls:
            numbers = (resource.resource_type, resource.pattern_type, acl.operation, acl.permission_type)
            try:
                kind, pattern, operation, permission = (table[n] for table, n in zip(_ACL_TABLES, numbers, strict=True))
            except KeyError:
                strange.append(f"for {acl.principal} on {resource.resource_name}, by numbers {numbers}")
                continue
            rules.append(
                Acl(
                    resource=kind,
                    name=resource.resource_name,
                    pattern=pattern,
                    principal=acl.principal,
                    host=acl.host,
                    operation=operation,
                    permission=permission,
                )
            )
    return sorted(rules, key=astuple), sorted(strange)


_ACL_TABLES = (ACL_RESOURCES, ACL_PATTERNS, ACL_OPERATIONS, ACL_PERMISSIONS)


def defaults_of(configs: Iterable[Any]) -> list[DynamicConfig]:
    """Return the cluster-wide default of brokers."""
    return sorted(
        DynamicConfig("", c.name, None if c.is_sensitive else c.value)
        for c in configs
        if c.config_source == _DEFAULT_OF_BROKERS
    )


def metrics_of(described: Iterable[Any]) -> list[ClientMetrics]:
    metrics = [
        ClientMetrics(
            name=each.resource_name,
            configs={
                name: value
                for name, value in sorted(
                    (c.name, c.value) for c in each.configs if c.config_source == _SET_ON_CLIENT_METRICS
                )
                if value is not None
            },
        )
        for each in described
    ]
    return sorted(metrics, key=lambda each: each.name)


def brokers_of(answer: Any, protocol: str) -> list[Registration]:
    """`protocol` is the protocol of the listener that was asked: brokers name no other."""
    brokers = [
        Registration(
            id=broker.broker_id,
            role="broker",
            listeners=(Listener(name="", host=broker.host, port=broker.port, security_protocol=protocol),),
            rack=broker.rack,
            alive=not broker.is_fenced,
        )
        for broker in answer.brokers
    ]
    return sorted(brokers, key=lambda each: each.id)


def controllers_of(answer: Any) -> list[Registration]:
    """Return the voters of the quorum of a metadata log."""
    listeners = {node.node_id: node.listeners for node in answer.nodes or ()}
    voters = {v.replica_id for t in answer.topics for p in t.partitions for v in p.current_voters}
    return [
        Registration(
            id=voter,
            role="controller",
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port, security_protocol="")
                for each in listeners.get(voter, ())
            ),
        )
        for voter in sorted(voters)
    ]
