"""The values that `security` returns, and their conversion from confluent-kafka's ACLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka.admin import AclBinding

from kbackup.kafka.client import Connection

Reason = Literal["not there", "not supported", "denied", "failed"]
"""The cluster has no such thing; the broker or the client library can't tell; we may not know; something else."""

ACLS_AT_ONCE = 500
"""ACLs of one request: brokers refuse thousands."""

_REASONS: dict[int, Reason] = {
    KafkaError.SECURITY_DISABLED: "not there",
    KafkaError.DELEGATION_TOKEN_AUTH_DISABLED: "not there",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "denied",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "denied",
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "denied",
    KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "not supported",
    KafkaError._UNSUPPORTED_FEATURE: "not supported",
    KafkaError.UNSUPPORTED_VERSION: "not supported",
    KafkaError.INVALID_REQUEST: "not supported",
}
_CLUSTER = "cluster"  # Kafka's word for what librdkafka calls a broker


@dataclass(frozen=True, slots=True)
class Untold:
    """A cluster's answer that holds nothing."""

    reason: Reason
    why: str

    @classmethod
    def of(cls, error: KafkaError, doing: str, connection: Connection) -> Untold:
        """Return the answer of a cluster that refused a request with `error`. `doing`: the request, for the message."""
        return cls(_REASONS.get(error.code(), "failed"), connection.error(error, doing).message)


class AclRule(NamedTuple):
    """In Kafka's own words, in lower case: `resource` is topic, group, cluster or transactional_id, `pattern`
    literal or prefixed."""

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


class Credential(NamedTuple):
    """`mechanism` as clients call it: SCRAM-SHA-512."""

    user: str
    mechanism: str
    iterations: int


class DynamicConfig(NamedTuple):
    """A config that was set on a broker or a group. `owner` is the broker's id or the group; '' is the cluster-wide
    default of brokers. `value` is None if it is sensitive: brokers never return it."""

    owner: str
    name: str
    value: str | None


def rule_of(binding: AclBinding) -> AclRule:
    resource = _word(binding.restype)
    return AclRule(
        _CLUSTER if resource == "broker" else resource,
        binding.name,
        _word(binding.resource_pattern_type),
        binding.principal,
        binding.host,
        _word(binding.operation),
        _word(binding.permission_type),
    )


def binding_of(rule: AclRule) -> AclBinding:
    return AclBinding(
        "broker" if rule.resource == _CLUSTER else rule.resource,
        rule.name,
        rule.pattern,
        rule.principal,
        rule.host,
        rule.operation,
        rule.permission,
    )


def acl_words(rule: AclRule) -> str:
    return (
        f"{rule.permission} {rule.operation} for {rule.principal} from {rule.host} "
        f"on {rule.resource} {rule.name} ({rule.pattern})"
    )


def _word(kind: Any) -> str:
    return str(kind.name).lower()
