"""Kafka's znodes, as preflight, status and rollback read them."""

from __future__ import annotations

import pytest

from kbackup.errors import CorruptError
from kbackup.jobs.migrate.states import ControllerZnode, MigrationZnode, ZnodesWitness
from kbackup.jobs.migrate.znodes import ZnodeContent, ZooKeeperFindings, read_findings, read_witness
from tests.support.fake_zookeeper import FakeZooKeeper

CLUSTER: dict[str, object] = {
    "/cluster/id": {"version": "1", "id": "L05pbYc6Q4qlvxLk3rTO9A"},
    "/brokers/ids/1": {},
    "/brokers/ids/2": {},
    "/brokers/topics/orders": {"version": 3, "topic_id": "x", "partitions": {"0": [1, 2], "1": [2, 4]}},
    "/brokers/topics/b": {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [1]},
        "adding_replicas": {"0": [2]},
        "removing_replicas": {},
    },
    "/config/brokers/<default>": {},
    "/config/brokers/7": {
        "config": {"log.retention.ms": "1", "ssl.key.password": "salt:x,encryptedPassword:y"}
    },
    "/admin/delete_topics/old": b"",
}


def test_findings() -> None:
    assert read_findings(FakeZooKeeper(CLUSTER)) == ZooKeeperFindings(
        cluster_id="L05pbYc6Q4qlvxLk3rTO9A",
        alive=frozenset({1, 2}),
        known=frozenset({1, 2, 4, 7}),
        deletions=("old",),
        reassigning=("b-0",),
        encrypted={"ssl.key.password of broker 7": "salt:x,encryptedPassword:y"},
    )
    assert read_findings(FakeZooKeeper({})).cluster_id == ""


def test_controller_of_a_broker() -> None:
    """Kafka 3.9 writes the epoch -1; older releases none."""
    for extra in ({"kraftControllerEpoch": -1}, {}):
        znodes = FakeZooKeeper(
            {**CLUSTER, "/controller": {"version": 2, "brokerid": 1, **extra}}, frozenset({"/controller"})
        )
        witness, (content,) = read_witness(znodes)
        assert witness == ZnodesWitness(ControllerZnode(1, -1), None, frozenset({1, 2}))
        assert content.ephemeral


def test_controller_of_the_quorum() -> None:
    znodes = {
        "/controller": {"version": 2, "brokerid": 3000, "kraftControllerEpoch": 5},
        "/migration": {"kraft_metadata_offset": 99, "kraft_controller_id": 3000},
    }
    witness, contents = read_witness(FakeZooKeeper(dict(znodes)))
    assert witness == ZnodesWitness(ControllerZnode(3000, 5), MigrationZnode(99), frozenset())
    assert contents[1] == ZnodeContent(
        "/migration", '{"kraft_metadata_offset": 99, "kraft_controller_id": 3000}', 0, False
    )


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", {}, {"brokerid": "one"}])
def test_other_znodes(data: object) -> None:
    with pytest.raises(CorruptError, match="znode /controller"):
        read_witness(FakeZooKeeper({"/controller": data}))
