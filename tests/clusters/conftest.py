"""Clusters that run jobs, each started once, and the topics for them and for the image."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from scripts.dev.kafka import Broker
from scripts.dev.kubernetes import ControlPlane, monitoring_kinds
from tests.integration.topics import numbered, produce
from tests.support.truth import Position, commit

PARTITIONS = 4
RECORDS = 2_000

LARGE_PARTITIONS = 2
LARGE_RECORD = 64 << 10  # bytes
LARGE_RECORDS = 240  # of a partition

GROUP = "buchhaltung-ä-группа"
"""A group whose name few charsets have."""


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """Kubernetes without a node: it takes objects and makes pods of them, which stay pending."""
    with ControlPlane() as running:
        # server-side, because an annotation with the whole of such a definition would be too long
        running.kubectl("apply", "--server-side", "--filename", str(monitoring_kinds()))
        yield running


@pytest.fixture(scope="session")
def topic(broker: Broker) -> str:
    return make_small_topic(broker)


@pytest.fixture(scope="session")
def large_topic(broker: Broker) -> str:
    return make_large_topic(broker)


def make_small_topic(broker: Broker) -> str:
    """Return a topic of small records, which a group has read in part."""
    name = f"small-{secrets.token_hex(4)}"
    broker.create_topic(name, PARTITIONS)
    for partition in range(PARTITIONS):
        produce(broker, name, partition, numbered(RECORDS // PARTITIONS), timestamp=1_700_000_000_000 + partition)
    commit(broker.bootstrap, GROUP, {(name, 0): Position(100)})
    return name


def make_large_topic(broker: Broker) -> str:
    """Return a topic of 30 MiB that can't be compressed. A job with a limit of rate is at work on it for long."""
    name = f"large-{secrets.token_hex(4)}"
    broker.create_topic(name, LARGE_PARTITIONS)
    for partition in range(LARGE_PARTITIONS):
        produce(broker, name, partition, [os.urandom(LARGE_RECORD) for _ in range(LARGE_RECORDS)])
    return name
