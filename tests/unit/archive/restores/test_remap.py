"""The rule of the remap against its definition, word by word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.kafka.kernel_protocol import runs_of


def offset_map(*runs: tuple[int, int, int], end: int) -> OffsetMap:
    source, target, count = (
        (np.array(column, np.int64) for column in zip(*runs, strict=True))
        if runs
        else (np.empty(0, np.int64),) * 3
    )
    return OffsetMap(source, target, count, end)


@pytest.mark.parametrize(
    ("committed", "target", "how"),
    [
        (0, 100, "log start"),
        (10, 100, "exact"),
        (14, 104, "exact"),
        (15, 106, "next record"),
        (19, 106, "next record"),
        (20, 106, "exact"),
        (22, 109, "log end"),
        (99, 109, "log end"),
    ],
)
def test_each_case_by_hand(committed: int, target: int, how: str) -> None:
    found = offset_map((10, 100, 5), (20, 106, 2), end=109).map(committed)
    assert found == (target, how)


def test_an_empty_partition_gives_the_targets_next_offset() -> None:
    assert offset_map(end=7).map(3) == (7, "empty")


@given(
    gaps=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=40),
    committed=st.integers(0, 130),
    first=st.integers(0, 5),
)
def test_target_is_the_first_restored_record_at_or_after_the_committed_offset(
    gaps: list[tuple[int, int]], committed: int, first: int
) -> None:
    sources = (first + np.cumsum([0, *(a for a, _ in gaps)])).tolist()
    targets = np.cumsum([3, *(b for _, b in gaps)]).tolist()
    runs = runs_of(np.array(sources, np.int64), np.array(targets, np.int64))
    found = OffsetMap(runs.source, runs.target, runs.count, targets[-1] + 5).map(committed)
    wanted = next((t for s, t in zip(sources, targets, strict=True) if s >= committed), targets[-1] + 5)
    assert found.offset == wanted
    assert int(runs.count.sum()) == len(sources)
