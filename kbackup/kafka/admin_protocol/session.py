"""Change quotas, configs and ACLs by requests that confluent-kafka has no call for.

Each method returns, by change, '' or why it was refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError

from kbackup.kafka.admin_protocol import messages
from kbackup.kafka.admin_protocol.connection import (
    BrokerConnection,
    LoginError,
    NoConnectionError,
    NotMappedError,
    RefusedRequestError,
    TokenSource,
    endpoint_of,
)
from kbackup.kafka.admin_protocol.messages import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    IncrementalAlterConfigsRequest,
)
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT
from kbackup.kafka.security_types import ACLS_AT_ONCE, AclRule, Untold
from kbackup.metadata.entities import QuotaKey
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.log_batches import LogBatch
    from kbackup.kafka.admin_protocol.reader import Reader


K = TypeVar("K")


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
                ops=[
                    kind.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in values.items()
                ],
            )
            for entity, values in quotas.items()
        ]
        request = AlterClientQuotasRequest(entries=entries, validate_only=False)
        return self._each(quotas, request, "changing client quotas", lambda answer: answer.entries)

    def set_default_broker_configs(self, values: Mapping[str, str | None]) -> dict[str, str]:
        """Set cluster-wide defaults of brokers one by one, or remove them (None)."""
        return {
            name: self._configs(messages.BROKER, "", {name: value}, f"setting {name} of all brokers")
            for name, value in values.items()
        }

    def set_client_metrics(self, name: str, values: Mapping[str, str | None]) -> str:
        """Set configs of a subscription, or remove them (None); one without configs is gone."""
        return self._configs(messages.CLIENT_METRICS, name, values, f"setting client metrics {name}")

    def create_acls(self, rules: Sequence[AclRule]) -> dict[AclRule, str]:
        return self._in_batches(rules, _creations, "creating an ACL", lambda answer: answer.results)

    def delete_acls(self, rules: Sequence[AclRule]) -> dict[AclRule, str]:
        """Delete exactly these; one that is not there counts as deleted."""
        return self._in_batches(rules, _deletions, "deleting an ACL", lambda answer: answer.filter_results)

    def _in_batches(
        self,
        rules: Sequence[AclRule],
        request: Callable[[Sequence[AclRule]], Any],
        doing: str,
        results: Callable[[Any], Sequence[Any]],
    ) -> dict[AclRule, str]:
        refused: dict[AclRule, str] = {}
        for at in range(0, len(rules), ACLS_AT_ONCE):
            batch = rules[at : at + ACLS_AT_ONCE]
            refused |= self._each(batch, request(batch), doing, results)
        return refused

    def _configs(self, kind: int, owner: str, values: Mapping[str, str | None], doing: str) -> str:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(
                name=name,
                config_operation=messages.DELETE if value is None else messages.SET,
                value=value,
            )
            for name, value in values.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=kind, resource_name=owner, configs=configs)],
            validate_only=False,
        )
        return self._each([owner], request, doing, lambda answer: answer.responses)[owner]

    def _each(
        self,
        items: Sequence[K] | Mapping[K, object],
        request: Any,
        doing: str,
        results: Callable[[Any], Sequence[Any]],
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


def _creations(rules: Sequence[AclRule]) -> CreateAclsRequest:
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


def _deletions(rules: Sequence[AclRule]) -> DeleteAclsRequest:
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


def _numbers(rule: AclRule, resource: str, pattern: str) -> dict[str, int]:
    return {
        resource: messages.number(messages.RESOURCES, rule.resource),
        pattern: messages.number(messages.PATTERNS, rule.pattern),
        "operation": messages.number(messages.OPERATIONS, rule.operation),
        "permission_type": messages.number(messages.PERMISSIONS, rule.permission),
    }


# Opening and closing a connection for the requests of this package.


@dataclass(frozen=True, slots=True)
class Session:
    """The requests that can be sent while the connection is open."""

    read: Reader
    write: Writer


@contextmanager
def admin_session(connection: Connection) -> Iterator[Session | Untold]:
    """One connection to the cluster while the context lasts; `Untold` where none can be made, with the reason."""
    from kbackup.kafka.admin_protocol.connection import connect  # which loads kafka-python
    from kbackup.kafka.admin_protocol.reader import Reader

    pass

    try:
        endpoint = endpoint_of(connection.properties, _tokens(connection), TIMEOUT)
        broker = connect(endpoint)
    except NotMappedError as error:
        yield Untold("not supported", str(error))
        return
    except NoConnectionError as error:
        yield Untold("failed", f"{connection.address} took no connection for admin requests: {error}")
        return
    with broker:
        yield Session(Reader(connection, broker), Writer(connection, broker))


def log_batches(
    connection: Connection, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, LogBatch] | Untold:
    """Return the batch of each log that has the offset given, or else the next batch.

    Logs that give no answer are left out; `Untold` where none can be asked.
    """
    from kbackup.kafka.admin_protocol.log_batches import read_log_batches  # which loads kafka-python

    try:
        endpoint = endpoint_of(connection.properties, _tokens(connection), TIMEOUT)
    except NotMappedError as error:
        return Untold("not supported", str(error))
    with connection.errors("listing leaders"):
        metadata = connection.admin().list_topics(timeout=TIMEOUT)
    leaders: dict[tuple[str, int], dict[TopicPartition, int]] = defaultdict(dict)
    for tp, offset in offsets.items():
        topic = metadata.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        broker = metadata.brokers.get(partition.leader) if partition is not None else None
        if broker is not None and broker.host is not None and broker.port is not None:
            leaders[broker.host, broker.port][tp] = offset
    return dict(read_log_batches(endpoint, leaders))


def _tokens(connection: Connection) -> TokenSource | None:
    """The user's own function for tokens, None where there is none."""
    tokens = connection.tokens
    if tokens is None:
        return None

    def token() -> tuple[str, Mapping[str, str]]:
        try:
            made = tokens(connection.properties.get("sasl.oauthbearer.config", ""))
        except Exception:  # noqa: BLE001 (it is the user's function)
            raise LoginError(f"no token: {tokens.failure}") from None
        return made.value, made.extensions

    return token
