"""Every call of `Cluster` and `BrokerAdmin` at the oldest brokers that we serve, the last with ZooKeeper, and today's.

What an old broker lacks is `Unavailable`, and everything else is as with a new one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Producer

from kbackup.archive.models import GroupOffset
from kbackup.archive.restores.plan import PlannedGroup
from kbackup.jobs.restore.preflight import warn_of_share_groups
from kbackup.kafka.control.append import new_producer
from kbackup.kafka.control.cluster import BrokerAdmin, Cluster
from kbackup.kafka.control.logs import LogBatch, describe_producers, log_batches, log_windows, readable_topics
from kbackup.kafka.control.offsets import EpochPosition
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import Acl, QuotaKey
from kbackup.types import CommittedOffset, TopicPartition
from scripts.dev.jars import old_jars
from scripts.dev.kafka import Broker, Nodes
from scripts.dev.zookeeper import MigratingCluster
from tests.integration.secured import GUARDED
from tests.support.same_offsets import MadeLog, MadeUnit
from tests.support.truth import read_topic

T = TypeVar("T")

RECORDS = 10
BROKERS: dict[str, Callable[[], Nodes]] = {
    "2.8": lambda: MigratingCluster(controllers=0, jars=old_jars),
    "3.9": lambda: MigratingCluster(controllers=0),
    "4.4": lambda: Broker(GUARDED),
}
TODAY = "4.4"


@pytest.fixture(scope="module", params=BROKERS)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def nodes(release: str) -> Iterator[Nodes]:
    with BROKERS[release]() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(nodes: Nodes) -> Cluster:
    return Cluster({"bootstrap.servers": nodes.bootstrap}, "target")


@pytest.fixture
def topic(cluster: Cluster, nodes: Nodes) -> str:
    """Two partitions; the first has records."""
    name = f"orders-{secrets.token_hex(4)}"
    made = cluster.topic_admin.create([TopicToCreate(name, 2, 1, {"retention.ms": "-1"})])
    assert made == {}
    producer = Producer(nodes.client())
    for number in range(RECORDS):
        producer.produce(name, str(number), partition=0)
    assert producer.flush(30) == 0
    return name


def there(found: T | Unavailable) -> T:
    assert not isinstance(found, Unavailable), found.why
    return found


def settled(read: Callable[[], object], expected: object) -> None:
    """Old brokers spread what changes among themselves."""
    for _ in range(100):
        if read() == expected:
            return
        time.sleep(0.1)
    assert read() == expected


def test_a_cluster_is_connected_to(cluster: Cluster, topic: str) -> None:
    cluster_id, brokers = cluster.connect()
    assert cluster_id
    assert brokers == 1
    assert cluster.round_trip(topic) > 0
    assert cluster.broker_configs()["min.insync.replicas"] == "1"


def test_topics_are_described(cluster: Cluster, topic: str) -> None:
    assert topic in cluster.topic_names()
    described = cluster.topics([topic, "not-there"])
    assert [*described] == [topic]
    assert [*described[topic].partitions] == [0, 1]
    assert described[topic].id  # since 2.8
    assert cluster.missing_rights([topic], ["DESCRIBE", "READ"]) == {}


def test_topics_are_changed(cluster: Cluster, topic: str) -> None:
    assert cluster.topic_configs([topic]) == {topic: {"retention.ms": "-1"}}
    assert cluster.topic_admin.alter_configs({topic: {"retention.ms": None, "cleanup.policy": "compact"}}) == {}
    settled(lambda: cluster.topic_configs([topic]), {topic: {"cleanup.policy": "compact"}})
    assert cluster.one_config([topic], "cleanup.policy") == {topic: "compact"}
    assert cluster.readable_config([topic], "cleanup.policy") == {topic: "compact"}
    assert cluster.all_topic_configs([topic])[topic]["min.insync.replicas"] == "1"
    assert cluster.topic_admin.add_partitions({topic: 3}) == {}
    assert cluster.topic_admin.wait_visible({topic: 3}) == {}
    refused = cluster.topic_admin.alter_configs({topic: {"no.such.config": "1"}})
    assert [*refused] == [topic]
    assert cluster.delete_topics([topic]) == {topic: ""}
    settled(lambda: cluster.topics([topic]), {})


def test_a_topic_that_is_there_is_not_created_again(cluster: Cluster, topic: str) -> None:
    made = cluster.topic_admin.create([TopicToCreate(topic, 1, 1, {})])
    assert "already exists" in str(made[topic])


def test_offsets_of_logs_are_listed(cluster: Cluster, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert cluster.log_starts([first, second]) == {first: 0, second: 0}
    for isolation in ("read_committed", "read_uncommitted"):
        assert cluster.log_ends([first, second], isolation) == {first: RECORDS, second: 0}
    assert cluster.high_watermarks([first])[first].offset == RECORDS
    assert cluster.leader_epochs([first])[first] == 0
    validation = cluster.validate_epochs({first: EpochPosition(RECORDS, 0)}, 10.0)
    assert not validation.truncated


def test_groups_are_written_read_and_deleted(cluster: Cluster, topic: str) -> None:
    group, other = (f"{name}-{topic}" for name in ("group", "other"))
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    offsets = [CommittedOffset(first, 3, None, "note"), CommittedOffset(second, 0, None, "")]
    assert cluster.groups.commit_all({group: offsets, other: offsets[:1]}) == {group: "", other: ""}
    committed, refused = cluster.groups.committed([group, other])
    assert refused == {}
    assert {each.tp: (each.offset, each.metadata) for each in committed[group]} == {first: (3, "note"), second: (0, "")}
    assert [each.tp for each in committed[other]] == [first]
    listed, failures = cluster.groups.listed()
    assert failures == {}
    assert {group, other} <= {each.group for each in listed}
    assert cluster.groups.members([group, other]) == ({group: "", other: ""}, {})
    assert cluster.groups.remove({group: offsets[:1]}) == {group: ""}
    remaining, _ = cluster.groups.committed([group])
    assert [each.tp for each in remaining[group]] == [second]
    deleted = cluster.groups.delete_each([group, other, "not-there"])
    assert set(deleted.values()) <= {""}
    committed, refused = cluster.groups.committed([group])
    assert (committed.get(group, []), refused) == ([], {})


def test_share_groups_that_brokers_do_not_know_are_named_before_a_restore(
    cluster: Cluster, topic: str, release: str
) -> None:
    position = GroupOffset(topic=topic, partition=0, offset=4, leader_epoch=None, metadata="")
    shared = PlannedGroup(source="sharing", target=f"sharing-{topic}", type="share", offsets=(position,))
    plain = PlannedGroup(source="plain", target=f"plain-{topic}", offsets=(position,))
    warnings = warn_of_share_groups(cluster, [plain, shared])
    if release == TODAY:
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.startswith(f"share group sharing-{topic} can't be set on the target")
        assert "the brokers are too old for share groups" in warning


def test_acls_users_quotas_and_tokens_are_read_and_changed(cluster: Cluster) -> None:
    name = secrets.token_hex(4)
    rule = Acl(
        resource="topic",
        name=name,
        pattern="literal",
        principal="User:alice",
        host="*",
        operation="read",
        permission="allow",
    )

    def rules() -> list[Acl]:
        found, unknown = there(cluster.security.acls())
        assert unknown == []
        return [each for each in found if each.name == name]

    assert cluster.security.create_acls([rule]) == {rule: ""}
    settled(rules, [rule])
    assert cluster.security.delete_acls([rule]) == {rule: ""}
    settled(rules, [])
    assert isinstance(there(cluster.security.users()), list)
    entity: QuotaKey = (("user", name),)

    def quotas() -> list[dict[str, float]]:
        return [each.quotas for each in there(cluster.security.client_quotas()) if each.entity == dict(entity)]

    assert cluster.security.set_quotas({entity: {"consumer_byte_rate": 1024.0}}) == {entity: ""}
    settled(quotas, [{"consumer_byte_rate": 1024.0}])
    assert cluster.security.set_quotas({entity: {"consumer_byte_rate": None}}) == {entity: ""}
    settled(quotas, [])
    tokens = cluster.security.delegation_tokens()
    assert isinstance(tokens, Unavailable) or tokens == []


def test_configs_that_were_set_at_run_time_are_read_and_changed(cluster: Cluster, release: str) -> None:
    def of_brokers() -> list[tuple[str, str]]:
        return [
            (each.name, each.value) for each in there(cluster.dynamic_configs.of_brokers()) if each.value == "12345"
        ]

    assert cluster.dynamic_configs.set_on_all_brokers("log.retention.ms", "12345") == ""
    settled(of_brokers, [("log.retention.ms", "12345")])
    assert cluster.dynamic_configs.set_on_all_brokers("log.retention.ms", None) == ""
    settled(of_brokers, [])
    groups = cluster.dynamic_configs.of_groups(["g"])
    metrics = cluster.dynamic_configs.of_client_metrics()
    if release == TODAY:
        assert there(groups) == []
        assert there(metrics) == []
    if release == "2.8":
        assert isinstance(groups, Unavailable)
        assert isinstance(metrics, Unavailable)


def test_members_and_features_are_told(cluster: Cluster, nodes: Nodes, release: str) -> None:
    (broker,) = there(cluster.members.broker_ids())
    assert there(cluster.members.fetch_version(broker)) >= 12
    assert there(cluster.members.reassignments()) == []
    features = cluster.members.features()
    if release == TODAY:
        assert "metadata.version" in {each.name for each in there(features)}
    admin = BrokerAdmin({"bootstrap.servers": nodes.bootstrap}, "target")
    found = admin.brokers()
    assert found.addresses == {broker: nodes.bootstrap}
    assert found.offline == ()
    assert admin.configs(broker)["min.insync.replicas"] == "1"
    assert there(admin.fetch_version(broker)) >= 12
    assert there(admin.reassignments()) == []


def test_logs_are_read_by_their_batches(cluster: Cluster, topic: str) -> None:
    first = TopicPartition(topic, 0)
    assert readable_topics(cluster.router, [topic])[topic].error == 0
    batch = there(log_batches(cluster.router, {first: 3}))[first]
    assert isinstance(batch, LogBatch)
    assert batch.first <= 3 <= batch.last
    window = log_windows(cluster.router, {first: (0, RECORDS, RECORDS)}, 1 << 20, [first])[first]
    values = [value for each in window.batches for _, _, value in each.records()]
    assert values == [str(number).encode() for number in range(RECORDS)]
    assert window.complete


def test_producers_of_logs_are_told(cluster: Cluster, topic: str) -> None:
    first = TopicPartition(topic, 0)
    assert describe_producers(cluster.router, [first])[first] == []


def test_logs_are_filled_with_the_same_offsets_and_a_second_try_changes_nothing(
    cluster: Cluster, nodes: Nodes, tmp_path: Path
) -> None:
    logs = [MadeLog([*range(5_000, 5_040), *range(5_041, 5_060)], 5_000, 5_066), MadeLog([], 700, 700)]
    target = f"same-{secrets.token_hex(4)}"
    assert cluster.topic_admin.create([TopicToCreate(target, 2, 1, {"retention.ms": "-1"})]) == {}
    assert cluster.topic_admin.wait_visible({target: 2}) == {}
    producer = new_producer(cluster.router)
    unit = MadeUnit(str(tmp_path), nodes.bootstrap, target, logs, producer.id, producer.epoch)
    assert unit.run().failed == ()
    assert unit.run().failed == ()
    found = read_topic(nodes.bootstrap, target, "read_uncommitted")
    assert found == {0: unit.records(0), 1: []}
    first, second = TopicPartition(target, 0), TopicPartition(target, 1)
    assert cluster.log_starts([first, second]) == {first: 5_000, second: 700}
    assert cluster.log_ends([first, second], "read_uncommitted") == {first: 5_066, second: 700}
