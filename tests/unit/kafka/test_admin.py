"""Requests for ACLs, SCRAM users and dynamic configs, and the reading of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
)

from kbackup.errors import KbackupError, UnreachableError
from kbackup.kafka.admin.cluster import TopicAdmin, TopicToCreate
from kbackup.kafka.client import Connection
from kbackup.kafka.security import ACLS_AT_ONCE, SecurityAdmin, Unavailable
from kbackup.metadata.entities import BrokerConfig, GroupConfig, ScramUser
from tests.support.metadata_entities import acl_of
from tests.unit.kafka.conftest import answer

EVERY = [AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
OWN, OF_ALL = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def entry(name: str, value: str | None, source: ConfigSource, **more: Any) -> ConfigEntry:
    return ConfigEntry(name, value, source=source.value, **more)  # type: ignore[arg-type]  # as confluent-kafka does


class Admin:
    """Answers of a cluster: an error code, or what confluent-kafka gives."""

    def __init__(
        self,
        rights: Sequence[AclOperation] | None = EVERY,
        acls: object = (),
        users: object = None,
        brokers: dict[int, Any] | None = None,
        groups: dict[str, Any] | None = None,
    ) -> None:
        self.rights, self.acls, self.users = rights, acls, users
        self.brokers = {1: [entry("authorizer.class.name", "A", ConfigSource.STATIC_BROKER_CONFIG)]} | (brokers or {})
        self.groups = groups or {}
        self.asked: list[str] = []

    def describe_cluster(self, **_: object) -> Future[Any]:
        nodes = [SimpleNamespace(id=number) for number in self.brokers]
        return answer(SimpleNamespace(nodes=nodes, authorized_operations=self.rights))

    def describe_acls(self, *_: object, **__: object) -> Future[Any]:
        self.asked.append("acls")
        return answer(self.acls)

    def describe_user_scram_credentials(self, **_: object) -> Future[Any]:
        self.asked.append("users")
        return answer(self.users)

    def describe_configs(self, resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[Any]]:
        brokers = [r for r in resources if r.restype == ResourceType.BROKER]
        assert len(brokers) <= 1, "one broker a request is all that librdkafka takes"
        found = {}
        for resource in resources:
            told = self.brokers[int(resource.name)] if brokers else self.groups[resource.name]
            found[resource] = answer(told if isinstance(told, int) else {e.name: e for e in told})
        return found


def security(admin: object) -> SecurityAdmin:
    return SecurityAdmin(Connection({"bootstrap.servers": "h:1"}, "source"), cast(AdminClient, admin))


def test_acls_in_kafkas_words() -> None:
    bindings = [
        AclBinding("broker", "kafka-cluster", "literal", "User:b", "*", "cluster_action", "deny"),
        AclBinding("transactional_id", "tx", "prefixed", "User:a", "h", "idempotent_write", "allow"),
        AclBinding("unknown", "someone", "literal", "User:a", "*", "describe", "allow"),
    ]
    assert security(Admin(acls=bindings)).acls() == (
        [
            acl_of("cluster", "kafka-cluster", "literal", "User:b", "*", "cluster_action", "deny"),
            acl_of("transactional_id", "tx", "prefixed", "User:a", "h", "idempotent_write", "allow"),
        ],
        ["allow describe for User:a from * on unknown someone (literal)"],
    )


@pytest.mark.parametrize("rights", [None, [], [AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER]])
def test_nothing_is_asked_that_would_be_refused(rights: list[AclOperation] | None) -> None:
    """confluent-kafka crashes where users are refused, and takes refused ACLs for none."""
    admin = Admin(rights=rights)
    for told in (security(admin).acls(), security(admin).users()):
        assert isinstance(told, Unavailable)
        assert told.reason == "denied"
        assert "it takes Describe on the cluster" in told.why
    assert admin.asked == []


def test_no_acls_and_no_authorizer() -> None:
    bare = {1: [entry("authorizer.class.name", "", ConfigSource.DEFAULT_CONFIG)]}
    told = security(Admin(brokers=bare)).acls()
    assert isinstance(told, Unavailable)
    assert told.reason == "not there"
    assert security(Admin()).acls() == ([], [])
    # who may not see it does not know, and may describe ACLs all the same: so somebody decides
    assert security(Admin(rights=[AclOperation.DESCRIBE], brokers=bare)).acls() == ([], [])


def test_users() -> None:
    info = [ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)]
    told = {"b": SimpleNamespace(scram_credential_infos=info), "a": SimpleNamespace(scram_credential_infos=[])}
    assert security(Admin(users=told)).users() == [ScramUser(user="b", mechanism="SCRAM-SHA-512", iterations=8192)]


def test_configs_of_brokers() -> None:
    both = [
        entry("log.retention.ms", "1", OF_ALL),
        entry("num.io.threads", "8", ConfigSource.DEFAULT_CONFIG),
        entry("log.dirs", "/d", ConfigSource.STATIC_BROKER_CONFIG),
    ]
    told = {
        1: [*both, entry("secret", "should not be here", OWN, is_sensitive=True)],
        12: [*both, entry("min.insync.replicas", "2", OWN)],
    }
    assert security(Admin(brokers=told)).broker_configs() == [
        BrokerConfig(broker=None, name="log.retention.ms", value="1"),
        BrokerConfig(broker=1, name="secret", value=None),
        BrokerConfig(broker=12, name="min.insync.replicas", value="2"),
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "denied"),
        (KafkaError.UNSUPPORTED_VERSION, "not supported"),
        (KafkaError.INVALID_REQUEST, "not supported"),
        (KafkaError._TIMED_OUT, "failed"),
    ],
)
def test_one_broker_that_does_not_tell_is_enough_not_to_know(code: int, reason: str) -> None:
    told = security(Admin(brokers={2: code})).broker_configs()
    assert isinstance(told, Unavailable)
    assert told.reason == reason
    assert "configs of broker 2" in told.why


def test_configs_of_many_groups() -> None:
    groups = {f"g{n:04}": [entry("a", str(n), ConfigSource.GROUP_CONFIG)] for n in range(2500)}
    groups["g0007"] = [entry("a", "0", ConfigSource.DEFAULT_CONFIG)]
    told = security(Admin(groups=groups)).group_configs(groups)
    assert told == [GroupConfig(group=f"g{n:04}", name="a", value=str(n)) for n in range(2500) if n != 7]
    groups["g2400"] = KafkaError.GROUP_AUTHORIZATION_FAILED  # type: ignore[assignment]
    denied = security(Admin(groups=groups)).group_configs(groups)
    assert isinstance(denied, Unavailable)
    assert denied.reason == "denied"


def test_a_cluster_without_group_configs_is_not_blamed_on_a_group() -> None:
    told = security(Admin(groups={"g": KafkaError.INVALID_REQUEST})).group_configs(["g"])
    assert told == Unavailable(
        "not supported", "source cluster at h:1 has no group configs: its brokers are too old, or use ZooKeeper"
    )


def test_many_acls_are_made_in_several_requests() -> None:
    sent: list[int] = []

    def create_acls(bindings: list[AclBinding], **_: Any) -> dict[AclBinding, Future[Any]]:
        sent.append(len(bindings))
        return {binding: answer(None) for binding in bindings}

    rules = [acl_of("topic", f"t{n}", "literal", "User:a", "*", "read", "allow") for n in range(2 * ACLS_AT_ONCE + 1)]
    assert security(SimpleNamespace(create_acls=create_acls)).create_acls(rules) == dict.fromkeys(rules, "")
    assert sent == [ACLS_AT_ONCE, ACLS_AT_ONCE, 1]


# Changes of many topics: what brokers refuse is reported by topic, what no broker answers is raised.


NAMES = ["a", "b"]


class TopicsAdmin:
    """Answers each request about a topic with its error code, if it has one."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.batches: list[int] = []

    def answer(self, names: Sequence[str]) -> dict[str, Future[Any]]:
        self.batches.append(len(names))
        return {name: answer(self.codes.get(name)) for name in names}

    def create_topics(self, topics: Sequence[Any], **_: object) -> dict[str, Future[Any]]:
        return self.answer([topic.topic for topic in topics])

    create_partitions = create_topics

    def incremental_alter_configs(self, resources: Sequence[Any], **_: object) -> dict[Any, Future[Any]]:
        answers = self.answer([resource.name for resource in resources])
        return {resource: answers[resource.name] for resource in resources}


def topics(fake: TopicsAdmin) -> TopicAdmin:
    return TopicAdmin(Connection({"bootstrap.servers": "h:1"}, "target"), cast(AdminClient, fake))


Change = Callable[[TopicAdmin, list[str]], dict[str, KbackupError]]
CHANGES: dict[str, Change] = {
    "Create on the cluster, or on topics": lambda admin, names: admin.create([TopicToCreate(n, 1, 1) for n in names]),
    "Alter on the topic": lambda admin, names: admin.add_partitions(dict.fromkeys(names, 3)),
    "AlterConfigs on the topic": lambda admin, names: admin.alter_configs({n: {"retention.ms": None} for n in names}),
}


@pytest.mark.parametrize("right", CHANGES)
def test_refusals_name_the_missing_right(right: str) -> None:
    refused = CHANGES[right](topics(TopicsAdmin(b=KafkaError.TOPIC_AUTHORIZATION_FAILED)), NAMES)
    assert refused.keys() == {"b"}
    assert f"it takes {right}" in refused["b"].message


@pytest.mark.parametrize("right", CHANGES)
def test_a_cluster_that_does_not_answer_is_an_error(right: str) -> None:
    with pytest.raises(UnreachableError, match="topic a"):
        CHANGES[right](topics(TopicsAdmin(a=KafkaError._TRANSPORT)), NAMES)


@pytest.mark.parametrize(("exist_ok", "refused"), [(True, set()), (False, {"a"})])
def test_a_topic_that_exists_is_refused_unless_that_is_fine(exist_ok: bool, refused: set[str]) -> None:
    admin = topics(TopicsAdmin(a=KafkaError.TOPIC_ALREADY_EXISTS))
    assert admin.create([TopicToCreate(name, 1, 1) for name in NAMES], exist_ok=exist_ok).keys() == refused


BATCHES: dict[str, tuple[Callable[[TopicAdmin], dict[str, KbackupError]], list[int]]] = {
    "none": (lambda admin: admin.create([]), []),
    "small topics": (lambda admin: admin.create([TopicToCreate(f"t{n:04}", 1, 1) for n in range(1200)]), [1000, 200]),
    "wide ones": (
        lambda admin: admin.create([TopicToCreate(f"t{n}", n, 1) for n in (999, 999, 2500, 1, 5000)]),
        [1, 1, 1, 1],
    ),
    "with configs": (
        lambda admin: admin.create([TopicToCreate(f"t{n:04}", 7, 1, {"a": "1", "b": "2"}) for n in range(250)]),
        [200, 50],
    ),
    "partitions": (lambda admin: admin.add_partitions({f"t{n}": 600 for n in range(4)}), [3, 1]),
    "configs": (lambda admin: admin.alter_configs({f"t{n:04}": {"a": None, "b": "1"} for n in range(1001)}), [1000, 1]),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_request_changes_no_more_than_a_controller_takes(case: str) -> None:
    """A KRaft controller refuses a request of 10,000 records as a whole."""
    change, batches = BATCHES[case]
    fake = TopicsAdmin()
    assert (change(topics(fake)), fake.batches) == ({}, batches)
