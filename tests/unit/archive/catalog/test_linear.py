"""Operations on archives of many topics take steps in proportion to the topics, counted by calls of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from kbackup.archive.catalog.copies import without_expired
from kbackup.archive.catalog.operations import add_point, begin_run
from kbackup.archive.catalog.retention import expire_points, expire_records, undo_expiration
from kbackup.archive.catalog.state import State
from tests.unit.archive.catalog.rows import ARCHIVE, new_point, open_run, segment

FEW, MANY = 40, 160


def grown(topics: int, points: int) -> State:
    """An archive of restore points that each have two more records of every topic."""
    state = begin_run(State(ARCHIVE), open_run("r"))
    for number in range(1, points + 1):
        new = [segment(f"t{n}", 2 * number - 2, 2 * number - 1) for n in range(topics)]
        names = {(f"t{n}", 1): f"id {n}" for n in range(topics)}
        state = add_point(state, "r", new_point(number, new, names))
    return state


def expired(state: State, topics: int) -> State:
    return expire_records(state, {(f"t{n}", 1, 0): 2 for n in range(topics)})


def of_copy(topics: int) -> Callable[[], State]:
    state = grown(topics, 2)
    copy = expired(state, topics)
    return lambda: without_expired(state, copy)


def of_undo(topics: int) -> Callable[[], State]:
    before = replace(grown(topics, 2), number=1)
    after = expire_points(before, [1])
    return lambda: undo_expiration(after, before, after)


def calls(work: Callable[[], State]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # what is read once is read
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("prepare", [of_copy, of_undo])
def test_steps_grow_with_topics(prepare: Callable[[int], Callable[[], State]]) -> None:
    few, many = calls(prepare(FEW)), calls(prepare(MANY))
    assert many < 1.5 * few * MANY / FEW, (
        f"{few} calls for {FEW} topics, {many} for {MANY}: not in proportion"
    )
