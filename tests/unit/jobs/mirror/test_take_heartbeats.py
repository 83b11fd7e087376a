"""The take half writes heartbeats for pairs of clusters that are not enabled, as MirrorMaker 2 does."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest

from kbackup.errors import KbackupError, UnreachableError
from kbackup.jobs.backup.follow import Follower, FollowReport, Watcher
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.halves import take
from kbackup.jobs.mirror.internal import InternalTopics
from kbackup.jobs.mirror.properties import load_flows
from kbackup.kafka.admin.cluster import Cluster
from tests.support.mirrors import CLUSTERS


class Brokers:
    """A source that notes the topics that are made in it."""

    def __init__(self, properties: object, role: str) -> None:
        self.made: list[str] = []

    def connect(self) -> None:
        """Succeed."""

    def topics(self, names: object) -> dict[str, object]:
        return {}

    def create_topic(self, name: str, *rest: object) -> None:
        self.made.append(name)


@dataclass
class BadClock:
    """A clock whose heartbeats fail, until `error` is None."""

    flow: Flow
    target: InternalTopics
    error: KbackupError | None = field(default_factory=lambda: UnreachableError("no brokers", "start them"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing runs."""

    def check(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass
class Events:
    seen: list[str] = field(default_factory=list)

    def committed(self, report: BackupReport) -> None:
        self.seen.append("committed")

    def well(self) -> None:
        self.seen.append("well")

    def failed(self, error: KbackupError, pause: float) -> None:
        self.seen.append(f"failed {pause}")


@dataclass
class Rounds:
    """A follower of three rounds that end well, and one that fails."""

    watcher: Watcher

    def follow(self) -> FollowReport:
        for _ in range(3):
            self.watcher.committed(cast(Any, None))
            self.watcher.well()
        self.watcher.failed(UnreachableError("away"), 2.0)
        return FollowReport("file:///tmp/A", rounds=4)


def test_heartbeats_of_a_pair_that_is_not_enabled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They have one topic and no more. Where they fail, backups go on, and the error is logged once."""
    properties = load_flows(CLUSTERS, archive="/tmp/{source}")
    heartbeats = tuple(flow for flow in properties.heartbeat_flows if flow.target == "A")
    clocks: list[BadClock] = []
    clusters: list[Brokers] = []

    def clock(flow: Flow, target: InternalTopics) -> BadClock:
        clocks.append(BadClock(flow, target))
        return clocks[-1]

    def cluster(given: object, role: str) -> Cluster:
        clusters.append(Brokers(given, role))
        return cast(Cluster, clusters[-1])

    monkeypatch.setattr(take, "HeartbeatClock", clock)
    monkeypatch.setattr(take, "Cluster", cluster)
    (source,) = take.sources_of(properties.flows)
    events = Events()
    half = take.TakeHalf(source, heartbeats, cast(Follower, Rounds(events)))
    with caplog.at_level(logging.WARNING, take.__name__):
        assert half.run().rounds == 4
    assert [c.flow.name for c in clocks] == ["B->A"]
    assert [c.made for c in clusters] == [["heartbeats"]]
    assert events.seen == ["committed", "well"] * 3 + ["failed 2.0"]
    assert caplog.messages == ["heartbeats of B->A are not written: no brokers; start them"]


def test_a_source_that_refuses_heartbeats_is_backed_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the rights of a backup alone, or with fewer brokers than the topic asks for."""

    class Refusing(Brokers):
        def create_topic(self, name: str, *rest: object) -> None:
            raise UnreachableError("source denies creating topic heartbeats", "allow it")

    monkeypatch.setattr(take, "Cluster", Refusing)
    properties = load_flows(CLUSTERS, archive="/tmp/{source}")
    (source,) = take.sources_of(properties.flows)
    events = Events()
    with caplog.at_level(logging.WARNING, take.__name__):
        assert take.TakeHalf(source, properties.heartbeat_flows, cast(Follower, Rounds(events))).run().rounds == 4
    assert events.seen == ["committed", "well"] * 3 + ["failed 2.0"]
    assert caplog.messages == ["heartbeats of B->A are not written: source denies creating topic heartbeats; allow it"]
