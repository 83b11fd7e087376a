"""The first inputs of the fuzzer, its earlier findings, and a second of it."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from scripts.fuzz.__main__ import FINDINGS
from scripts.fuzz.corpus import corpus
from scripts.fuzz.targets import TARGETS, one

_CHANGED = 200


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_findings_pass(name: str) -> None:
    seeds = [*corpus(name), *(path.read_bytes() for path in (FINDINGS / name).glob("*"))]
    assert len(seeds) > 1
    for data in seeds:
        one(name, data)


@pytest.mark.parametrize("name", TARGETS)
def test_small_changes(name: str) -> None:
    rng = random.Random(name)
    seeds = [data for data in corpus(name) if data]
    for _ in range(_CHANGED):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        one(name, bytes(data))


@pytest.mark.parametrize("name", ["records", "compressed"])
@pytest.mark.exhaustive
def test_a_second_of_it(name: str) -> None:
    pytest.importorskip("atheris", reason="no wheel for this Python")
    command = [sys.executable, "-m", "scripts.fuzz", "--seconds", "1", "--target", name]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "inputs, exit code 0" in run.stdout
