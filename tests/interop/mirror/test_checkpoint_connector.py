"""A real `MirrorCheckpointConnector` that translates by our offset syncs, and groups of the target set by ours."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.flow import Flow
from kbackup.mirror.internal import InternalTopics
from kbackup.mirror.positions import sync_group_offsets
from kbackup.mirror.records import Checkpoint
from scripts.dev.kafka import Broker
from scripts.dev.process import HANG, Process, free_ports
from tests.interop.mirror.mirrored import Mirrored
from tests.support.flow_maps import flow_of
from tests.support.java import Java
from tests.support.truth import Position, commit, positions, read_topic

PLACES = {"behind": 0, "within": 60, "in-a-gap": 51, "beside-a-sync": 102, "late": 540, "at-the-end": 10_000}
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


@pytest.fixture(scope="module")
def made(broker: Broker, mirrored: Callable[[Broker], Mirrored]) -> Mirrored:
    """The source is the target. Groups stand in the source's topic, and a restore point has them."""
    made = mirrored(broker)
    groups = {group_of(made, name): {0: offset, 1: 0} for name, offset in PLACES.items()}
    for group, places in groups.items():
        commit(broker.bootstrap, group, {(made.topic, p): Position(o, "md") for p, o in places.items()})
    made.capture(groups, "md")
    return made


@pytest.fixture(scope="module")
def flow(made: Mirrored) -> Flow:
    alias = f"Z{secrets.token_hex(4)}"
    return flow_of(
        f"""
        clusters = {alias}, B
        {alias}.bootstrap.servers = {made.source.bootstrap}
        B.bootstrap.servers = {made.target.bootstrap}
        {alias}->B.enabled = true
        emit.heartbeats.enabled = false
        heartbeats.replication.enabled = false
        checkpoints.topic.replication.factor = 1
        offset-syncs.topic.replication.factor = 1
        offset-syncs.topic.location = target
        """
    )


def by_partition(checkpoints: Iterable[Checkpoint]) -> dict[tuple[str, int], int]:
    return {(c.group, c.tp.partition): c.offset for c in checkpoints}


def group_of(made: Mirrored, name: str) -> str:
    return f"{name}-{made.topic}"


@contextmanager
def connector(java: Java, made: Mirrored, flow: Flow, folder: Path) -> Iterator[Process]:
    """A Connect worker with MirrorMaker 2's checkpoint connector alone."""
    (port,) = free_ports(1)
    worker, task = folder / "worker.properties", folder / "connector.properties"
    worker.write_text(
        f"""
        bootstrap.servers={made.target.bootstrap}
        key.converter={BYTES}
        value.converter={BYTES}
        offset.storage.file.filename={folder / "offsets"}
        offset.flush.interval.ms=1000
        plugin.discovery=service_load
        listeners=http://127.0.0.1:{port}
        """
    )
    task.write_text(
        f"""
        name=checkpoints
        connector.class=org.apache.kafka.connect.mirror.MirrorCheckpointConnector
        tasks.max=1
        source.cluster.alias={flow.source}
        target.cluster.alias=B
        source.cluster.bootstrap.servers={made.source.bootstrap}
        target.cluster.bootstrap.servers={made.target.bootstrap}
        topics={made.topic}
        groups=.*-{made.topic}
        offset-syncs.topic.location=target
        offset-syncs.topic.replication.factor=1
        checkpoints.topic.replication.factor=1
        emit.checkpoints.interval.seconds=1
        """
    )
    argv = [*java.command, "org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(task)]
    process = Process(argv, folder / "log")
    try:
        yield process
    finally:
        process.stop()


def test_a_checkpoint_connector_translates_by_our_offset_syncs(
    made: Mirrored, flow: Flow, java: Java, tmp_path: Path
) -> None:
    """Its answers are those of `kbackup.checkpoints = mm2`, and the exact ones are never behind them."""
    topic = flow.policy.checkpoints_topic(flow.source)
    with InternalTopics(flow, Cluster(made.target.client(), "target")) as internal:
        ours = by_partition(made.emit(replace(flow, checkpoint_rule="mm2"), internal))
        exact = by_partition(made.emit(flow, internal))
    internal.cluster.delete_topics([topic])
    checkpoints: dict[tuple[str, int], int] = {}

    def whole() -> bool:
        if internal.cluster.topics([topic]):
            for record in read_topic(made.target.bootstrap, topic)[0]:
                assert record.key is not None
                assert record.value is not None
                told = Checkpoint.decode(record.key, record.value)
                assert told.tp.topic == flow.policy.format_remote_topic(flow.source, made.topic)
                assert told.metadata == "md\0"  # confluent-kafka commits the NUL byte that ends it
                checkpoints[told.group, told.tp.partition] = told.offset
        return len(checkpoints) == len(exact)

    with connector(java, made, flow, tmp_path) as process:
        process.wait_ready(whole, "the checkpoint connector", 120)
    assert checkpoints == ours
    assert all(exact[key] >= checkpoints[key] for key in exact)
    assert any(exact[key] > checkpoints[key] for key in exact)


def test_groups_of_the_target_are_set_but_not_one_that_reads(made: Mirrored, flow: Flow) -> None:
    cluster = Cluster(made.target.client(), "target")
    live, ahead = group_of(made, "within"), group_of(made, "late")
    commit(made.target.bootstrap, ahead, {(made.remote, 0): Position(10_000)})
    with InternalTopics(flow, cluster) as internal, member(made, live):
        checkpoints = made.emit(flow, internal)
        synced = sync_group_offsets(checkpoints, cluster)
    assert synced.held_back == {live: "it has 1 live member"}
    assert synced.written == {group_of(made, name): 1 if name == "late" else 2 for name in PLACES if name != "within"}
    for name, committed in PLACES.items():
        stand = positions(made.target.bootstrap, group_of(made, name))
        if name == "within":
            assert (made.remote, 0) not in stand
            continue
        exact = Position(made.truth(0, committed), "md")
        assert stand[made.remote, 0] == (Position(10_000, "\0") if name == "late" else exact)
        assert stand[made.remote, 1] == Position(made.truth(1, 0), "md")


@contextmanager
def member(made: Mirrored, group: str) -> Iterator[None]:
    consumer = Consumer(made.target.client(**{"group.id": group, "enable.auto.commit": False, "log_level": 0}))
    try:
        consumer.subscribe([made.remote])
        until = time.monotonic() + HANG
        while not consumer.assignment():
            assert time.monotonic() < until, f"group {group} gets no partitions"
            consumer.poll(0.1)
        yield
    finally:
        consumer.close()
