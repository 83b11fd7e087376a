"""Read and change metadata by requests that confluent-kafka has no call for.

Loading this module takes a third of a second, for kafka-python: import it where a connection is opened.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka.protocol import admin
from kafka.protocol.api_message import ApiMessage
from msgspec.structs import astuple

from kbackup.kafka.admin_protocol.connection import BrokerConnection
from kbackup.kafka.admin_protocol.endpoint import NoConnectionError, RefusedRequestError
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT
from kbackup.kafka.security import ACLS_AT_ONCE, Unavailable
from kbackup.metadata import entities
from kbackup.metadata.entities import Acl, QuotaKey

T = TypeVar("T")
K = TypeVar("K")

_ANY = 1
_BROKER, _CLIENT_METRICS = 4, 16
"""Types of config resources."""
_DEFAULT_OF_BROKERS, _SET_ON_CLIENT_METRICS = 3, 7
"""Sources of config values."""
_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""
_ACL_TABLES = (entities.ACL_RESOURCES, entities.ACL_PATTERNS, entities.ACL_OPERATIONS, entities.ACL_PERMISSIONS)
_FETCH = 1  # the apiKey of Fetch
_LOG = "__cluster_metadata"


class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
    """By a definition of our own beside this module: kafka-python has none."""


class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # the same
    """The same."""


def _asking(doing: str) -> Callable[[Callable[[AdminSession], T]], Callable[[AdminSession], T | Unavailable]]:
    """Have a request that reads return `Unavailable` where the broker refuses it, or doesn't answer."""

    def decorate(ask: Callable[[AdminSession], T]) -> Callable[[AdminSession], T | Unavailable]:
        def asked(self: AdminSession) -> T | Unavailable:
            try:
                return ask(self)
            except RefusedRequestError as refused:
                return Unavailable.of(refused.kafka_error(), doing, self.connection)
            except NoConnectionError as error:
                return Unavailable("failed", f"{self.connection.address} did not answer {doing}: {error}")

        return asked

    return decorate


@dataclass(frozen=True, slots=True)
class AdminSession:
    """The requests that can be sent while the connection to `broker` is open; each method sends one request, or few.

    What those that read return is sorted. Changes can go to any broker: brokers forward them to the controller. They
    return '' or the refusal for each thing to change."""

    connection: Connection
    broker: BrokerConnection

    @_asking("describing client quotas")
    def client_quotas(self) -> list[entities.ClientQuota]:
        return quotas_of(self.broker.ask(admin.DescribeClientQuotasRequest(components=[], strict=False)))

    @_asking("describing delegation tokens")
    def delegation_tokens(self) -> list[entities.DelegationToken]:
        """Return the tokens that our user may describe."""
        return tokens_of(self.broker.ask(DescribeDelegationTokenRequest(owners=None)))

    @_asking("describing ACLs")
    def acls(self) -> tuple[list[Acl], list[str]]:
        """Return every ACL, and a description of each ACL of an unknown kind."""
        kinds = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
        names = ("resource_name_filter", "principal_filter", "host_filter")
        request = admin.DescribeAclsRequest(**dict.fromkeys(kinds, _ANY), **dict.fromkeys(names))
        return acls_of(self.broker.ask(request))

    @_asking("reading configs of brokers")
    def default_broker_configs(self) -> list[entities.BrokerConfig]:
        (described,) = self._configs(_BROKER, [""])
        return defaults_of(described.configs)

    @_asking("describing client metrics")
    def client_metrics(self) -> list[entities.ClientMetrics]:
        listed = self.broker.ask(admin.ListConfigResourcesRequest(resource_types=[_CLIENT_METRICS])).config_resources
        names = [r.resource_name for r in listed if r.resource_type == _CLIENT_METRICS]
        return metrics_of(self._configs(_CLIENT_METRICS, names) if names else ())

    def features(self) -> list[entities.Feature] | Unavailable:
        found = self.broker.features
        if found is None:
            return Unavailable("not supported", f"{self.connection.address} does not tell its features")
        return [entities.Feature(name=name, level=level) for name, level in sorted(found.items())]

    @_asking("describing the cluster")
    def registrations(self) -> list[entities.Registration]:
        """Brokers, by the listener that we use, and controllers where there is a quorum that we may ask for."""
        request = admin.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True
        )
        protocol = self.connection.properties.get("security.protocol", "plaintext").upper()
        brokers = brokers_of(self.broker.ask(request), protocol)
        topic = admin.DescribeQuorumRequest.TopicData
        quorum = topic(topic_name=_LOG, partitions=[topic.PartitionData(partition_index=0)])
        try:
            return [*brokers, *controllers_of(self.broker.ask(admin.DescribeQuorumRequest(topics=[quorum])))]
        except RefusedRequestError:  # ZooKeeper's cluster, or a right that we don't have
            return brokers

    def fetch_version(self) -> int:
        """Return the newest version of Fetch that the broker knows, -1 for none. It identifies the release."""
        return self.broker.versions.get(_FETCH, (0, -1))[1]

    @_asking("listing reassignments")
    def reassignments(self) -> list[str]:
        """Return the partitions that are on their way to other brokers, such as orders-0."""
        request = admin.ListPartitionReassignmentsRequest(timeout_ms=int(TIMEOUT * 1000), topics=None)
        topics = self.broker.ask(request).topics
        return sorted(f"{topic.name}-{p.partition_index}" for topic in topics for p in topic.partitions)

    def set_quotas(self, quotas: Mapping[QuotaKey, Mapping[str, float | None]]) -> dict[QuotaKey, str]:
        """Set the quotas of each entity, or remove them (None)."""
        kind = admin.AlterClientQuotasRequest.EntryData
        entries = [
            kind(
                entity=[kind.EntityData(entity_type=t, entity_name=name) for t, name in entity],
                ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
            )
            for entity, values in quotas.items()
        ]
        request = admin.AlterClientQuotasRequest(entries=entries, validate_only=False)
        return self._change([*quotas], request, "changing client quotas", "entries")

    def set_default_broker_configs(self, values: Mapping[str, str | None]) -> dict[str, str]:
        """Set cluster-wide defaults of brokers one by one, or remove them (None)."""
        return {
            name: self._set_configs(_BROKER, "", {name: value}, f"setting {name} of all brokers")
            for name, value in values.items()
        }

    def set_client_metrics(self, name: str, values: Mapping[str, str | None]) -> str:
        """Set configs of a subscription, or remove them (None); one without configs is gone."""
        return self._set_configs(_CLIENT_METRICS, name, values, f"setting client metrics {name}")

    def create_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        def request(batch: Sequence[Acl]) -> Any:
            names = ("resource_type", "resource_pattern_type", "resource_name", "principal", "host")
            creations = [admin.CreateAclsRequest.AclCreation(**_members(rule, names)) for rule in batch]
            return admin.CreateAclsRequest(creations=creations)

        return self._change_acls(rules, request, "creating an ACL", "results")

    def delete_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        """Delete exactly these; one that is not there counts as deleted."""

        def request(batch: Sequence[Acl]) -> Any:
            parts = ("resource_type", "pattern_type", "resource_name", "principal", "host")
            names = [f"{part}_filter" for part in parts]
            filters = [admin.DeleteAclsRequest.DeleteAclsFilter(**_members(rule, names)) for rule in batch]
            return admin.DeleteAclsRequest(filters=filters)

        return self._change_acls(rules, request, "deleting an ACL", "filter_results")

    def _change_acls(
        self, rules: Sequence[Acl], request: Callable[[Sequence[Acl]], Any], doing: str, answers: str
    ) -> dict[Acl, str]:
        refused: dict[Acl, str] = {}
        for at in range(0, len(rules), ACLS_AT_ONCE):
            batch = rules[at : at + ACLS_AT_ONCE]
            refused |= self._change(batch, request(batch), doing, answers)
        return refused

    def _configs(self, kind: int, names: list[str]) -> list[Any]:
        resource = admin.DescribeConfigsRequest.DescribeConfigsResource
        request = admin.DescribeConfigsRequest(
            resources=[resource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names],
            include_synonyms=False,
            include_documentation=False,
        )
        described = list(self.broker.ask(request).results)
        for each in described:
            if each.error_code:
                raise RefusedRequestError(each.error_code, each.error_message or "")
        return described

    def _set_configs(self, kind: int, owner: str, values: Mapping[str, str | None], doing: str) -> str:
        resource = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
            for name, value in values.items()
        ]
        request = admin.IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=kind, resource_name=owner, configs=configs)], validate_only=False
        )
        return self._change([owner], request, doing, "responses")[owner]

    def _change(self, items: Sequence[K], request: Any, doing: str, answers: str) -> dict[K, str]:
        """Send a request and return, by item, '' or the refusal: brokers answer in the order of the items, in the
        member `answers` of their response."""
        try:
            response = self.broker.ask(request)
        except RefusedRequestError as refused:
            return dict.fromkeys(items, self.connection.error(refused.kafka_error(), doing).message)
        except NoConnectionError as error:
            return dict.fromkeys(items, f"{self.connection.address} did not answer {doing}: {error}")
        refusals = dict.fromkeys(items, "")
        for item, answer in zip(items, getattr(response, answers), strict=True):
            if answer.error_code:
                refused_item = RefusedRequestError(answer.error_code, answer.error_message or "")
                refusals[item] = self.connection.error(refused_item.kafka_error(), doing).message
        return refusals


def _members(rule: Acl, names: Iterable[str]) -> dict[str, Any]:
    """Return a rule as members of a request, where resource, pattern, name, principal and host have these names."""
    words = (rule.resource, rule.pattern, rule.operation, rule.permission)
    resource, pattern, operation, permission = (
        next(number for number, each in table.items() if each == word)
        for table, word in zip(_ACL_TABLES, words, strict=True)
    )
    named = dict(zip(names, (resource, pattern, rule.name, rule.principal, rule.host), strict=True))
    return {**named, "operation": operation, "permission_type": permission}


# Answers of brokers as entities of metadata, sorted.


def quotas_of(answer: Any) -> list[entities.ClientQuota]:
    quotas = [
        entities.ClientQuota(
            entity=dict(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
            quotas=dict(sorted((value.key, value.value) for value in entry.values)),
        )
        for entry in answer.entries or ()
    ]
    # by entity, defaults first
    return sorted(quotas, key=lambda q: [(kind, n is not None, n or "") for kind, n in sorted(q.entity.items())])


def tokens_of(answer: Any) -> list[entities.DelegationToken]:
    tokens = []
    for token in answer.tokens:
        owner = f"{token.principal_type}:{token.principal_name}"
        # known since Kafka 3.3; before, the owner of a token is who made it
        kind, name = token.token_requester_principal_type, token.token_requester_principal_name
        tokens.append(
            entities.DelegationToken(
                id=token.token_id,
                owner=owner,
                requester=f"{kind}:{name}" if name else owner,
                renewers=tuple(sorted(f"{r.principal_type}:{r.principal_name}" for r in token.renewers)),
                issued_at=token.issue_timestamp,
                expires_at=token.expiry_timestamp,
                max_at=token.max_timestamp,
                hmac=base64.b64encode(token.hmac).decode(),
            )
        )
    return sorted(tokens, key=lambda token: token.id)


def acls_of(answer: Any) -> tuple[list[Acl], list[str]]:
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


def defaults_of(configs: Iterable[Any]) -> list[entities.BrokerConfig]:
    defaults = [
        entities.BrokerConfig(broker=None, name=c.name, value=None if c.is_sensitive else c.value)
        for c in configs
        if c.config_source == _DEFAULT_OF_BROKERS
    ]
    return sorted(defaults, key=lambda default: default.name)


def metrics_of(described: Iterable[Any]) -> list[entities.ClientMetrics]:
    metrics = []
    for each in described:
        own = {c.name: c.value for c in each.configs if c.config_source == _SET_ON_CLIENT_METRICS}
        configs = {name: value for name, value in sorted(own.items()) if value is not None}
        metrics.append(entities.ClientMetrics(name=each.resource_name, configs=configs))
    return sorted(metrics, key=lambda each: each.name)


def brokers_of(answer: Any, protocol: str) -> list[entities.Registration]:
    """`protocol` is the protocol of the listener that was asked: brokers name no other."""
    brokers = [
        entities.Registration(
            id=broker.broker_id,
            role="broker",
            listeners=(entities.Listener(name="", host=broker.host, port=broker.port, security_protocol=protocol),),
            rack=broker.rack,
            alive=not broker.is_fenced,
        )
        for broker in answer.brokers
    ]
    return sorted(brokers, key=lambda each: each.id)


def controllers_of(answer: Any) -> list[entities.Registration]:
    listeners = {node.node_id: node.listeners for node in answer.nodes or ()}
    voters = {v.replica_id for t in answer.topics for p in t.partitions for v in p.current_voters}
    return [
        entities.Registration(
            id=voter,
            role="controller",
            listeners=tuple(
                entities.Listener(name=each.name, host=each.host, port=each.port, security_protocol="")
                for each in listeners.get(voter, ())
            ),
        )
        for voter in sorted(voters)
    ]
