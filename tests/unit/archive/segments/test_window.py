"""Windows by offsets: what is left out, and what counts are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.archive.segments.window import EVERY_OFFSET, Window, common, joined, without
from tests.support.made_segments import a_segment
from tests.support.record_blocks import encoded, plain

END = 2**63 - 1


def test_ranges_are_joined_where_they_meet_and_none_is_empty() -> None:
    assert joined([(3, 3), (7, 9), (5, 7), (1, 2), (6, 8), (10, 10)]) == ((1, 2), (5, 9))


@pytest.mark.parametrize(
    ("start", "end", "ranges"),
    [
        (None, None, None),
        (0, None, None),
        (None, 10, ((0, 10),)),
        (0, 10, ((0, 10),)),
        (5, None, ((5, END),)),
        (5, 10, ((5, 10),)),
    ],
)
def test_bounds_of_offsets_limit_a_window_of_times(
    start: int | None, end: int | None, ranges: tuple[tuple[int, int], ...] | None
) -> None:
    times = Window(from_time=1, to_time=2)
    assert times.at_offsets(start, end) == Window(from_time=1, to_time=2, ranges=ranges)


@pytest.mark.parametrize(
    ("ranges", "skipped", "rest"),
    [
        (EVERY_OFFSET, (), EVERY_OFFSET),
        (EVERY_OFFSET, ((5, 6),), ((0, 5), (6, END))),
        (EVERY_OFFSET, ((0, 2), (5, 6)), ((2, 5), (6, END))),
        (((10, 20), (30, 40)), ((15, 35),), ((10, 15), (35, 40))),
        (((10, 20),), ((12, 13), (18, 25)), ((10, 12), (13, 18))),
        (((10, 20),), ((0, 5), (20, 22)), ((10, 20),)),
        (((10, 20),), ((10, 20),), ()),
    ],
)
def test_offsets_without_the_skipped_ones(
    ranges: tuple[tuple[int, int], ...], skipped: tuple[tuple[int, int], ...], rest: tuple[tuple[int, int], ...]
) -> None:
    assert without(ranges, skipped) == rest


def offsets_of(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


some_ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6).map(joined)


@given(some_ranges, some_ranges)
def test_common_offsets_are_those_of_both(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> None:
    both = common(one, other)
    assert offsets_of(both) == offsets_of(one) & offsets_of(other)
    assert both == joined(both)
    assert Window(ranges=one).inside(Window(ranges=other)).ranges == both


@given(some_ranges, st.integers(0, 30), st.integers(0, 9))
def test_a_segment_may_hold_and_a_block_is_cut_to_what_the_ranges_have(
    ranges: tuple[tuple[int, int], ...], first: int, more: int
) -> None:
    spanned = range(first, first + more + 1)
    window, inside = Window(ranges=ranges), sorted(offsets_of(ranges) & set(spanned))
    segment = a_segment("orders", first, spanned[-1], min_timestamp=None, max_timestamp=None)
    assert window.at_most(segment) == len(inside)
    cut, _ = window.cut(encoded(*map(plain, spanned)))
    assert cut.offsets.tolist() == inside


def test_a_block_without_the_skipped_records() -> None:
    block = encoded(*map(plain, (3, 4, 7, 8, 9)))
    cut, untimed = Window(ranges=without(EVERY_OFFSET, ((4, 8),))).cut(block)
    assert (cut.offsets.tolist(), untimed) == ([3, 8, 9], 0)


def test_a_group_on_a_skipped_record_goes_to_the_next_one() -> None:
    """Records 0 to 9 without 4 and 5 are 8 records of the target."""
    source, target, count = (np.array(each, np.int64) for each in ([0, 6], [100, 104], [4, 4]))
    made = OffsetMap(source, target, count, next=108)
    assert [made.map(at) for at in (3, 4, 5, 6)] == [
        (103, "exact"),
        (104, "next record"),
        (104, "next record"),
        (104, "exact"),
    ]


@pytest.mark.parametrize(
    ("window", "count", "exact"),
    [
        (Window(), 10, True),
        (Window(ranges=((0, 5), (6, END))), 9, True),
        (Window(ranges=((20, 30),)), 0, True),
        (Window(from_time=1), 10, False),
        (Window(where=".value"), 10, False),
    ],
)
def test_counts_of_a_segment_without_gaps(window: Window, count: int, exact: bool) -> None:
    segment = a_segment()
    assert (window.at_most(segment), window.counts(segment)) == (count, exact)


def test_counts_do_not_depend_on_where_a_segment_begins() -> None:
    skipping_one = Window(ranges=((0, 105), (106, END)))
    later = a_segment(first=100, last=109)
    assert (skipping_one.at_most(later), skipping_one.counts(later)) == (9, True)
    gappy = a_segment(first=100, last=109, count=7)
    assert (skipping_one.at_most(gappy), skipping_one.counts(gappy)) == (7, False)


@pytest.mark.parametrize(("ranges", "exact"), [(((0, 5), (6, END)), False), (((0, END),), True), (((10, END),), True)])
def test_gaps_make_a_count_a_bound(ranges: tuple[tuple[int, int], ...], exact: bool) -> None:
    gappy = a_segment(count=7)
    assert Window(ranges=ranges).counts(gappy) is exact
