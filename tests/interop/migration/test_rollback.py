"""The way back from dual write: nothing is deleted while ZooKeeper lacks what was acknowledged."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from tests.interop.migration.clusters import DualWrite


def test_a_rollback_waits_for_what_zookeeper_lacks(dual: DualWrite) -> None:
    """Topics are acknowledged while ZooKeeper stalls, and the controllers die."""
    cluster = dual.filled.cluster
    cluster.start_controllers()
    cluster.wait_for_state("MIGRATION")
    assert dual.migrate("archive").document["warnings"] == []
    with cluster.zookeeper.stalled():
        admin = AdminClient(cluster.client())
        for topic in ("under-way", "acknowledged"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        for controller in cluster.controllers:
            cluster.kill(controller)
    _, report = dual.migrate("archive")
    assert [text.partition(" of the")[0] for text in report["warnings"] if "lacks" in text] == [
        "ZooKeeper lacks 2 PartitionRecord, 2 TopicRecord"
    ]
    _, report = dual.migrate("verify", "--lag", "0s")
    assert "topics: acknowledged: in metadata log, not in zookeeper" in [d["text"] for d in report["differences"]]
    others = [cluster.metadata_log(each).parent for each in cluster.controllers[1:]]
    logs = [option for folder in others for option in ("--metadata-log", str(folder))]
    assert dual.migrate("rollback", "--confirm").code == 10
    assert "the logs of a minority are read: controllers 3000 of 3000, 3001, 3002" in dual.printed[-1]
    assert dual.migrate("rollback", "--confirm", *logs).code == 10
    assert "it lacks 2 PartitionRecord, 2 TopicRecord of the metadata log" in dual.printed[-1]
    _, report = dual.migrate("rollback", *logs)
    due = [step["text"] for step in report["steps"] if step["done"] is False]
    assert due[:2] == [
        "start the controllers again, and wait until ZooKeeper has every record",
        "kbackup migrate verify",
    ]
    cluster.start_controllers()
    cluster.wait_for_state("MIGRATION")
    assert dual.migrate("archive").document["warnings"] == []
    cluster.stop_controllers()
    assert dual.migrate("archive").code == 0
    _, report = dual.migrate("rollback", *logs)
    broken = [guard["name"] for guard in report["guards"] if not guard["holds"]]
    assert not broken, f"guards that do not hold: {broken}"


def test_a_deletion_that_stopped_halfway_is_finished(dual: DualWrite) -> None:
    """/controller is gone, /migration is not: the broker has taken /controller, and keeps it."""
    cluster = dual.filled.cluster
    cluster.stop_controllers()
    assert dual.migrate("archive").code == 0
    client = KazooClient(cluster.zookeeper_connect)
    client.start(timeout=30)
    try:
        client.delete("/controller")
        cluster.wait(0, lambda: client.exists("/controller") is not None, "a broker as the controller")
        controller = client.get("/controller")
        code, report = dual.migrate("status")
        assert (code, report["state"], report["certain"], report["way_back"]) == (3, "half rolled back", True, True)
        code, report = dual.migrate("rollback", "--confirm")
        assert (code, [znode["path"] for znode in report["deleted"]]) == (0, ["/migration"])
        assert client.get("/controller") == controller
        assert client.exists("/migration") is None
    finally:
        client.stop()
        client.close()
    cluster.restart_brokers("zookeeper")
    _, report = dual.migrate("rollback")
    assert [step["text"].partition(":")[0] for step in report["steps"] if not step["done"]] == [
        "delete the controllers' storage"
    ]
