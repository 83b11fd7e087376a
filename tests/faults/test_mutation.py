"""One file of an archive is changed at random: verify and restore refuse it, or bring the same back."""

from __future__ import annotations

import random

import pytest

from scripts.soak.mutation import run

CASES = 300


@pytest.mark.parametrize("seed", [1, None], ids=["fixed", "new"])
def test_mutated_files_are_detected_or_harmless(seed: int | None) -> None:
    """By a seed that stays and by one that is new each time; `python -m scripts.soak.mutation` runs 10,000."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}")
    result = run(CASES // 2, seed)
    print("\n".join(result.lines()))
    assert not result.wrong
    assert sum(result.counted.values()) == result.cases
