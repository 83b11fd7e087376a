"""Target offsets of records without complete delivery reports: only proven offsets are used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.kafka.kernel_protocol import NotProvenError, Runs, join, resolve, runs_of
from kbackup.types import Int64Array


def rows(runs: Runs) -> list[tuple[int, int, int]]:
    return list(zip(runs.source.tolist(), runs.target.tolist(), runs.count.tolist(), strict=True))


def made(*targets: int) -> Runs:
    return runs_of(np.arange(len(targets), dtype=np.int64), np.array(targets, np.int64))


def never(start: int, end: int | None) -> Int64Array:
    pytest.fail("the broker was asked where nothing is in doubt")


def test_runs_break_where_either_side_does() -> None:
    sources = np.array([0, 1, 2, 5, 6, 7], np.int64)
    assert rows(runs_of(sources, np.array([9, 10, 12, 13, 14, 15], np.int64))) == [
        (0, 9, 2),
        (2, 12, 1),
        (5, 13, 3),
    ]


def test_nothing_sent() -> None:
    assert rows(join([])) == []
    assert rows(resolve(made(), None, never)) == []
    assert made().next is None


@pytest.mark.parametrize("unknown", [-1, -1001])
def test_a_gap_that_fits(unknown: int) -> None:
    runs = made(4, unknown, unknown, 7)
    assert rows(runs) == [(0, 4, 1), (1, -1, 2), (3, 7, 1)]
    assert rows(resolve(runs, None, never)) == [(0, 4, 4)]


def test_a_gap_at_the_start_fits_by_what_was_before() -> None:
    assert rows(resolve(made(-1, -1, 7), 5, never)) == [(0, 5, 3)]


@pytest.mark.parametrize(
    ("targets", "floor", "asked", "records"),
    [
        ((4, -1, 9), None, (5, 9), [5, 6]),  # more offsets than records, and not only ours
        ((4, -1, -1, 9), None, (5, 9), [6]),
        ((4, -1), None, (5, None), []),
        ((-1, 9), 5, (5, 9), [5, 8]),
        ((4, -1, 5), None, (5, 5), []),  # no place at all
    ],
)
def test_uncertain_runs_after_asking(
    targets: tuple[int, ...], floor: int | None, asked: tuple[int, int | None], records: list[int]
) -> None:
    def ask(start: int, end: int | None) -> Int64Array:
        assert (start, end) == asked
        return np.array(records, np.int64)

    with pytest.raises(NotProvenError):
        resolve(made(*targets), floor, ask)


def test_unknown_first_offset_is_not_proven() -> None:
    with pytest.raises(NotProvenError):
        resolve(made(-1, 5), None, never)


@given(
    gaps=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.booleans()), min_size=1, max_size=60),
    first=st.integers(0, 9),
)
def test_any_log(gaps: list[tuple[int, int, bool]], first: int) -> None:
    """Sources and targets with gaps, some targets unknown; the log holds these records alone."""
    sources = np.cumsum([a for a, _, _ in gaps])
    targets = first + np.cumsum([b for _, b, _ in gaps])
    told = np.where([known for _, _, known in gaps], targets, -1)
    cut = len(gaps) // 2
    runs = join([runs_of(sources[:cut], told[:cut]), runs_of(sources[cut:], told[cut:])])
    assert rows(runs) == rows(runs_of(sources, told))

    def ask(start: int, end: int | None) -> Int64Array:
        resolved: Int64Array = targets[(targets >= start) & (True if end is None else targets < end)]
        return resolved

    resolved = resolve(runs, 0, ask)
    assert rows(resolved) == rows(runs_of(sources, targets))
    assert resolved.next == targets[-1] + 1
