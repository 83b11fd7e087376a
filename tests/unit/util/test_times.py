"""Times and durations as text."""

from __future__ import annotations

import pytest

from kbackup.util.times import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (100, "1m40s"), (5400, "1h30m"), (93600, "26h"), (172800, "2d"), (190800, "2d5h")],
)
def test_durations_are_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
