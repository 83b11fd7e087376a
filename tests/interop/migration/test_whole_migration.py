"""One cluster all the way: ZooKeeper, dual write, KRaft, Kafka 4.4. Its metadata stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbackup.jobs.metadata import MetadataSide, compare, in_words
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.metadata_log.image import read_metadata_log
from kbackup.migrate.zookeeper.read import read_zookeeper
from scripts.dev.zookeeper import MigratingCluster
from tests.interop.metadata_log.cluster import KAFKA_4, dump, files_of
from tests.interop.migration import content
from tests.interop.migration.clusters import Filled, words
from tests.interop.migration.conftest import SUPER_USERS
from tests.support.java import Java
from tests.support.metadata_records import check_as_printed, check_encoding

LATER = {
    "topics": [content.topic("made-in-dual-write", [[0]], retention_ms="1000000")],
    "acls": [content.acl("topic", "made-in-dual-write", "read", principal="User:later one")],
    "client_quotas": [content.quota({"producer_byte_rate": 3.0}, user="later one")],
    "scram_users": [{"user": "later one", "mechanism": "SCRAM-SHA-512", "iterations": 4096, "password": "very late"}],
}


@pytest.fixture(scope="module")
def moving(java: Java) -> Iterator[Filled]:
    with MigratingCluster(properties=SUPER_USERS) as cluster:
        made = Filled(cluster, java, ZooKeeperOptions(connect=cluster.zookeeper_connect))
        made.fill(content.everything([0]))
        yield made


def test_metadata_stays_the_same_at_each_step_of_a_migration(moving: Filled) -> None:
    """The steps of the runbook, in order. `listed` logs in as a SCRAM user: so users log in after each."""
    cluster, first = moving.cluster, comparable(moving.listed())

    cluster.start_controllers()
    cluster.wait_for_state("PRE_MIGRATION")
    assert read_metadata_log(cluster.metadata_log()).outdated
    assert comparable(moving.listed()) == first

    cluster.restart_brokers("migration")
    cluster.wait_for_state("MIGRATION")
    wait_for_both_sides(moving)
    assert comparable(moving.listed()) == first

    moving.fill(dict(LATER))
    wait_for_both_sides(moving)
    names = {topic.name for topic in read_zookeeper(moving.zookeeper).topics or ()}
    assert names == {"orders", content.DELETED, "made-in-dual-write"}
    last = comparable(moving.listed())

    cluster.restart_brokers("kraft")
    assert cluster.state() == "MIGRATION"
    wait_for_both_sides(moving)
    assert comparable(moving.listed()) == last

    cluster.start_controllers(migration=False)
    cluster.wait_for_state("POST_MIGRATION")
    assert comparable(moving.listed()) == last

    cluster.upgrade()
    # the feature eligible.leader.replicas.version writes down what was the default
    last["broker_configs"] += words([{"broker": None, "name": "min.insync.replicas", "value": "1"}])
    assert comparable(moving.listed()) == last
    log = read_metadata_log(cluster.metadata_log())
    assert words(log.acls) == last["acls"]
    assert words(log.client_quotas) == last["client_quotas"]
    check_log_as_kafka_prints_it(cluster)


def check_log_as_kafka_prints_it(cluster: MigratingCluster) -> None:
    """The log that 3.9 began and 4.4 went on with, record by record, batch by batch."""
    cluster.stop(*cluster.brokers)
    cluster.stop_controllers()
    files = files_of(cluster.metadata_log())
    names = check_as_printed(files, dump(KAFKA_4, files))
    assert names >= {
        "ZkMigrationStateRecord",
        "TopicRecord",
        "PartitionRecord",
        "ConfigRecord",
        "AccessControlEntryRecord",
        "ClientQuotaRecord",
        "UserScramCredentialRecord",
        "DelegationTokenRecord",
        "FeatureLevelRecord",
    }
    check_encoding(files)


def comparable(listed: dict[str, Any]) -> dict[str, Any]:
    return {part: words(value) if isinstance(value, list) else value for part, value in listed.items()}


def differences(moving: Filled) -> list[str]:
    zookeeper = MetadataSide("ZooKeeper", read_zookeeper(moving.zookeeper))
    log = MetadataSide("KRaft", read_metadata_log(moving.cluster.metadata_log()))
    assert zookeeper.metadata.cluster_id == log.metadata.cluster_id
    return [in_words(difference, zookeeper.name, log.name) for difference in compare(zookeeper, log)]


def wait_for_both_sides(moving: Filled) -> None:
    """Until ZooKeeper has what the controllers wrote: they write there a little later."""
    cluster = moving.cluster
    cluster.wait(cluster.controllers[0], lambda: not differences(moving), "ZooKeeper's side of the dual write", 30)
