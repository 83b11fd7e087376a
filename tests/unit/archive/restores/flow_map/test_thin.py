"""Thinned runs answer never behind the exact answer, and stay few however many rounds there are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.restores import flow_map as module
from kbackup.archive.restores.flow_map import EXACT, SHARE, SLACK, thin
from kbackup.archive.restores.offset_map import OffsetMap, Runs


def offset_map(runs: Runs) -> OffsetMap:
    source, target, count = runs
    return OffsetMap(source, target, count, int(target[-1] + count[-1]))


def history(holes: list[int], counts: list[int], markers: list[int]) -> Runs:
    """Runs from holes in the source before each run, records in it, and offsets that the target skips before it."""
    size = min(len(holes), len(counts), len(markers))
    count = np.array(counts[:size], np.int64)
    before = np.concatenate(([0], np.cumsum(count)[:-1]))
    source = before + np.cumsum(np.array(holes[:size], np.int64))
    target = before + np.cumsum(np.array(markers[:size], np.int64))
    return source, target, count


def test_ten_thousand_rounds_leave_few_runs() -> None:
    """Folded again and again, as rounds come in."""
    runs = history([0] * 1000, [10] * 1000, [1] * 1000)
    for _ in range(200):
        source, target, count = runs
        more = np.arange(1, 101, dtype=np.int64)
        runs = thin(
            (
                np.concatenate([source, source[-1] + count[-1] + 10 * (more - 1)]),
                np.concatenate([target, target[-1] + count[-1] + 11 * more - 10]),
                np.concatenate([count, np.full(100, 10, np.int64)]),
            )
        )
    source, target, count = runs
    assert len(source) < EXACT + SLACK + 100 + 10 * SHARE
    assert count.sum() == 21_000 * 10
    assert (np.diff(source) > 0).all()
    assert (target[1:] >= target[:-1] + count[:-1]).all()


@given(
    st.lists(st.integers(0, 5), min_size=60, max_size=120),
    st.lists(st.integers(1, 6), min_size=60, max_size=120),
    st.lists(st.integers(0, 3), min_size=60, max_size=120),
    st.integers(1, 8),
    st.booleans(),
)
def test_no_answer_becomes_greater(
    holes: list[int], counts: list[int], markers: list[int], share: int, twice: bool
) -> None:
    """And each lies before the exact one by no more than the markers and holes between."""
    exact = history(holes, counts, markers)
    kept = (module.EXACT, module.SLACK, module.SHARE)
    module.EXACT, module.SLACK, module.SHARE = 20, 0, share
    try:
        thinned = thin(exact)
        if twice:
            thinned = thin(thinned)
    finally:
        module.EXACT, module.SLACK, module.SHARE = kept
    truth, answers = offset_map(exact), offset_map(thinned)
    end = int(exact[0][-1] + exact[2][-1])
    computed = [answers.map(p).offset for p in range(end + 1)]
    due = [truth.map(p).offset for p in range(end + 1)]
    assert all(a <= b for a, b in zip(computed, due, strict=True))
    assert computed == sorted(computed)
    since = int(exact[0][-20])
    assert computed[since:] == due[since:], "the newest runs are exact"
    assert computed[int(exact[0][0])] == due[int(exact[0][0])]
    assert len(thinned[0]) <= len(exact[0]) or not any(holes)
