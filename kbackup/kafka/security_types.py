"""The values that `security` returns, and their conversion from confluent-kafka's ACLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka.admin import AclBinding
from msgspec.structs import astuple

from kbackup.kafka.client import Connection
from kbackup.metadata.entities import Acl

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


class DynamicConfig(NamedTuple):
    """A config that was set on a broker or a group. `owner` is the broker's id or the group; '' is the cluster-wide
    default of brokers. `value` is None if it is sensitive: brokers never return it."""

    owner: str
    name: str
    value: str | None


def acl_of(binding: AclBinding) -> Acl:
    resource = _word(binding.restype)
    return Acl(
        resource=_CLUSTER if resource == "broker" else resource,
        name=binding.name,
        pattern=_word(binding.resource_pattern_type),
        principal=binding.principal,
        host=binding.host,
        operation=_word(binding.operation),
        permission=_word(binding.permission_type),
    )


def binding_of(acl: Acl) -> AclBinding:
    resource, *others = astuple(acl)
    return AclBinding("broker" if resource == _CLUSTER else resource, *others)


def _word(kind: Any) -> str:
    return str(kind.name).lower()
