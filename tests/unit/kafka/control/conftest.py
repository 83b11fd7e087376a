"""Time, and clusters that answer from memory, for the tests of the control plane."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kbackup.kafka.control import connection, deadline, router
from tests.support.fake_broker import FakeCluster, fake_cluster


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; time passes in nothing else."""
    pauses: list[float] = []

    def monotonic() -> float:
        return sum(pauses)

    time = SimpleNamespace(monotonic=monotonic, sleep=pauses.append)
    for module in (router, connection, deadline):
        monkeypatch.setattr(module, "time", time)
    return pauses


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    """Two brokers: the first one is the controller."""
    with fake_cluster(nodes=2) as cluster:
        yield cluster
