"""Who may do what in a cluster, and how much: ACLs, SCRAM users, delegation tokens and client quotas.

A cluster may refuse to list one of these, or not have it: that is an answer (`Unavailable`), not an error. Every broker
knows these of the whole cluster, and forwards changes to the controller.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError
from msgspec.structs import astuple

from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import RefusedRequestError, RequestError, broker_error
from kbackup.kafka.control.messages import DescribeDelegationTokenRequest, admin
from kbackup.kafka.control.router import Answers, AnyBroker, Question, Router
from kbackup.kafka.control.unavailable import Unavailable, refusal
from kbackup.metadata.entities import (
    ACL_OPERATIONS,
    ACL_PATTERNS,
    ACL_PERMISSIONS,
    ACL_RESOURCES,
    Acl,
    ClientQuota,
    DelegationToken,
    QuotaKey,
    ScramUser,
)

ACLS_AT_ONCE = 500
"""ACLs of one request: brokers refuse thousands."""

_ANY = 1
"""Kafka's number for any kind, in a filter of ACLs."""

_RESOURCE_NUMBERS = {word: number for number, word in ACL_RESOURCES.items()}
_PATTERN_NUMBERS = {word: number for number, word in ACL_PATTERNS.items()}
_OPERATION_NUMBERS = {word: number for number, word in ACL_OPERATIONS.items()}
_PERMISSION_NUMBERS = {word: number for number, word in ACL_PERMISSIONS.items()}

_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_UNKNOWN_MECHANISM = "UNKNOWN"


class SecurityAdmin:
    """What is listed is sorted. Changes return, for each thing to change, '' or why it was refused."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._connection = router.connection

    def acls(self) -> tuple[list[Acl], list[str]] | Unavailable:
        """Return every ACL, and a description of each ACL of an unknown kind."""
        request = admin.DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        try:
            return acls_of(self._router.ask(request))
        except RequestError as error:
            if error.kafka_error().code() == KafkaError.SECURITY_DISABLED:
                return Unavailable("not there", f"{self._connection.address} has no authorizer")
            return self._unavailable(error, "describing ACLs")

    def users(self) -> list[ScramUser] | Unavailable:
        """Return each SCRAM credential there is; its secret stays with the broker."""
        doing = "describing SCRAM users"
        # No names are every user, as no list is. But a broker (4.3) that refuses a request without a list fails over
        # it, and never answers.
        request = admin.DescribeUserScramCredentialsRequest(users=[])
        try:
            response = self._router.ask(request)
        except RequestError as error:
            return self._unavailable(error, doing)
        for user in response.results:
            if user.error_code:
                refused = RefusedRequestError(user.error_code, user.error_message or "")
                return self._unavailable(refused, doing)
        return users_of(response)

    def client_quotas(self) -> list[ClientQuota] | Unavailable:
        # No components: quotas of whatever users, clients and addresses.
        request = admin.DescribeClientQuotasRequest(components=[], strict=False)
        try:
            response = self._router.ask(request)
        except RequestError as error:
            return self._unavailable(error, "describing client quotas")
        return quotas_of(response)

    def delegation_tokens(self) -> list[DelegationToken] | Unavailable:
        """Return the tokens that our user may describe."""
        try:
            response = self._router.ask(DescribeDelegationTokenRequest(owners=None))
        except RequestError as error:
            return self._unavailable(error, "describing delegation tokens")
        return tokens_of(response)

    def create_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        question = Question[Acl, None](_create_acls, _acls_created, at_once=ACLS_AT_ONCE, change=True)
        return self._change(rules, question, "creating an ACL")

    def delete_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        """Delete exactly these; one that is not there counts as deleted."""
        question = Question[Acl, None](_delete_acls, _acls_deleted, at_once=ACLS_AT_ONCE, change=True)
        return self._change(rules, question, "deleting an ACL")

    def set_quotas(self, quotas: Mapping[QuotaKey, Mapping[str, float | None]]) -> dict[QuotaKey, str]:
        """Set the quotas of each entity, or remove them (None)."""

        def request(broker: BrokerConnection, entities: list[QuotaKey]) -> Any:
            entries = [_quota_entry(entity, quotas[entity]) for entity in entities]
            return admin.AlterClientQuotasRequest(entries=entries, validate_only=False)

        question = Question[QuotaKey, None](request, _quotas_set, change=True)
        return self._change([*quotas], question, "changing client quotas")

    def _change(self, things: Sequence[Any], question: Question[Any, None], doing: str) -> dict[Any, str]:
        _, refused = self._router.ask_each(things, question, AnyBroker())
        refusals = dict.fromkeys(things, "")
        for thing, error in refused.items():
            refusals[thing] = refusal(error, doing, self._connection)
        return refusals

    def _unavailable(self, error: RequestError, doing: str) -> Unavailable:
        return Unavailable.of(error.kafka_error(), doing, self._connection)


def results_in_order(things: Sequence[Any], results: Sequence[Any]) -> Answers[Any, None]:
    """Yield whether each thing was changed: brokers answer in the order of the request. What they leave out at the end
    is left out here too."""
    for thing, result in zip(things, results, strict=False):
        if result.error_code:
            yield thing, broker_error(result.error_code, result.error_message)
        else:
            yield thing, None


# ACLs.


def _create_acls(broker: BrokerConnection, rules: list[Acl]) -> Any:
    creations = []
    for rule in rules:
        creation = admin.CreateAclsRequest.AclCreation(
            resource_type=_RESOURCE_NUMBERS[rule.resource],
            resource_name=rule.name,
            resource_pattern_type=_PATTERN_NUMBERS[rule.pattern],
            principal=rule.principal,
            host=rule.host,
            operation=_OPERATION_NUMBERS[rule.operation],
            permission_type=_PERMISSION_NUMBERS[rule.permission],
        )
        creations.append(creation)
    return admin.CreateAclsRequest(creations=creations)


def _acls_created(response: Any, rules: list[Acl]) -> Answers[Acl, None]:
    yield from results_in_order(rules, response.results)


def _delete_acls(broker: BrokerConnection, rules: list[Acl]) -> Any:
    filters = []
    for rule in rules:
        exactly = admin.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=_RESOURCE_NUMBERS[rule.resource],
            resource_name_filter=rule.name,
            pattern_type_filter=_PATTERN_NUMBERS[rule.pattern],
            principal_filter=rule.principal,
            host_filter=rule.host,
            operation=_OPERATION_NUMBERS[rule.operation],
            permission_type=_PERMISSION_NUMBERS[rule.permission],
        )
        filters.append(exactly)
    return admin.DeleteAclsRequest(filters=filters)


def _acls_deleted(response: Any, rules: list[Acl]) -> Answers[Acl, None]:
    yield from results_in_order(rules, response.filter_results)


def acls_of(response: Any) -> tuple[list[Acl], list[str]]:
    """Return the ACLs of Kafka's response to DescribeAcls, and a description of each one of an unknown kind."""
    rules: list[Acl] = []
    strange: list[str] = []
    for resource in response.resources:
        for acl in resource.acls:
            rule = _acl_of(resource, acl)
            if rule is None:
                numbers = (resource.resource_type, resource.pattern_type, acl.operation, acl.permission_type)
                strange.append(f"for {acl.principal} on {resource.resource_name}, by numbers {numbers}")
            else:
                rules.append(rule)
    return sorted(rules, key=astuple), sorted(strange)


def _acl_of(resource: Any, acl: Any) -> Acl | None:
    """Return an ACL in Kafka's words, None if a number of it is of a kind to come."""
    try:
        return Acl(
            resource=ACL_RESOURCES[resource.resource_type],
            name=resource.resource_name,
            pattern=ACL_PATTERNS[resource.pattern_type],
            principal=acl.principal,
            host=acl.host,
            operation=ACL_OPERATIONS[acl.operation],
            permission=ACL_PERMISSIONS[acl.permission_type],
        )
    except KeyError:
        return None


# SCRAM users.


def users_of(response: Any) -> list[ScramUser]:
    users = []
    for user in response.results:
        for credential in user.credential_infos:
            mechanism = _MECHANISMS.get(credential.mechanism, _UNKNOWN_MECHANISM)
            users.append(ScramUser(user=user.user, mechanism=mechanism, iterations=credential.iterations))
    return sorted(users, key=_user_and_mechanism)


def _user_and_mechanism(user: ScramUser) -> tuple[str, str]:
    return user.user, user.mechanism


# Client quotas.


def _quota_entry(entity: QuotaKey, values: Mapping[str, float | None]) -> Any:
    kind = admin.AlterClientQuotasRequest.EntryData
    parts = [kind.EntityData(entity_type=of, entity_name=name) for of, name in entity]
    operations = []
    for key, value in values.items():
        if value is None:
            # The request has a place for a value also where one is removed; brokers don't look at it.
            operations.append(kind.OpData(key=key, value=0.0, remove=True))
        else:
            operations.append(kind.OpData(key=key, value=value, remove=False))
    return kind(entity=parts, ops=operations)


def _quotas_set(response: Any, entities: list[QuotaKey]) -> Answers[QuotaKey, None]:
    yield from results_in_order(entities, response.entries)


def quotas_of(response: Any) -> list[ClientQuota]:
    quotas = []
    for entry in response.entries or ():
        # Brokers name the parts of an entity, and its quotas, in any order.
        parts = sorted(entry.entity, key=_entity_type)
        values = sorted(entry.values, key=_key)
        entity = {part.entity_type: part.entity_name for part in parts}
        limits = {value.key: value.value for value in values}
        quotas.append(ClientQuota(entity=entity, quotas=limits))
    return sorted(quotas, key=_entity_order)


def _entity_type(part: Any) -> str:
    return str(part.entity_type)


def _key(value: Any) -> str:
    return str(value.key)


def _entity_order(quota: ClientQuota) -> list[tuple[str, bool, str]]:
    """Return what quotas are sorted by: their entities, defaults first. The name of a default is None."""
    order: list[tuple[str, bool, str]] = []
    for kind, name in sorted(quota.entity.items()):
        has_name = name is not None
        order.append((kind, has_name, name or ""))
    return order


# Delegation tokens.


def tokens_of(response: Any) -> list[DelegationToken]:
    return sorted(_tokens_of(response), key=_token_id)


def _tokens_of(response: Any) -> Iterator[DelegationToken]:
    for token in response.tokens:
        owner = f"{token.principal_type}:{token.principal_name}"
        requester = owner
        if token.token_requester_principal_name:
            # Since Kafka 3.3 a user may ask for tokens of another one. Before, the owner of a token is who made it.
            requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        renewers = [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in token.renewers]
        yield DelegationToken(
            id=token.token_id,
            owner=owner,
            requester=requester,
            renewers=tuple(sorted(renewers)),
            issued_at=token.issue_timestamp,
            expires_at=token.expiry_timestamp,
            max_at=token.max_timestamp,
            hmac=base64.b64encode(token.hmac).decode(),
        )


def _token_id(token: DelegationToken) -> str:
    return token.id
