"""One file of an archive is changed at random: verify and restore refuse it, or bring the same back."""

from __future__ import annotations

import random

import pytest

from tests.faults.mutation import run


@pytest.mark.parametrize(
    ("cases", "seed"),
    [(150, 1), pytest.param(150, None, marks=pytest.mark.soak), pytest.param(10_000, None, marks=pytest.mark.soak)],
    ids=["fixed", "new", "many"],
)
def test_mutated_files_are_detected_or_harmless(cases: int, seed: int | None) -> None:
    """By a seed that stays and by one that is new each time."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}")
    result = run(cases, seed)
    assert not result.wrong, "\n".join(result.wrong)
    assert sum(result.counted.values()) == cases
