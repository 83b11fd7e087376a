"""Entities of metadata from what brokers answered. Pure; everything comes sorted."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from kbackup.kafka.admin_protocol import messages
from kbackup.kafka.admin_protocol.connection import BrokerConnection, NoConnectionError, RefusedRequestError
from kbackup.kafka.admin_protocol.messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeDelegationTokenRequest,
    DescribeQuorumRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT
from kbackup.kafka.security_types import AclRule, Setting, Untold
from kbackup.metadata.entities import (
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Feature,
    Listener,
    Registration,
)


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


def acls_of(answer: Any) -> tuple[list[AclRule], list[str]]:
    """Every ACL, and in words those of a kind that is not known here."""
    rules: list[AclRule] = []
    strange: list[str] = []
    for resource in answer.resources:
        for acl in resource.acls:
            numbers = (resource.resource_type, resource.pattern_type, acl.operation, acl.permission_type)
            try:
                kind, pattern, operation, permission = (
                    table[n] for table, n in zip(_TABLES, numbers, strict=True)
                )
            except KeyError:
                strange.append(f"for {acl.principal} on {resource.resource_name}, by numbers {numbers}")
                continue
            name = resource.resource_name
            rules.append(AclRule(kind, name, pattern, acl.principal, acl.host, operation, permission))
    return sorted(rules), sorted(strange)


_TABLES = (messages.RESOURCES, messages.PATTERNS, messages.OPERATIONS, messages.PERMISSIONS)


def defaults_of(configs: Iterable[Any]) -> list[Setting]:
    """The cluster-wide default of brokers."""
    return sorted(
        Setting("", c.name, None if c.is_sensitive else c.value)
        for c in configs
        if c.config_source == messages.DEFAULT_OF_BROKERS
    )


def metrics_of(described: Iterable[Any]) -> list[ClientMetrics]:
    metrics = [
        ClientMetrics(
            name=each.resource_name,
            configs={
                name: value
                for name, value in sorted(
                    (c.name, c.value)
                    for c in each.configs
                    if c.config_source == messages.SET_ON_CLIENT_METRICS
                )
                if value is not None
            },
        )
        for each in described
    ]
    return sorted(metrics, key=lambda each: each.name)


def brokers_of(answer: Any, protocol: str) -> list[Registration]:
    """`protocol` is that of the listener which the brokers were asked by: they name no other."""
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
    """The voters of the quorum of a metadata log."""
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


# Read delegation tokens, quotas and the like by requests that confluent-kafka has no call for.
#
# A refusal of the brokers is an answer (`Untold`), not an error.


T = TypeVar("T")

_FETCH = 1  # Kafka's number of the request
_LOG = "__cluster_metadata"


class Reader:
    """Each method sends one request, or few. What they return is sorted."""

    def __init__(self, connection: Connection, broker: BrokerConnection) -> None:
        self._connection = connection
        self._broker = broker

    def client_quotas(self) -> list[ClientQuota] | Untold:
        request = DescribeClientQuotasRequest(components=[], strict=False)
        return self._answer_or_untold(
            "describing client quotas", lambda: quotas_of(self._broker.ask(request))
        )

    def delegation_tokens(self) -> list[DelegationToken] | Untold:
        """The tokens that our user may describe."""
        request = DescribeDelegationTokenRequest(owners=None)
        return self._answer_or_untold(
            "describing delegation tokens", lambda: tokens_of(self._broker.ask(request))
        )

    def acls(self) -> tuple[list[AclRule], list[str]] | Untold:
        """Every ACL, and in words those of a kind that is not known here."""
        request = DescribeAclsRequest(
            resource_type_filter=messages.ANY,
            resource_name_filter=None,
            pattern_type_filter=messages.ANY,
            principal_filter=None,
            host_filter=None,
            operation=messages.ANY,
            permission_type=messages.ANY,
        )
        return self._answer_or_untold("describing ACLs", lambda: acls_of(self._broker.ask(request)))

    def default_broker_configs(self) -> list[Setting] | Untold:
        """The cluster-wide default of brokers' dynamic configs."""

        def ask() -> list[Setting]:
            (described,) = self._configs(messages.BROKER, [""])
            return defaults_of(described.configs)

        return self._answer_or_untold("reading configs of brokers", ask)

    def client_metrics(self) -> list[ClientMetrics] | Untold:
        """The subscriptions to metrics of clients."""

        def ask() -> list[ClientMetrics]:
            request = ListConfigResourcesRequest(resource_types=[messages.CLIENT_METRICS])
            listed = self._broker.ask(request).config_resources
            names = [r.resource_name for r in listed if r.resource_type == messages.CLIENT_METRICS]
            return metrics_of(self._configs(messages.CLIENT_METRICS, names) if names else ())

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
        """The newest version of Fetch that the broker knows, which tells its release."""
        return self._broker.newest_version(_FETCH)

    def reassignments(self) -> list[str] | Untold:
        """The partitions that are on their way to other brokers, such as orders-0."""

        def ask() -> list[str]:
            request = ListPartitionReassignmentsRequest(timeout_ms=int(TIMEOUT * 1000), topics=None)
            topics = self._broker.ask(request).topics
            return sorted(f"{topic.name}-{p.partition_index}" for topic in topics for p in topic.partitions)

        return self._answer_or_untold("listing reassignments", ask)

    def _configs(self, kind: int, names: list[str]) -> list[Any]:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[
                resource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names
            ],
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
