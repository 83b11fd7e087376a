"""Our internal topics, read by Kafka's own classes: `RemoteClusterUtils` and the console consumer's formatters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.flow import Flow
from kbackup.mirror.internal import HeartbeatClock, InternalTopics
from scripts.dev.kafka import Broker
from tests.interop.mirror.mirrored import Mirrored
from tests.support.flow_maps import flow_of
from tests.support.java import Java
from tests.support.truth import read_topic

CHECKPOINTS, SYNCS = "A.checkpoints.internal", "mm2-offset-syncs.A.internal"
LAG = 100
GROUPS = {
    "behind": {0: 0, 1: 0},
    "within": {0: 60, 1: 0},
    "in-a-gap": {0: 51},
    "at-the-end": {0: 10_000, 1: 1},
    "not-mirrored": {0: 60},
}


@pytest.fixture(scope="module")
def made(mirrored: Callable[[Broker], Mirrored]) -> Iterator[Mirrored]:
    """The target is a cluster that nobody else uses."""
    with Broker() as target:
        yield mirrored(target)


@pytest.fixture(scope="module")
def flow(made: Mirrored) -> Flow:
    return flow_of(
        f"""
        clusters = A, B
        A.bootstrap.servers = {made.source.bootstrap}
        B.bootstrap.servers = {made.target.bootstrap}
        A->B.enabled = true
        groups.exclude = not-.*
        replication.factor = 1
        heartbeats.topic.replication.factor = 1
        checkpoints.topic.replication.factor = 1
        offset-syncs.topic.replication.factor = 1
        offset-syncs.topic.location = target
        offset.lag.max = {LAG}
        """
    )


@pytest.fixture(scope="module")
def emitted(made: Mirrored, flow: Flow) -> Mirrored:
    """With heartbeats, offset syncs and checkpoints of one round."""
    made.capture(GROUPS)
    with (
        InternalTopics(flow, Cluster(made.target.client(), "target")) as internal,
        HeartbeatClock(flow, internal) as clock,
    ):
        made.emit(flow, internal)
        until = time.monotonic() + 30
        while not clock.count and time.monotonic() < until:
            time.sleep(0.01)
        clock.check()
    return made


def test_topics_are_made_as_mirrormaker_makes_them(emitted: Mirrored) -> None:
    cluster = Cluster(emitted.target.client(), "target")
    names = {"heartbeats", "A.heartbeats", CHECKPOINTS, SYNCS}
    topics = cluster.topics()
    assert {name for name in topics if not name.startswith("__")} == {emitted.remote, *names}
    assert {topics[name].partitions for name in names} == {(0,)}
    assert all(configs == {"cleanup.policy": "compact"} for configs in cluster.topic_configs(names).values())


def test_remote_cluster_utils_sees_the_truth(emitted: Mirrored, java: Java) -> None:
    asked = ["topics", "hops A", "hops B", *(f"offsets {group}" for group in GROUPS)]
    answers = java.run("RemoteClusters", emitted.target.bootstrap, "A", *asked).splitlines()
    truth = [
        f"offset {group} {emitted.remote} {p} {emitted.truth(p, committed)}"
        for group, places in GROUPS.items()
        for p, committed in places.items()
        if group != "not-mirrored"
    ]
    assert len(truth) == 7
    assert sorted(line.strip() for line in answers) == sorted(
        [
            "heartbeats A.heartbeats heartbeats",
            "checkpoints A.checkpoints.internal",
            "upstream A",
            "hops A 1",
            "hops B -1",
            *truth,
        ]
    )


def test_the_java_formatter_reads_our_heartbeats(emitted: Mirrored, java: Java) -> None:
    records = read_topic(emitted.target.bootstrap, "heartbeats")[0]
    assert console(emitted, java, "HeartbeatFormatter", "heartbeats", len(records)) == [
        f"Heartbeat{{sourceClusterAlias=A, targetClusterAlias=B, timestamp={r.timestamp}}}" for r in records
    ]


def test_the_java_formatter_reads_our_checkpoints(emitted: Mirrored, java: Java) -> None:
    lines = console(emitted, java, "CheckpointFormatter", CHECKPOINTS, 7)
    assert sorted(lines) == sorted(
        f"Checkpoint{{consumerGroupId={group}, topicPartition={emitted.remote}-{p}, upstreamOffset={committed}, "
        f"downstreamOffset={emitted.truth(p, committed)}, metadata=}}"
        for group, places in GROUPS.items()
        for p, committed in places.items()
        if group != "not-mirrored"
    )


def test_the_java_formatter_reads_our_offset_syncs(emitted: Mirrored, java: Java) -> None:
    pairs = emitted.pairs[0]
    due, newest = [pairs[0]], pairs[0][1]
    for pair in pairs:
        if pair[1] - (newest + 1) >= LAG:
            due.append(pair)
            newest += (pair[1] - newest) // (LAG + 1) * (LAG + 1)
    found = [(0, u, o) for u, o in sorted({*due, pairs[-1]})] + [(1, *emitted.pairs[1][0])]
    lines = console(emitted, java, "OffsetSyncFormatter", SYNCS, len(found))
    assert lines == [
        f"OffsetSync{{topicPartition={emitted.topic}-{p}, upstreamOffset={u}, downstreamOffset={o}}}"
        for p, u, o in found
    ]


def console(emitted: Mirrored, java: Java, formatter: str, topic: str, count: int) -> list[str]:
    """Return the lines that the console consumer prints of a topic with `count` records."""
    assert len(read_topic(emitted.target.bootstrap, topic)[0]) == count
    return java.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", emitted.target.bootstrap, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(count), "--formatter", f"org.apache.kafka.connect.mirror.formatters.{formatter}"),
    ).splitlines()


def test_a_second_process_repeats_nothing(emitted: Mirrored, flow: Flow) -> None:
    def counts() -> list[int]:
        return [len(read_topic(emitted.target.bootstrap, t)[0]) for t in (CHECKPOINTS, SYNCS)]

    before = counts()
    with InternalTopics(flow, Cluster(emitted.target.client(), "target")) as internal:
        checkpoints = emitted.emit(flow, internal)
    assert len(checkpoints) == 7
    assert counts() == before
