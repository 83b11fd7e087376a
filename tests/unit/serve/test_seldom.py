"""Lines that others can cause are written now and then, whatever the others do."""

from __future__ import annotations

import pytest

from kbackup.serve import seldom
from kbackup.serve.seldom import Seldom
from tests.unit.serve.asking import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(seldom, "time", clock)
    return clock


def test_a_name_has_a_line_once_in_the_time_and_then_the_count_of_the_rest(clock: Clock) -> None:
    lines = Seldom(60)
    assert [lines.due("a"), lines.due("a"), lines.due("b"), lines.due("a")] == [0, None, 0, None]
    clock.now += 59
    assert lines.due("a") is None
    clock.now += 2
    assert [lines.due("a"), lines.due("b"), lines.due("a")] == [3, 0, None]


def test_many_names_have_no_more_lines_than_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seldom, "MOST_NAMES", 3)
    lines = Seldom(60)
    assert [lines.due(f"{number}") for number in range(6)] == [0, 0, 0, None, None, None]
    clock.now += 30
    assert lines.due("6") is None
    clock.now += 31
    assert [lines.due("7"), lines.due("8"), lines.due("9"), lines.due("10")] == [0, 0, 0, None]
