"""A flow's internal topics: their clusters and names, which of them are created, and the clock of heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from kbackup.errors import ClusterError, KbackupError, UnreachableError
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.mirror import internal
from kbackup.mirror import internal as topics
from kbackup.mirror.flow import Clock, Flow
from kbackup.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.mirror.properties.flows import load_flows
from kbackup.mirror.records import Heartbeat
from tests.support.flow_maps import CLUSTERS, flow_of
from tests.support.kafka_raw import FakeCluster, FakeGroups

Made = tuple[int, int, Mapping[str, str]]
"""Partitions, replication factor, configs."""


@dataclass
class Brokers:
    """A cluster in memory. `rival` names topics that another process makes at the same moment."""

    made: dict[str, Made] = field(default_factory=dict)
    rival: tuple[str, ...] = ()
    away: bool = False

    def connect(self) -> tuple[str, int]:
        if self.away:
            raise UnreachableError("source cluster at a:9092 did not answer")
        return "id", 1

    def topics(self, names: Iterable[str]) -> dict[str, Made]:
        return {name: self.made[name] for name in names if name in self.made}

    def create(self, topics: Iterable[TopicToCreate], *, exist_ok: bool, dry_run: bool) -> dict[str, KbackupError]:
        assert exist_ok
        assert not dry_run
        for topic in topics:
            made = (topic.partitions, topic.replication_factor, topic.configs)
            self.made[topic.name] = (1, 1, {}) if topic.name in self.rival else made
        return {
            name: ClusterError("replication factor is larger than the number of brokers")
            for name, (_, factor, _) in self.made.items()
            if factor > 3
        }

    @property
    def topic_admin(self) -> Brokers:
        return self

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr(topics, "Cluster", lambda properties, role: brokers)
    return brokers


def made_of(text: str = "", target: Brokers | None = None, flow: Flow | None = None) -> dict[str, Made]:
    target = target or Brokers()
    with InternalTopics(flow or flow_of(text), target.cluster) as internal:
        assert not internal.warnings
    return target.made


def test_every_topic_has_one_compacted_partition_and_its_own_replication_factor() -> None:
    factors = {"": 3, "heartbeats.topic.": 1, "checkpoints.topic.": 2, "offset-syncs.topic.": 3}
    made = made_of("".join(f"{name}replication.factor = {factor}\n" for name, factor in factors.items()))
    compact = {"cleanup.policy": "compact"}
    assert made == {
        "heartbeats": (1, 1, compact),
        "A.heartbeats": (1, 3, compact),
        "A.checkpoints.internal": (1, 2, compact),
        "mm2-offset-syncs.A.internal": (1, 3, compact),
    }


ALL = {"heartbeats", "A.heartbeats", "A.checkpoints.internal", "mm2-offset-syncs.A.internal"}
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("emit.heartbeats.enabled = false", ALL - {"heartbeats"}),
        ("heartbeats.replication.enabled = false", ALL - {"A.heartbeats"}),
        ("emit.checkpoints.enabled = false", ALL - {"A.checkpoints.internal"}),
        ("emit.offset-syncs.enabled = false", ALL - {"mm2-offset-syncs.A.internal"}),
        ("replication.policy.separator = _", {name.replace(".", "_") for name in ALL}),
        (f"replication.policy.class = {IDENTITY}", ALL),
    ],
)
def test_topics_are_those_that_the_flow_writes(text: str, names: set[str]) -> None:
    assert made_of(f"offset-syncs.topic.location = target\n{text}\n").keys() == names


def test_a_pair_that_is_not_enabled_has_heartbeats_alone() -> None:
    (flow,) = load_flows(CLUSTERS).heartbeat_flows
    assert made_of(flow=flow).keys() == {"heartbeats"}


def test_topics_that_exist_stay_as_they_are() -> None:
    made = made_of(target=Brokers({"heartbeats": (3, 2, {})}, rival=("A.heartbeats",)))
    assert (made["heartbeats"], made["A.heartbeats"]) == ((3, 2, {}), (1, 1, {}))


def test_a_topic_that_can_not_be_made_is_an_error() -> None:
    with pytest.raises(ClusterError, match="replication factor") as raised:
        made_of("heartbeats.topic.replication.factor = 4\n")
    assert raised.value.hint.startswith("set heartbeats.topic.replication.factor to less than 4")


def test_offset_syncs_in_the_source_are_named_after_the_target(source: Brokers) -> None:
    assert "mm2-offset-syncs.A.internal" not in made_of("offset-syncs.topic.location = source\n")
    assert source.made == {"mm2-offset-syncs.B.internal": (1, 3, {"cleanup.policy": "compact"})}


def test_offset_syncs_stay_in_the_target_where_the_source_is_out_of_reach(source: Brokers) -> None:
    source.away = True
    target = Brokers()
    with InternalTopics(flow_of("offset-syncs.topic.location = source\n"), target.cluster) as internal:
        (warning,) = internal.warnings
    assert warning == (
        "flow A->B: offset syncs go to B, not to A as offset-syncs.topic.location says: "
        "source cluster at a:9092 did not answer"
    )
    assert "mm2-offset-syncs.A.internal" in target.made
    assert not source.made


# The clock of a flow's heartbeats.


class Writer:
    """A target that takes heartbeats, one that refuses them, or one that is silent until `abort`."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Heartbeat, int]] = []
        self.error: BaseException | None = None
        self.silent = False
        self.aborted = threading.Event()
        self.closed = False

    def __call__(self, properties: object, role: str, timeout: float) -> Writer:
        return self

    def write(self, topic: str, records: Sequence[Heartbeat], timestamp: int) -> int:
        if self.silent:
            self.aborted.wait(60)
            raise UnreachableError("purged")
        if self.error is not None:
            raise self.error
        self.written += [(topic, record, timestamp) for record in records]
        return len(records)

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    made = Writer()
    monkeypatch.setattr(internal, "RecordWriter", made)
    return made


def clock_of(*, enabled: bool = True, seconds: float = 0.01) -> HeartbeatClock:
    flow = replace(flow_of(), emit_heartbeats=Clock(enabled, seconds))
    return HeartbeatClock(flow, InternalTopics(flow, FakeCluster(FakeGroups()).cluster))


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_the_first_heartbeat_comes_at_once(writer: Writer) -> None:
    with clock_of(seconds=3600) as clock:
        wait_until(lambda: clock.count == 1)
        clock.check()
    ((topic, heartbeat, timestamp),) = writer.written
    assert (topic, heartbeat.source, heartbeat.target) == ("heartbeats", "A", "B")
    assert heartbeat.timestamp == timestamp
    assert abs(timestamp / 1000 - time.time()) < 60
    assert writer.closed


def test_a_flow_without_heartbeats_has_no_thread(writer: Writer) -> None:
    with clock_of(enabled=False) as clock:
        clock.check()
    assert not writer.written


def test_a_failure_is_told_until_a_heartbeat_is_written(writer: Writer) -> None:
    writer.error = UnreachableError("the target does not answer")
    clock = clock_of()

    def fails() -> bool:
        try:
            clock.check()
        except UnreachableError as error:
            assert error is writer.error  # noqa: PT017 (it comes some time)
            return True
        return False

    with clock:
        wait_until(fails)
        writer.error = None
        wait_until(lambda: clock.count > 0)
        clock.check()


def test_an_unexpected_error_ends_the_clock_and_is_told(writer: Writer) -> None:
    writer.error = ZeroDivisionError()
    clock = clock_of()
    with clock:
        wait_until(lambda: writer.closed)
        with pytest.raises(ZeroDivisionError):
            clock.check()


def test_the_clock_stops_while_the_target_is_silent(writer: Writer) -> None:
    writer.silent = True
    clock = clock_of()
    with clock:
        pass
    assert writer.closed
    clock.check()
