"""A real MirrorMaker 2 and a flow of ours, from one source into one target: the same topics, settings and records.

MirrorMaker 2 calls the source A, our flow calls it K: their remote topics stand side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AdminClient
from msgspec.structs import astuple

from kbackup.archive.reader import open_archive
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Silent
from kbackup.mirror.apply.applier import Applier
from kbackup.mirror.apply.pending import Applied
from kbackup.mirror.flow import Flow
from kbackup.mirror.settings import sync_acls, sync_configs, sync_topics
from kbackup.mirror.topics import plan_topics, topics_of_point
from kbackup.store import open_store
from scripts.dev.kafka import Broker, MirrorMaker
from scripts.dev.process import StartError
from tests.integration.conftest import CountedSpark, Kbackup
from tests.integration.secured import GUARDED
from tests.support.flow_maps import flow_of
from tests.support.truth import Records, read_topic

SELECTED = "orders, clicks, late, heart.*"
ACLS = [
    AclBinding("topic", "orders", "literal", "User:alice", "*", "read", "allow"),
    AclBinding("topic", "orders", "literal", "User:bob", "10.0.0.1", "all", "allow"),
    AclBinding("topic", "orders", "literal", "User:carol", "*", "write", "allow"),
    AclBinding("topic", "orders", "literal", "User:mallory", "*", "write", "deny"),
    AclBinding("topic", "late", "literal", "User:alice", "*", "describe", "allow"),
    AclBinding("topic", "private", "literal", "User:alice", "*", "read", "allow"),
    AclBinding("topic", "ord", "prefixed", "User:dave", "*", "read", "allow"),
    AclBinding("group", "orders", "literal", "User:alice", "*", "read", "allow"),
]
WAIT = 120.0  # s
LEAKED = {("max.message.bytes", "5000000"), ("retention.bytes", "5000000")}
"""Set on the source's brokers at run time: MirrorMaker 2 copies that into remote topics, a mirror does not."""
KEPT = {("retention.ms", "86400000")}
"""Removed at the source, whose brokers have it in server.properties: MirrorMaker 2 keeps it, a mirror removes it."""


@dataclass
class Beside:
    """The source, the target of both, and our flow with its archive."""

    source: Broker
    target: Broker
    maker: MirrorMaker
    kbackup: Kbackup
    flow: Flow
    archive: str
    mine: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.mine = Cluster(self.target.client(), "target")

    def round(self) -> Applied:
        """Back the source up, and apply it: what `kbackup mirror --once` does."""
        outcome = self.kbackup("backup", "-a", self.archive)
        assert outcome.code == 0, outcome.err
        store = open_store(self.archive)
        archive = open_archive(store)
        point = archive.restore_point("latest")
        metadata = archive.metadata(point)
        topics = plan_topics(self.flow, topics_of_point(point, metadata)).topics
        assert sync_topics(self.flow, topics, self.mine).refused == {}
        assert sync_configs(self.flow, topics, self.mine).refused == {}
        assert sync_acls(self.flow, metadata.acls, self.mine).refused == ()

        def no_spark() -> Any:
            raise AssertionError

        with Applier(self.flow, self.target.client(), store, no_spark, Silent()) as applier:
            return applier.apply(archive, point, topics)

    def remote(self, alias: str) -> dict[str, int]:
        """The remote topics of an alias, without its prefix and internal ones, with their numbers of partitions."""
        prefix = f"{alias}."
        return {
            name.removeprefix(prefix): len(topic.partitions)
            for name, topic in self.mine.topics().items()
            if name.startswith(prefix) and not name.endswith(".internal")
        }

    def configs(self, alias: str) -> dict[str, dict[str, str]]:
        found = self.mine.topic_configs(f"{alias}.{name}" for name in self.remote(alias))
        return {name.removeprefix(f"{alias}."): configs for name, configs in found.items()}

    def acls(self, alias: str) -> set[tuple[str, ...]]:
        told = self.mine.security.acls()
        assert isinstance(told, tuple)
        return {
            (rule.name.removeprefix(f"{alias}."), *astuple(rule)[2:])
            for rule in told[0]
            if rule.name.startswith(f"{alias}.")
        }

    def records(self, alias: str, topic: str) -> dict[int, list[tuple[object, ...]]]:
        """Of each partition, in order, without offsets."""
        found: Records = read_topic(self.target.bootstrap, f"{alias}.{topic}")
        return {partition: [record[1:] for record in records] for partition, records in found.items()}

    def wait(self, ready: Callable[[], bool], label: str) -> None:
        self.maker.wait(0, ready, label, WAIT)

    def wait_equal(self, topics: Mapping[str, int]) -> None:
        """Wait until MirrorMaker 2 has what our flow has: it copies topics, configs, ACLs and records at times of its
        own. The last difference is raised where it never does."""
        differences: list[AssertionError] = []

        def equal() -> bool:
            try:
                compare(self, topics)
            except AssertionError as difference:
                differences.append(difference)
                return False
            return True

        try:
            self.wait(equal, "MirrorMaker 2 with what our flow has")
        except StartError as late:
            if differences:
                raise differences[-1] from late
            raise


@pytest.fixture(scope="module")
def beside(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with ExitStack() as stack:
        source = stack.enter_context(Broker(GUARDED))
        target = stack.enter_context(Broker(GUARDED))
        folder: Path = tmp_path_factory.mktemp("beside")
        config = folder / "kbackup.toml"
        config.write_text(f'[source]\n"bootstrap.servers" = "{source.bootstrap}"\n')
        furnish(source)
        maker = stack.enter_context(
            MirrorMaker(
                {
                    "clusters": "A, B",
                    "A.bootstrap.servers": source.bootstrap,
                    "B.bootstrap.servers": target.bootstrap,
                    "A->B.enabled": "true",
                    "A->B.topics": SELECTED,
                    "B->A.enabled": "false",
                    "B->A.emit.heartbeats.enabled": "false",
                }
            )
        )
        flow = flow_of(
            "clusters = K, B\n"
            f"K.bootstrap.servers = {source.bootstrap}\nB.bootstrap.servers = {target.bootstrap}\n"
            f"K->B.enabled = true\nK->B.topics = {SELECTED}\nreplication.factor = 1\n"
        )
        made = Kbackup(CountedSpark(spark), config)
        yield Beside(source, target, maker, made, flow, str(folder / "archive"))


def furnish(source: Broker) -> None:
    source.create_topic("orders", 3, config={"retention.ms": "86400000", "min.insync.replicas": "1"})
    source.create_topic("clicks", 1, config={"cleanup.policy": "compact", "segment.ms": "60000"})
    source.create_topic("private", 1)
    admin = AdminClient(source.client())
    for future in admin.create_acls(ACLS).values():
        future.result(30)
    cluster = Cluster(source.client(), "source")
    for setting in ("message.max.bytes", "log.retention.bytes"):
        assert cluster.dynamic_configs.set_on_broker(1, setting, "5000000") == ""
    fill(source, "orders", 3, 300)
    fill(source, "clicks", 1, 20)
    fill(source, "private", 1, 5)


def fill(broker: Broker, topic: str, partitions: int, count: int) -> None:
    """Records with headers, without key or value, and with times of their own."""
    producer = Producer(broker.client(**{"linger.ms": 5}))
    first = int(time.time() * 1000) - 3_600_000  # younger than what retention deletes
    for n in range(count):
        producer.produce(
            topic,
            None if n % 11 == 0 else f"value {n}".encode() * 5,
            b"k" * (n % 3) if n % 7 and topic != "clicks" else f"key {n}".encode(),
            partition=n % partitions,
            timestamp=first + n * 1000,
            headers=[("trace", b"%d" % n), ("none", None)] if n % 2 else None,
        )
    assert producer.flush(60) == 0


def test_both_mirrors_have_equal_topics_settings_and_records(beside: Beside) -> None:
    first = beside.round()
    assert first.records == 320
    beside.wait_equal({"orders": 3, "clicks": 1})

    source = Cluster(beside.source.client(), "source")
    source.topic_admin.add_partitions({"orders": 5})
    changed: dict[str, dict[str, str | None]] = {
        "orders": {"retention.ms": None, "max.message.bytes": "700000"},
        "clicks": {"segment.ms": "70000"},
    }
    assert source.topic_admin.alter_configs(changed) == {}
    beside.source.create_topic("late", 2)
    fill(beside.source, "orders", 5, 100)
    fill(beside.source, "late", 2, 40)
    second = beside.round()
    assert second.records == 140
    beside.wait_equal({"orders": 5, "clicks": 1, "late": 2})
    assert beside.configs("A")["orders"].items() >= KEPT
    assert "retention.ms" not in beside.configs("K")["orders"]


def compare(beside: Beside, topics: Mapping[str, int]) -> None:
    assert beside.remote("K") == topics
    assert beside.remote("A") == topics
    mirrormaker, ours = beside.configs("A"), beside.configs("K")
    for topic in topics:
        leaked = mirrormaker[topic].items() - ours[topic].items()
        assert leaked <= LEAKED | KEPT
        assert ours[topic].items() <= mirrormaker[topic].items()
    assert mirrormaker["clicks"]["max.message.bytes"] == "5000000"
    assert "max.message.bytes" not in ours["clicks"]
    assert beside.acls("A") == beside.acls("K")
    for topic in topics:
        assert copied_once(beside.records("A", topic)) == beside.records("K", topic)


def copied_once(records: Mapping[int, Sequence[tuple[object, ...]]]) -> dict[int, list[tuple[object, ...]]]:
    """Each record where it came first: MirrorMaker 2 copies some again when its tasks are stopped or balanced anew."""
    return {
        partition: [record for at, record in enumerate(some) if record not in some[:at]]
        for partition, some in records.items()
    }
