"""One topic that its target refuses: the rest of the flow goes on, and the topic catches up when it is mended."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from kbackup.archive.reader import open_archive
from kbackup.mirror.status import FlowOverview, flows_of
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.integration.mirror.conftest import Mirror
from tests.integration.mirror.test_following import running
from tests.integration.mirror.test_topologies import topics_of, values
from tests.integration.topics import produce, wait_until
from tests.support.truth import read_topic

PARTITIONS = 20
"""More than a flow has slots: the records of two such topics go out in the same transactions."""


def set_config(broker: Broker, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(broker.client())
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


@dataclass(frozen=True)
class Refusal:
    """Why a target refuses a topic's records. `first` are the source's configs while `records` are produced, `later`
    the config that it has then and the mirror copies; `mended` is the value with which records are taken again."""

    first: dict[str, str]
    records: list[bytes]
    later: tuple[str, str]
    mended: str
    key: bytes | None


REFUSALS = {
    "keyless records in a compacted topic": Refusal(
        first={}, records=[b"n%d" % n for n in range(5)], later=("cleanup.policy", "compact"), mended="delete", key=None
    ),
    "a record that is too large": Refusal(
        first={"max.message.bytes": "5000000"},
        records=[b"small", os.urandom(2_000_000), b"small too"],
        later=("max.message.bytes", "1000000"),
        mended="5000000",
        key=b"k",
    ),
}


@dataclass
class Flow:
    """A flow A->B of two topics, of which the target refuses one, and of a group of each."""

    mirror: Mirror
    refusal: Refusal
    token: str

    @property
    def source(self) -> Broker:
        return self.mirror.brokers["A"]

    @property
    def target(self) -> Broker:
        return self.mirror.brokers["B"]

    @property
    def good(self) -> str:
        return f"good-{self.token}"

    @property
    def bad(self) -> str:
        return f"bad-{self.token}"

    def begin(self) -> None:
        """Make both topics, with records in each partition, and a group that has read some of them."""
        self.source.create_topic(self.good, PARTITIONS)
        self.source.create_topic(self.bad, PARTITIONS, config=self.refusal.first)
        for partition in range(PARTITIONS):
            produce(self.source, self.good, partition, [b"0", b"1", b"2"])
        self.produce_bad(0)
        set_config(self.source, self.bad, *self.refusal.later)
        consumer = Consumer(self.source.client(**{"group.id": self.token}))
        read = [TopicPartition(topic, 0, 2) for topic in (self.good, self.bad)]

        def is_committed() -> bool:
            try:
                consumer.commit(offsets=read, asynchronous=False)
            except KafkaException:  # the coordinator is not ready yet
                return False
            return True

        wait_until(is_committed)
        consumer.close()

    def produce_bad(self, partition: int) -> None:
        key: Mapping[str, bytes] = {} if self.refusal.key is None else {"key": self.refusal.key}
        produce(self.source, self.bad, partition, self.refusal.records, **key)

    def mend(self) -> None:
        set_config(self.source, self.bad, self.refusal.later[0], self.refusal.mended)

    def is_equal(self, topic: str) -> bool:
        remote = self.mirror.remote("A", topic)
        return bool(topics_of(self.target, remote)) and values(self.target, remote) == values(self.source, topic)

    def group_offset(self, topic: str) -> int:
        reader = Consumer(self.target.client(**{"group.id": self.token}))
        (at,) = reader.committed([TopicPartition(self.mirror.remote("A", topic), 0)], 20)
        reader.close()
        return int(at.offset)


@pytest.fixture(params=[*REFUSALS.values()], ids=[*REFUSALS])
def flow(mirror: Mirror, request: pytest.FixtureRequest) -> Flow:
    made = Flow(mirror, request.param, secrets.token_hex(4))
    made.begin()
    return made


SYNC = """
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
"""


def status_of(archive: str) -> FlowOverview:
    store = open_store(archive)
    (flow,) = flows_of(open_archive(store), store)
    return flow


def test_a_refused_topic_waits_alone_and_catches_up_without_a_repetition(flow: Flow) -> None:
    mirror = flow.mirror
    file = mirror.file(f"A->B.enabled = true\ntopics = {flow.good}, {flow.bad}\n{SYNC}", "A", "B")
    mirror(file, "--once", "--take")
    (planned,) = mirror(file, "--dry-run", code=3)["flows"]
    assert list(planned["held_back"]) == [mirror.remote("A", flow.bad)], "the dry run tells it before"
    mirror(file, "--once", code=3)
    assert flow.is_equal(flow.good)
    third = read_topic(flow.target.bootstrap, mirror.remote("A", flow.good))[0][2]
    assert flow.group_offset(flow.good) == third.offset
    status = status_of(f"{file.with_suffix('')}/{mirror.named('A')}")
    held_back = {topic.topic: topic for topic in status.held_back}
    assert list(held_back) == [flow.bad]
    assert "failed delivering the record" in held_back[flow.bad].held_back
    assert held_back[flow.bad].held_since
    assert held_back[flow.bad].records_behind == len(flow.refusal.records)
    assert status.error == ""

    produce(flow.source, flow.good, 7, [b"later"])
    flow.mend()
    flow.produce_bad(5)
    mirror(file, "--once", "--take")
    assert mirror(file, "--dry-run")["flows"][0]["held_back"] == {}
    mirror(file, "--once")
    assert flow.is_equal(flow.good)
    assert flow.is_equal(flow.bad), "neither a loss nor a repetition"
    third = read_topic(flow.target.bootstrap, mirror.remote("A", flow.bad))[0][2]
    assert flow.group_offset(flow.bad) == third.offset, "behind the markers of transactions that were given up"
    assert status_of(f"{file.with_suffix('')}/{mirror.named('A')}").held_back == ()


def test_a_mirror_that_runs_tries_a_refused_topic_again_by_itself(flow: Flow) -> None:
    mirror = flow.mirror
    file = mirror.file(f"A->B.enabled = true\ntopics = {flow.good}, {flow.bad}\n{SYNC}", "A", "B")
    remote = mirror.remote("A", flow.bad)
    with running(file, "--interval", "1s") as process:
        process.until(lambda: f"topics: {remote}: " in process.told)
        for n in range(3):
            produce(flow.source, flow.good, n, [b"meanwhile"])
            process.until(lambda: flow.is_equal(flow.good))
        assert process.told.count(f"topics: {remote}: ") == 1, "the same reason is told once"
        flow.mend()
        process.until(lambda: flow.is_equal(flow.bad))
        process.until(lambda: f"topic {remote} is no longer held back" in process.told)
        assert process.end() == 3, process.told
    assert "retr" not in process.told, "no round failed"
    assert flow.is_equal(flow.good)
    assert flow.is_equal(flow.bad)


def test_a_dry_run_refuses_a_target_that_was_rebuilt(mirror: Mirror) -> None:
    name = f"r-{secrets.token_hex(4)}"
    mirror.brokers["A"].create_topic(name, 1)
    produce(mirror.brokers["A"], name, 0, [b"1"])
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    mirror(file, "--once")
    before, rebuilt = mirror.brokers["B"].bootstrap, mirror.brokers["C"].bootstrap
    file.write_text(file.read_text().replace(before, rebuilt))
    for arguments in (["--dry-run"], ["--once"]):
        error = mirror(file, *arguments, code=10)["error"]
        assert "was begun onto cluster" in error["message"]


# A topic that the mirror may not write.


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A target that lets everybody do everything, but for what ACLs say."""
    with Broker(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    ) as broker:
        yield broker


def acl_on(topic: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    literal = ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, topic, literal, "User:ANONYMOUS", "*", operation, permission)


def acls_of(topic: str) -> AclBindingFilter:
    any_operation, any_permission = AclOperation.ANY, AclPermissionType.ANY
    return AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        any_operation,
        any_permission,
    )


@pytest.mark.parametrize(
    "denied",
    [AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE],
    ids=lambda operation: operation.name,
)
def test_a_topic_without_rights_waits_alone_until_they_are_given(
    denied: AclOperation, mirror: Mirror, guarded: Broker
) -> None:
    """Reading is needed to commit its applied positions. No right on its configs alone stops no records."""
    mirror.brokers = {**mirror.brokers, "B": guarded}
    token = secrets.token_hex(4)
    good, bad = f"good-{token}", f"bad-{token}"
    source = mirror.brokers["A"]
    for topic in (good, bad):
        source.create_topic(topic, PARTITIONS)
        for partition in range(PARTITIONS):
            produce(source, topic, partition, [b"%d" % n for n in range(3)])
    file = mirror.file(f"A->B.enabled = true\ntopics = {good}, {bad}\n{SYNC}", "A", "B")
    mirror(file, "--once")
    admin, remote = AdminClient(guarded.client()), mirror.remote("A", bad)
    allowed = acl_on(remote, AclOperation.ALL, AclPermissionType.ALLOW)
    for answer in admin.create_acls([allowed, acl_on(remote, denied, AclPermissionType.DENY)]).values():
        answer.result(30)
    for topic in (good, bad):
        produce(source, topic, 3, [b"later"])
    set_config(source, bad, "retention.bytes", "100000000")
    mirror(file, "--once", code=3)
    assert values(guarded, mirror.remote("A", good)) == values(source, good)
    status = status_of(f"{file.with_suffix('')}/{mirror.named('A')}")
    if denied != AclOperation.DESCRIBE_CONFIGS:
        assert [topic.topic for topic in status.held_back] == [bad]
        assert "denied access" in status.held_back[0].held_back
    assert status.error == ""
    for answer in admin.delete_acls([acls_of(remote)]).values():
        answer.result(30)
    mirror(file, "--once")
    assert values(guarded, remote) == values(source, bad), "neither a loss nor a repetition"
