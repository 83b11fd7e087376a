"""Arbitrary bytes into all that reads files of an archive: it must read them, or raise a `KbackupError`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.fuzz.corpus import corpus
from tests.unit.fuzz.targets import TARGETS, one

FINDINGS = Path(__file__).parent / "findings"
_CHANGED = 200


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_findings_pass(name: str) -> None:
    seeds = [*corpus(name), *(path.read_bytes() for path in (FINDINGS / name).glob("*"))]
    assert len(seeds) > 1
    for data in seeds:
        one(name, data)


@pytest.mark.parametrize(
    ("number", "seed"), [(_CHANGED, 1), pytest.param(1_000_000, None, marks=pytest.mark.soak)], ids=["some", "many"]
)
@pytest.mark.parametrize("name", TARGETS)
def test_changed_bytes_are_read_or_refused_as_damaged(name: str, number: int, seed: int | None) -> None:
    """Bytes are changed, cut out and put in twice."""
    rng = random.Random(f"{name} {random.SystemRandom().randrange(1 << 32) if seed is None else seed}")
    seeds = [data for data in corpus(name) if data]
    for _ in range(number):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.2:
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(64)] = data[: rng.randrange(64)]
        try:
            one(name, bytes(data))
        except Exception as error:
            raise AssertionError(f"these bytes are neither read nor refused: {data.hex()}") from error
