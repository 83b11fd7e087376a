from __future__ import annotations

import time

import pytest

from kbackup.util.system import attempts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes in pauses alone."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return now


def test_the_last_attempt_comes_when_the_time_is_over(clock: list[float]) -> None:
    assert [clock[0] for _ in attempts(1.0, 0.4)] == pytest.approx([100.0, 100.4, 100.8, 101.2])


def test_without_time_there_is_one_attempt(clock: list[float]) -> None:
    assert [clock[0] for _ in attempts(0.0, 0.4)] == [100.0]


def test_success_ends_without_a_pause(clock: list[float]) -> None:
    for _ in attempts(1.0, 0.4):
        break
    assert clock == [100.0]
