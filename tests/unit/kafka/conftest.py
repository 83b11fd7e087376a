"""Time for the tests of Kafka's side."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbackup.kafka import retry


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; time passes in nothing else."""
    pauses: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    return pauses
