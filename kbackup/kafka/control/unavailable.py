"""A cluster's answer that holds nothing: it was refused, the cluster does not have what was asked for, or none came.

Much of a cluster's metadata may be missing without an error: a cluster has no authorizer, brokers are too old, our user
lacks a right. So reading it returns `Unavailable`, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError

from kbackup.kafka.client import Connection
from kbackup.metadata.entities import Reason

_REASONS: dict[int, Reason] = {
    KafkaError.SECURITY_DISABLED: "not there",
    KafkaError.DELEGATION_TOKEN_AUTH_DISABLED: "not there",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "denied",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "denied",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "denied",
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "denied",
    KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "not supported",
    KafkaError._UNSUPPORTED_FEATURE: "not supported",
    KafkaError.UNSUPPORTED_VERSION: "not supported",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "not supported",
    # A cluster with ZooKeeper, or old brokers, call a request about things that they don't have malformed.
    KafkaError.INVALID_REQUEST: "not supported",
}
"""By error code. Everything else has "failed"."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """`why` is for people: it names the cluster and the request."""

    reason: Reason
    why: str

    @classmethod
    def of(cls, error: KafkaError, doing: str, connection: Connection) -> Unavailable:
        """Return the answer of a cluster that refused a request with `error`. `doing`: the request, for the message."""
        reason = _REASONS.get(error.code(), "failed")
        return cls(reason, refusal(error, doing, connection))


class UnavailableError(Exception):
    """A cluster can't be asked, or refused."""

    def __init__(self, unavailable: Unavailable) -> None:
        super().__init__(unavailable.why)
        self.unavailable = unavailable


def refusal(error: KafkaError, doing: str, connection: Connection) -> str:
    """Return in words why a request was refused."""
    if error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        # The broker's own words are a dump of the request, with the address that we come from.
        error = KafkaError(error.code())
    return connection.error(error, doing).message
