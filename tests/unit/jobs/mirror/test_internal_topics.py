"""The clusters and names of a flow's internal topics, and which of them are created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from kbackup.errors import ClusterError, UnreachableError
from kbackup.jobs.mirror import internal as topics
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.internal import InternalTopics
from kbackup.jobs.mirror.properties import load_flows
from kbackup.kafka.admin.cluster import Cluster
from tests.support.mirrors import CLUSTERS, flow_of

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

    def create_topic(self, name: str, partitions: int, factor: int, configs: Mapping[str, str]) -> None:
        if name in self.rival:
            self.made[name] = (1, 1, {})
        if name in self.made:
            raise ClusterError(f"topic {name} already exists")
        if factor > 3:
            raise ClusterError("replication factor is larger than the number of brokers")
        self.made[name] = (partitions, factor, configs)

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
    made = made_of(
        """
        offset-syncs.topic.location = target
        replication.factor = 3
        heartbeats.topic.replication.factor = 1
        checkpoints.topic.replication.factor = 2
        offset-syncs.topic.replication.factor = 3
        """
    )
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
    target = Brokers({"heartbeats": (3, 2, {})}, rival=("A.heartbeats",))
    made = made_of("offset-syncs.topic.location = target\n", target)
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
