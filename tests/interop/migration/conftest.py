"""One filled cluster for the tests that only read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from kbackup.metadata.sources import ZooKeeperOptions
from scripts.dev.zookeeper.cluster import MigratingCluster
from tests.interop.migration import content
from tests.interop.migration.clusters import Filled
from tests.support.java import Java, compiled
from tests.support.secrets import make

SUPER_USERS = {"super.users": "User:ANONYMOUS;User:alice"}
MANY = 500


@pytest.fixture(scope="session")
def java() -> Iterator[Java]:
    with compiled("ClusterMetadata.java", "Tools.java") as made:
        yield made


@pytest.fixture(scope="session")
def filled(java: Java) -> Iterator[Filled]:
    """Two brokers with ZooKeeper below a chroot, who log in there; the second one is down, and a topic waits for its
    deletion because of that."""
    password = make("the brokers' password for ZooKeeper")
    with MigratingCluster(
        brokers=2,
        controllers=0,
        chroot="/kafka/one",
        properties=SUPER_USERS,
        zookeeper_user=("kafka", password),
    ) as cluster:
        options = ZooKeeperOptions(connect=cluster.zookeeper_connect, user="kafka", password=password)
        made = Filled(cluster, java, options)
        everything = content.everything([0, 1])
        everything["topics"] += [content.topic(f"many-{n:03}", [[0]]) for n in range(MANY)]
        made.fill(everything)
        cluster.nodes.stop(1)
        admin = AdminClient(cluster.client())  # its futures fail when it goes
        (deleted,) = admin.delete_topics([content.DELETED]).values()
        deleted.result(30)
        yield made
