"""A real migration, step by step: what preflight says of a broken cluster and of a healed one, where status sees the
migration, and the way back with a second try."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from kbackup.cli import main
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.zookeeper.session import open_session
from scripts.dev.zookeeper import FIRST_CONTROLLER, MigratingCluster

OTHER_CLUSTER = "b3RoZXIgY2x1c3Rlcjox"
FLAG = "zookeeper.metadata.migration.enable"


class Walked(NamedTuple):
    """What `kbackup migrate` ended with."""

    code: int
    document: dict[str, Any]
    err: str


@dataclass
class Walk:
    """A cluster on its way, and kbackup beside it."""

    cluster: MigratingCluster
    folder: Path

    def run(self, *arguments: str) -> Walked:
        """Exit code, JSON document and stderr of `kbackup migrate`."""
        config = self.folder / "kbackup.toml"
        config.write_text(
            f'archive = "{self.folder}/archive"\n[source]\n"bootstrap.servers" = "{self.cluster.bootstrap}"\n'
            f'"zookeeper.connect" = "{self.cluster.zookeeper_connect}"\n'
        )
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["migrate", *arguments, "--json", "--config", str(config)])
        return Walked(code, json.loads(out.getvalue()), err.getvalue())

    def preflight(self, file: Path | None = None) -> dict[str, dict[str, str]]:
        """The lines that are not ok, by name."""
        file = file or self.cluster.properties_file(FIRST_CONTROLLER)
        _, told, _ = self.run("preflight", "--controller-config", str(file))
        return {line["name"]: line for line in told["lines"] if line["status"] != "ok"}

    def failed(self, file: Path | None = None) -> set[str]:
        return {name for name, line in self.preflight(file).items() if line["status"] == "failed"}

    def status(self, *witnesses: str) -> dict[str, Any]:
        """By all witnesses, unless some are named."""
        everyone = (
            *("--metrics-url", self.cluster.metrics_url()),
            *("--set", f"source.metadata.log.dir={self.cluster.metadata_log()}"),
        )
        return self.run("status", *(witnesses or everyone))[1]

    def archive(self) -> None:
        code, _, stderr = self.run("archive")
        assert code == 0, stderr

    def children(self, path: str) -> set[str]:
        with open_session(ZooKeeperOptions(connect=self.cluster.zookeeper_connect)) as zookeeper:
            return set(zookeeper.children(path))

    def content(self, path: str) -> bytes:
        with open_session(ZooKeeperOptions(connect=self.cluster.zookeeper_connect)) as zookeeper:
            return zookeeper.get([path])[path].data


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with MigratingCluster(brokers=2, chroot="/kafka") as cluster:
        yield Walk(cluster, tmp_path_factory.mktemp("walk"))


def create(cluster: MigratingCluster, *topics: NewTopic) -> None:
    admin = AdminClient(cluster.client())
    for future in admin.create_topics(list(topics), operation_timeout=30).values():
        future.result(60)
    cluster.wait_serving()


def changed(walk: Walk, **changes: str | None) -> Path:
    """The controller's properties with other values; `_` stands for a dot, None takes one away."""
    file = walk.folder / "changed.properties"
    lines = walk.cluster.properties_file(FIRST_CONTROLLER).read_text().splitlines()
    names = {name.replace("_", "."): value for name, value in changes.items()}
    kept = [line for line in lines if line.partition("=")[0] not in names]
    file.write_text("\n".join([*kept, *(f"{n}={v}" for n, v in names.items() if v is not None)]) + "\n")
    return file


def break_and_heal(walk: Walk) -> None:
    """Before the brokers are restarted for the migration: each thing is broken for real, and healed by its hint."""
    cluster = walk.cluster
    create(cluster, NewTopic("orders", 2, replica_assignment=[[0, 1], [1, 0]]))
    create(cluster, NewTopic("single", 1, replica_assignment=[[1]]), NewTopic("old", 1, replica_assignment=[[1]]))
    lines = walk.preflight()
    assert lines["archive: whole metadata"]["hint"] == "run 'kbackup migrate archive'"
    walk.archive()
    assert {name: line["status"] for name, line in walk.preflight().items()} == {
        "brokers: migration enabled": "warning"
    }
    _break_properties(walk)
    _break_storage(walk)
    _break_broker(walk)
    _break_reassignment(walk)


def _break_properties(walk: Walk) -> None:
    assert walk.failed(changed(walk, process_roles="broker,controller")) == {"controllers: dedicated"}
    assert walk.failed(changed(walk, node_id="1")) == {"controllers: dedicated"}
    assert walk.failed(changed(walk, **{FLAG: None})) == {"controllers: migration enabled"}
    assert walk.failed(changed(walk, zookeeper_connect=walk.cluster.zookeeper.connect)) == {
        "controllers: zookeeper.connect"
    }
    other = walk.cluster.zookeeper_connect.replace("127.0.0.1", "localhost")
    assert walk.failed(changed(walk, zookeeper_connect=other)) == {"controllers: zookeeper.connect"}
    assert walk.failed(changed(walk, inter_broker_listener_name="CLIENT")) == {"listeners: mapped"}
    assert walk.failed(changed(walk, authorizer_class_name=None)) == {"controllers: authorizer"}
    assert walk.failed(changed(walk, super_users="User:kafka")) == {"controllers: super.users"}
    assert walk.failed(changed(walk, delegation_token_secret_key=None)) == {"controllers: delegation.token.secret.key"}
    nobody = walk.cluster.quorum.rpartition(":")[0] + ":1"
    assert walk.failed(changed(walk, controller_quorum_bootstrap_servers=nobody)) == {"controllers: quorum addresses"}


def _break_storage(walk: Walk) -> None:
    """Format the storage for another cluster, and then anew for ZooKeeper's."""
    cluster, storage = walk.cluster, walk.folder / "storage"
    file = changed(walk, log_dirs=str(storage))
    for cluster_id, failed in ((OTHER_CLUSTER, {"cluster id"}), (cluster.cluster_id(), set[str]())):
        shutil.rmtree(storage, ignore_errors=True)
        options = (f"--cluster-id={cluster_id}", "--release-version", "3.9", "--standalone", "-c", str(file))
        cluster.tool("kafka.tools.StorageTool", "format", *options)
        lines = walk.preflight(file)
        assert {name for name, line in lines.items() if line["status"] == "failed"} == failed
        assert "brokers: the controllers' metadata.version" not in lines  # read in the storage before its first start
        if failed:
            assert OTHER_CLUSTER in lines["cluster id"]["detail"]
            assert "kafka-storage.sh format -t ID" in lines["cluster id"]["hint"]


def _break_broker(walk: Walk) -> None:
    """A broker goes while a topic is deleted; it comes back with an old protocol."""
    cluster = walk.cluster
    cluster.stop(1)
    admin = AdminClient(cluster.client())
    admin.delete_topics(["old"])["old"].result(60)
    lines = walk.preflight()
    assert {name for name, line in lines.items() if line["status"] == "failed"} == {
        "brokers: alive",
        "partitions: online",
        "topics: deletions",
    }
    assert "broker 1" in lines["brokers: alive"]["detail"]
    assert "single-0" in lines["partitions: online"]["detail"]
    assert "old" in lines["topics: deletions"]["detail"]
    cluster._properties["inter.broker.protocol.version"] = "3.3"
    cluster.start_broker(1)
    cluster.wait_serving()
    cluster.wait(1, lambda: not walk.children("/admin/delete_topics"), "the deletion of a topic")
    lines = walk.preflight()
    failed = {name for name, line in lines.items() if line["status"] == "failed"}
    assert failed == {"brokers: inter.broker.protocol.version", "brokers: the controllers' metadata.version"}
    assert "restart" in lines["brokers: inter.broker.protocol.version"]["hint"]
    del cluster._properties["inter.broker.protocol.version"]  # the next restart heals it


def _break_reassignment(walk: Walk) -> None:
    """One that a throttle keeps from ending is cancelled, as the hint says."""
    cluster = walk.cluster
    producer = Producer(cluster.client())
    for _ in range(50):
        producer.produce("single", b"x" * 100_000)  # more than the first request fetches
    assert producer.flush(30) == 0
    throttle(walk, "single")
    plan = walk.folder / "plan.json"
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    common = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
    for target in (0, 1, 0, 1, 0):  # a move may end before the brokers know of the throttle
        partition = {"topic": "single", "partition": 0, "replicas": [target]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        cluster.tool(tool, *common, "--execute")
        lines = walk.preflight()
        if "partitions: reassignments" in lines:
            break
    assert lines["partitions: reassignments"]["status"] == "failed"
    assert "single-0" in lines["partitions: reassignments"]["detail"]
    assert "--cancel" in lines["partitions: reassignments"]["hint"]
    cluster.tool(tool, *common, "--cancel")
    assert "partitions: reassignments" not in walk.failed()


def throttle(walk: Walk, topic: str) -> None:
    """Throttle the replication of a topic to a byte a second; the brokers learn of that a while later."""
    admin = AdminClient(walk.cluster.client())
    brokers = [ConfigResource(ConfigResource.Type.BROKER, str(each)) for each in walk.cluster.brokers]
    for resource, suffix, value in (
        (ConfigResource(ConfigResource.Type.TOPIC, topic), "replicas", "*"),
        *((broker, "rate", "1") for broker in brokers),
    ):
        for side in ("leader", "follower"):
            entry = ConfigEntry(
                f"{side}.replication.throttled.{suffix}", value, incremental_operation=AlterConfigOpType.SET
            )
            resource.add_incremental_config(entry)
        admin.incremental_alter_configs([resource])[resource].result(30)


def go_back_from_pre_migration(walk: Walk) -> None:
    """No broker has joined: /migration alone goes, and the brokers' /controller stays theirs."""
    cluster = walk.cluster
    code, _, stderr = walk.run("rollback", "--confirm", "--controller", cluster.quorum)
    assert (code, f"alive: {cluster.quorum}" in stderr) == (10, True)
    controller = walk.content("/controller")
    cluster.stop_controllers()
    walk.archive()
    log = f"source.metadata.log.dir={cluster.metadata_log()}"
    code, told, stderr = walk.run("rollback", "--confirm", "--controller", cluster.quorum, "--set", log)
    assert code == 0, stderr
    assert [znode["path"] for znode in told["deleted"]] == ["/migration"]
    assert walk.content("/controller") == controller
    assert [step["text"] for step in told["steps"] if not step["done"]] == [
        "delete the controllers' storage: a second migration formats it anew"
    ]
    cluster.remove_controllers()
    assert walk.status("--quiet")["state"] == "zookeeper"
    assert walk.run("rollback").document["steps"] == []
    create(cluster, NewTopic("after-pre-migration", 1, 2))


def go_back_from_dual_write(walk: Walk) -> None:
    """Each guard refuses until what it wants is done."""
    cluster = walk.cluster
    code, _, stderr = walk.run("rollback", "--confirm")
    assert (code, f"alive: {cluster.quorum}" in stderr) == (10, True)
    _, report, _ = walk.run("rollback")
    assert [step["done"] for step in report["steps"][:2]] == [None, None]  # nothing tells of ZooKeeper's lag
    log = ("--set", f"source.metadata.log.dir={cluster.metadata_log()}")

    def undone() -> str:
        steps = walk.run("rollback", *log).document["steps"]
        return str(next(step["text"] for step in steps if not step["done"]))

    # The controllers write their offset to ZooKeeper twice a second. Where they don't, their log says why.
    cluster.wait(FIRST_CONTROLLER, lambda: "stop every controller" in undone(), "ZooKeeper with every record")
    cluster.stop_controllers()
    code, _, stderr = walk.run("rollback", "--confirm")
    assert (code, "doesn't hold /controller and /migration as now" in stderr) == (10, True)
    before = walk.children("")
    assert before >= {"controller", "migration", "controller_epoch"}
    walk.archive()
    code, _, stderr = walk.run("rollback", "--confirm")
    assert (code, "ZooKeeper complete: not looked at: no metadata log is named" in stderr) == (10, True)
    code, report, stderr = walk.run("rollback", "--confirm", *log)
    assert code == 0, stderr
    assert [znode["path"] for znode in report["deleted"]] == ["/controller", "/migration"]
    assert before - {"controller"} - walk.children("") == {"migration"}
    _restart_with_zookeeper(walk)
    assert walk.status("--quiet")["state"] == "zookeeper"
    create(cluster, NewTopic("after the way back".replace(" ", "-"), 1, 2))
    _, report, _ = walk.run("rollback")
    assert report["steps"] == []


def _restart_with_zookeeper(walk: Walk) -> None:
    """A broker whose controllers are gone doesn't end by itself; killed, it leaves its session behind for a while."""
    cluster = walk.cluster
    cluster.mode = "zookeeper"
    for broker in cluster.brokers:
        cluster.kill(broker)
        other = next(each for each in cluster.brokers if each != broker)
        cluster.wait(other, partial(_is_gone, walk, broker), "the end of a broker's session")
        cluster.start_broker(broker)
    cluster.wait_serving()


def _is_gone(walk: Walk, broker: int) -> bool:
    return str(broker) not in walk.children("/brokers/ids")


def go_back_to_zookeeper_brokers(walk: Walk) -> None:
    """KRaft brokers run with ZooKeeper again while the controllers live."""
    cluster = walk.cluster
    code, _, stderr = walk.run("rollback", "--confirm", "--metrics-url", cluster.metrics_url())
    assert (code, "KRaft brokers: 0, 1" in stderr) == (10, True)
    for broker in cluster.brokers:
        cluster.stop(broker)
        shutil.rmtree(cluster.metadata_log(broker))
        cluster.mode = "migration"
        cluster.start_broker(broker)
    cluster.wait_serving()


def test_status_guides_a_migration_there_and_back_and_there_for_good(walk: Walk) -> None:
    """There and back, and there for good."""
    cluster = walk.cluster
    assert walk.status("--quiet")["state"] == "zookeeper"
    cluster.start_controllers()
    cluster.wait_for_state("PRE_MIGRATION")
    break_and_heal(walk)
    expect(walk, "pre-migration")
    go_back_from_pre_migration(walk)
    cluster.start_controllers()
    cluster.wait_for_state("PRE_MIGRATION")
    cluster.restart_brokers("migration")
    cluster.wait_for_state("MIGRATION")
    expect(walk, "dual write")
    assert walk.preflight() == {}
    cluster.restart_brokers("kraft")
    expect(walk, "brokers moved")
    go_back_to_zookeeper_brokers(walk)
    expect(walk, "dual write")
    go_back_from_dual_write(walk)
    cluster.remove_controllers()
    cluster.start_controllers()
    cluster.wait_for_state("PRE_MIGRATION")
    expect(walk, "pre-migration")
    cluster.restart_brokers("migration")
    cluster.wait_for_state("MIGRATION")
    cluster.restart_brokers("kraft")
    cluster.start_controllers(migration=False)
    cluster.wait_for_state("POST_MIGRATION")
    expect(walk, "finished", way_back=False)
    assert walk.status("--quiet")["possible"] == ["dual write", "brokers moved", "finished"]
    code, _, stderr = walk.run("rollback", "--confirm", "--metrics-url", cluster.metrics_url())
    assert (code, "the state is finished" in stderr) == (10, True)
    assert walk.children("") >= {"controller", "migration"}


def expect(walk: Walk, state: str, *, way_back: bool = True) -> None:
    """All three witnesses agree."""
    told = walk.status()
    assert told["disagreements"] == []
    assert told["not_looked_at"] == []
    assert [witness["witness"] for witness in told["witnesses"]] == ["metrics", "znodes", "metadata log"]
    assert (told["state"], told["certain"], told["way_back"]) == (state, True, way_back)
