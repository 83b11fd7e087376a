"""A copy can retain what its source expired."""

from __future__ import annotations

import pytest

from kbackup.archive.catalog.operations import label_point, pin_points
from kbackup.archive.reader import open_archive
from tests.support.copies import (
    change,
    check_whole,
    copied,
    copied_at,
    expired,
    keys_of,
    seen,
    swept,
)

pytestmark = pytest.mark.exhaustive(keep=2)


@pytest.mark.parametrize("keep", [False, True])
def test_the_user_chooses_what_a_copy_keeps(keep: bool) -> None:
    source, target = copied_at(5)
    change(target, lambda state: label_point(pin_points(state, [1], "2026-01-01T00:00:00Z"), "first", 1))
    old = seen(target)
    expired(source, last=1, days=1)
    due = seen(source)
    for _ in range(2):
        copied(source, target, keep)
        swept(target)
        check_whole(target)
        now = seen(target)
        if not keep:
            assert now == due
            continue
        assert {n: each for n, each in now.items() if n <= 5} == old
        assert set(now) == {1, 2, 3, 4, 5, 6}
        state = open_archive(target).state
        assert (dict(state.pins), dict(state.labels)) == ({1: "2026-01-01T00:00:00Z"}, {"first": 1})
    copied(source, target)
    assert set(seen(target)) == {6}
    swept(target)
    check_whole(target)


def test_a_copy_that_keeps_says_which_records_it_never_got() -> None:
    """They expired at the source before they were copied."""
    source, target = copied_at(1)
    old = seen(target)
    expired(source, last=1, days=1)
    lag = open_archive(source).state.starts
    copied(source, target, keep=True)
    assert seen(target)[1] == old[1]
    check_whole(target)
    losses = open_archive(target).losses(open_archive(target).restore_point(6))
    places = {(loss.partition, loss.end) for loss in losses if loss.topic == "b"}
    assert len(places) == 2
    assert places == {(n, start.start) for (topic, _, n), start in lag.items() if topic == "b"}
    for _ in range(2):
        copied(source, target, keep=True)
        assert len(open_archive(target).losses(open_archive(target).restore_point(6))) == len(losses)
    swept(target)
    check_whole(target)
    copied(source, target)
    assert seen(target) == seen(source)


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("reached", [2, 5])
def test_a_copy_that_keeps_can_expire_by_itself(reached: int) -> None:
    """Also what lived when it was copied, and was over when the source let it go."""
    source, target = copied_at(reached)
    expired(source, last=1)
    copied(source, target, keep=True)
    expired(target, last=1)
    swept(target)
    assert seen(target) == seen(source)
    assert keys_of(target) == keys_of(source)
    check_whole(target)
    copied(source, target, keep=True)
    assert set(seen(target)) == {6}


def test_points_expired_in_a_copy_do_not_return() -> None:
    """Also where the source has it still, or took it back."""
    source, target = copied_at(6)
    expired(target, last=2, days=2)
    due = seen(target)
    assert set(due) == {5, 6}
    report = copied(source, target)
    assert (report.restore_points, report.dropped, report.objects) == ((), (), 0)
    assert seen(target) == due
    check_whole(target)
    swept(target)
    check_whole(target)
