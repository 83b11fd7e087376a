"""Time, answers and runs for the tests of Kafka's side."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kbackup.kafka import retry
from kbackup.kafka.kernel_protocol import Runs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; time passes in nothing else."""
    pauses: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    return pauses


def answer(value: object) -> Future[Any]:
    """Return the future of an admin request: with an error for a code, else with `value`."""
    future: Future[Any] = Future()
    if isinstance(value, int):
        future.set_exception(KafkaException(KafkaError(value)))
    else:
        future.set_result(value)
    return future


def rows(runs: Runs) -> list[tuple[int, int, int]]:
    return list(zip(runs.source.tolist(), runs.target.tolist(), runs.count.tolist(), strict=True))
