"""One filled cluster for the tests that only read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.store.crypt.kek import generate_key
from scripts.dev.zookeeper import FIRST_CONTROLLER, MigratingCluster
from tests.interop.migration import content
from tests.interop.migration.clusters import DualWrite, Filled
from tests.support.java import Java, compiled
from tests.support.secrets import make

SUPER_USERS = {"super.users": "User:ANONYMOUS;User:alice"}
MANY = 500
DOWN = FIRST_CONTROLLER + 2
"""The controller that doesn't run in `dual`."""


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
        brokers=2, controllers=0, chroot="/kafka/one", properties=SUPER_USERS, zookeeper_user=("kafka", password)
    ) as cluster:
        options = ZooKeeperOptions(connect=cluster.zookeeper_connect, user="kafka", password=password)
        made = Filled(cluster, java, options)
        everything = content.everything([0, 1])
        everything["topics"] += [content.topic(f"many-{n:03}", [[0]]) for n in range(MANY)]
        made.fill(everything)
        cluster.stop(1)
        admin = AdminClient(cluster.client())  # its futures fail when it goes
        (deleted,) = admin.delete_topics([content.DELETED]).values()
        deleted.result(30)
        yield made


@pytest.fixture(scope="module")
def dual(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DualWrite]:
    folder = tmp_path_factory.mktemp("dual")
    (folder / "key").write_text(generate_key())
    (folder / "key").chmod(0o600)
    with MigratingCluster(controllers=3, properties=SUPER_USERS) as cluster:
        made = Filled(cluster, java, ZooKeeperOptions(connect=cluster.zookeeper_connect))
        made.fill(content.everything([0]))
        cluster.start_controllers()
        cluster.wait_for_state("PRE_MIGRATION")
        cluster.restart_brokers("migration")
        cluster.stop(DOWN)
        cluster.wait_for_state("MIGRATION")
        yield DualWrite(made, folder)
