"""A dry run warns of what a round would fail at."""

from __future__ import annotations

import pytest

from kbackup.errors import NoArchiveError
from kbackup.jobs.mirror.dry_run import dry_run, factor_warnings
from kbackup.jobs.mirror.internal import InternalNames, InternalTopic
from kbackup.kafka.admin.cluster import Cluster
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of


@pytest.mark.parametrize(
    ("brokers", "keys"),
    [
        (1, ["replication", "heartbeats.topic", "checkpoints.topic", "offset-syncs.topic"]),
        (2, ["heartbeats.topic", "checkpoints.topic", "offset-syncs.topic"]),
        (3, []),
    ],
)
def test_factors_above_the_number_of_brokers(brokers: int, keys: list[str]) -> None:
    flow = flow_of()
    topics = [InternalTopic("A.orders", flow.replication_factor), *InternalNames(flow, False).written()]
    warnings = factor_warnings("B", brokers, topics)
    assert len(warnings) == len(keys), "each key once"
    for key, warning in zip(keys, warnings, strict=True):
        assert warning.startswith(key)
        assert warning.endswith(f"replication.factor to {brokers} or less")


def test_a_factor_of_the_brokers_own_is_never_too_high() -> None:
    flow = flow_of("replication.factor = -1\n")
    assert factor_warnings("B", 1, [InternalTopic("A.orders", flow.replication_factor)]) == []


def test_a_plan_without_an_archive_names_the_address_that_is_missing() -> None:
    flow = flow_of("clusters = A, B\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n")
    with pytest.raises(NoArchiveError, match=r"set A\.bootstrap\.servers"):
        dry_run(flow, MemoryStore(), Cluster({"bootstrap.servers": "b:9092"}, "target"))
