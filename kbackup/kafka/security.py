"""Read and change ACLs, SCRAM users, and the configs set at run time on brokers and groups, by the admin API.

A cluster may refuse to list one of these, or not have it: that is an answer (`Unavailable`), not an error.

confluent-kafka 2.16 takes a refused DescribeAcls for an answer without ACLs, and a refused DescribeUserScramCredentials
ends the process (`munmap_chunk(): invalid pointer`): so neither is requested before the cluster has granted the right.

librdkafka can't name the cluster-wide default of brokers (it refuses an empty resource name). The default is read from
the configs that each broker inherits, so a default that every broker overrides stays hidden. `admin_protocol` can name
it.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourcePatternType,
    ResourceType,
)
from msgspec.structs import astuple

from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT
from kbackup.metadata.entities import Acl, BrokerConfig, GroupConfig, Reason, ScramUser

ACLS_AT_ONCE = 500
"""ACLs of one request: brokers refuse thousands."""

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
    KafkaError.INVALID_REQUEST: "not supported",
}
_CLUSTER = "cluster"  # Kafka's word for what librdkafka calls a broker


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A cluster's answer that holds nothing."""

    reason: Reason
    why: str

    @classmethod
    def of(cls, error: KafkaError, doing: str, connection: Connection) -> Unavailable:
        """Return the answer of a cluster that refused a request with `error`. `doing`: the request, for the message."""
        return cls(_REASONS.get(error.code(), "failed"), connection.error(error, doing).message)


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


def _word(kind: Any) -> str:
    return str(kind.name).lower()


def _value(entry: ConfigEntry) -> str | None:
    return None if entry.is_sensitive else entry.value


_BATCH = 1000  # groups in one request


class SecurityAdmin:
    """ACLs, SCRAM users and dynamic configs of a cluster; every list is sorted."""

    def __init__(self, connection: Connection, admin: AdminClient) -> None:
        self.connection = connection
        self._admin = admin

    def acls(self) -> tuple[list[Acl], list[str]] | Unavailable:
        """Return every ACL, and a description of each ACL of a kind that the client library doesn't know."""
        doing = "describing ACLs"
        rights = self._rights(doing)
        if isinstance(rights, Unavailable):
            return rights
        every = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # any name, as documented
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        answer = self._ask(self._admin.describe_acls(every, request_timeout=TIMEOUT), doing)
        if isinstance(answer, Unavailable):
            return answer
        if not answer and AclOperation.DESCRIBE_CONFIGS in rights:
            brokers = self.brokers()
            if not isinstance(brokers, Unavailable):
                (future,) = self._describe([ConfigResource(ResourceType.BROKER, str(brokers[0]))]).values()
                configs = self._ask(future, f"reading configs of broker {brokers[0]}")
                if not isinstance(configs, Unavailable) and not configs["authorizer.class.name"].value:
                    return Unavailable("not there", f"{self.connection.address} has no authorizer")
        rules = sorted(map(acl_of, answer), key=astuple)
        strange = [rule for rule in rules if "unknown" in (rule.resource, rule.operation, rule.permission)]
        return [r for r in rules if r not in set(strange)], [r.words for r in strange]

    def users(self) -> list[ScramUser] | Unavailable:
        """Return each SCRAM credential there is; its secret stays with the broker."""
        doing = "describing SCRAM users"
        rights = self._rights(doing)
        if isinstance(rights, Unavailable):
            return rights
        asked: Any = self._admin.describe_user_scram_credentials(request_timeout=TIMEOUT)
        answer = self._ask(asked, doing)
        if isinstance(answer, Unavailable):
            return answer
        users = [
            ScramUser(user=user, mechanism=info.mechanism.name.replace("_", "-"), iterations=info.iterations)
            for user, described in answer.items()
            for info in described.scram_credential_infos
        ]
        return sorted(users, key=lambda user: (user.user, user.mechanism))

    def brokers(self) -> list[int] | Unavailable:
        found = self._ask(self._admin.describe_cluster(request_timeout=TIMEOUT), "listing brokers")
        return found if isinstance(found, Unavailable) else sorted(node.id for node in found.nodes)

    def broker_configs(self) -> list[BrokerConfig] | Unavailable:
        """Return the dynamic configs of brokers, and their cluster-wide default; brokers never return sensitive
        values."""
        brokers = self.brokers()
        if isinstance(brokers, Unavailable):
            return brokers
        own, of_all = (ConfigSource.DYNAMIC_BROKER_CONFIG.value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value)
        asked = [(b, self._describe([ConfigResource(ResourceType.BROKER, str(b))])) for b in brokers]
        settings: set[BrokerConfig] = set()
        for broker, futures in asked:
            (future,) = futures.values()
            entries = self._ask(future, f"reading configs of broker {broker}")
            if isinstance(entries, Unavailable):
                return entries
            settings |= {
                BrokerConfig(broker=broker if e.source == own else None, name=e.name, value=_value(e))
                for e in entries.values()
                if e.source in (own, of_all)
            }
        return sorted(settings, key=lambda c: ("" if c.broker is None else str(c.broker), c.name))

    def group_configs(self, groups: Iterable[str]) -> list[GroupConfig] | Unavailable:
        """Return the configs set on `groups`."""
        names = sorted(groups)
        settings: list[GroupConfig] = []
        for at in range(0, len(names), _BATCH):
            resources = [ConfigResource(ResourceType.GROUP, name) for name in names[at : at + _BATCH]]
            for resource, future in self._describe(resources).items():
                entries = self._ask(future, f"reading configs of group {resource.name}")
                if isinstance(entries, Unavailable) and entries.reason == "not supported":
                    # a cluster with ZooKeeper, or old brokers, call the request malformed
                    why = f"{self.connection.address} has no group configs: its brokers are too old, or use ZooKeeper"
                    return Unavailable(entries.reason, why)
                if isinstance(entries, Unavailable):
                    return entries
                settings += [
                    GroupConfig(group=resource.name, name=e.name, value=_value(e))
                    for e in entries.values()
                    if e.source == ConfigSource.GROUP_CONFIG.value
                ]
        return sorted(settings, key=astuple)

    def create_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        """Make each; '' or why it was refused."""
        refused: dict[Acl, str] = {}
        for at in range(0, len(rules), ACLS_AT_ONCE):
            bindings = {
                AclBinding("broker" if rule.resource == _CLUSTER else rule.resource, *astuple(rule)[1:]): rule
                for rule in rules[at : at + ACLS_AT_ONCE]
            }
            futures = self._admin.create_acls(list(bindings), request_timeout=TIMEOUT)
            for binding, future in futures.items():
                rule = bindings[binding]
                refused[rule] = _refusal(self._ask(future, f"creating an ACL {rule.words}"))
        return refused

    def set_config(self, kind: Literal["broker", "group"], owner: str, name: str, value: str | None) -> str:
        """Set, or remove (None); '' or why it was refused."""
        resource = ConfigResource(ResourceType.BROKER if kind == "broker" else ResourceType.GROUP, owner)
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=operation))
        (future,) = self._admin.incremental_alter_configs([resource], request_timeout=TIMEOUT).values()
        return _refusal(self._ask(future, f"setting {name} of {kind} {owner}"))

    def _rights(self, doing: str) -> set[AclOperation] | Unavailable:
        """Return the operations on the cluster that are granted to us, Describe among them."""
        asked = self._admin.describe_cluster(include_authorized_operations=True, request_timeout=TIMEOUT)
        described = self._ask(asked, doing)
        if isinstance(described, Unavailable):
            return described
        rights = {*(described.authorized_operations or ())}
        if AclOperation.DESCRIBE not in rights:
            return Unavailable.of(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), doing, self.connection)
        return rights

    def _describe(self, resources: list[ConfigResource]) -> Mapping[ConfigResource, Future[Any]]:
        return self._admin.describe_configs(resources, request_timeout=TIMEOUT)

    def _ask(self, future: Future[Any], doing: str) -> Any:
        try:
            return future.result(timeout=TIMEOUT * 2)
        except KafkaException as raised:
            return Unavailable.of(raised.args[0], doing, self.connection)
        except concurrent.futures.TimeoutError:
            return Unavailable("failed", f"{self.connection.address} did not answer {doing}")


def _refusal(answer: object) -> str:
    return answer.why if isinstance(answer, Unavailable) else ""
