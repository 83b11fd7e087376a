"""infra/docs/scale.md says what the model and the code say."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from kbackup.archive.segments.read import FETCH_SPAN
from kbackup.jobs.backup.task import PACK_PARTITIONS
from scripts.bench import __main__ as pairs
from scripts.bench import grid
from scripts.bench.model import PREFIX_RATES, PRICES, Cluster
from scripts.bench.scale import CORES, RATE, RECORD, rows
from scripts.bench.simulate import simulate

ROOT = Path(__file__).parents[3]
SCALE = ROOT / "infra" / "docs" / "scale.md"
TEXT = SCALE.read_text("utf-8")
COMMANDS = sorted(
    {
        (path.name, found)
        for path in (SCALE, ROOT / "scripts" / "bench" / "README.md")
        for found in re.findall(r"python -m (scripts\.bench[^`#\n]*)", path.read_text("utf-8"))
    }
)


def test_the_worked_table_is_the_models() -> None:
    table = [line for line in TEXT.splitlines() if re.search(r"\| (first|night) \|", line)]
    assert table == list(rows())


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    cluster = Cluster(1, 1, 1.0)
    for text in (
        f"{RATE / 1e6:.0f} MB/s below",
        f"records of {RECORD >> 10} KiB, executors of {CORES} cores",
        f"{cluster.start:.0f} s + max((B / R + tasks x {cluster.task} s) / (N x C), tasks / {cluster.launch:.0f}",
        f"up to {PACK_PARTITIONS} partitions share one",
        f"ranges of {FETCH_SPAN >> 20} MiB",
        f"${PRICES['PUT']} for 1,000 PUT or LIST, ${PRICES['GET']} for 1,000 GET",
        f"{PREFIX_RATES['PUT']:,} PUT and {PREFIX_RATES['GET']:,} GET a second",
    ):
        assert text in TEXT.replace("\u00d7", "x"), text


def test_sizes_are_those_of_a_simulation() -> None:
    """Small, so within a tenth or so: names grow with their numbers, and headers count for more."""
    first, _, back = simulate(2000, 2000 * 3e9, RECORD, 0.01)
    segments = first.data.segments
    for pattern, measured in {
        r"`manifest.json`, (\d+) bytes a partition": first.sizes["manifest.json"] / 2000,
        r"`tables/`, (\d+) bytes a segment": first.sizes["tables"] / segments,
        r"`groups.json`, (\d+) bytes an offset": first.sizes["groups.json"] / (2 * 2000),
        r"on their way back, (\d+) bytes a segment": first.sizes["a result, pickled"],
        r"that restore, (\d+) bytes a segment": back.sizes["plan.json"] / (segments + 2000),
    }.items():
        said = re.search(pattern, TEXT)
        assert said is not None, pattern
        assert int(said[1]) == pytest.approx(measured, rel=0.15), pattern


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_that_are_named_exist(command: tuple[str, str]) -> None:
    module, *arguments = shlex.split(command[1])
    assert find_spec(module) is not None
    modes = {flag: import_module(mode)._options for flag, mode in pairs._MODES.items()}
    options = {"scripts.bench": pairs._options, "scripts.bench.grid": grid._options}.get(module)
    for flag, parse in modes.items():
        if flag in arguments:
            arguments.remove(flag)
            options = parse
    if options is not None:
        options(arguments)


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 7
