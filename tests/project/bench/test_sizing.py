"""infra/docs/sizing.md and requests.md say what the formulas and the measurements say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from kbackup.config.models import Backup
from scripts.bench.model import PRICES
from scripts.bench.requests import STEPS, table
from scripts.bench.sizing import (
    CASES,
    INDEX,
    MANIFEST,
    OFFSETS,
    OPENING,
    POINT,
    RUN,
    STORED,
    TABLE,
    Prices,
    main,
    rows,
)

ROOT = Path(__file__).parents[3]
SIZING = (ROOT / "infra" / "docs" / "sizing.md").read_text("utf-8")
REQUESTS = (ROOT / "infra" / "docs" / "requests.md").read_text("utf-8")
SCALE = (ROOT / "infra" / "docs" / "scale.md").read_text("utf-8")
MEASURED = json.loads((ROOT / "scripts" / "bench" / "results" / "requests.json").read_text("utf-8"))
STEPS_OF = {each["points"]: each["steps"] for each in MEASURED["sizes"]}


def test_the_worked_table_is_the_formulas() -> None:
    assert "\n".join(rows()) in SIZING


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    prices = Prices()
    for text in (
        f"({MANIFEST} + {OFFSETS} x g) + {STORED * POINT:,}) + {TABLE * STORED} x segments",
        f"/ r x {INDEX}; never",
        f"with new records, {RUN} for the run",
        f"{OPENING['GET']} and {OPENING['LIST']} at most",
        f"one every {Backup().lease_seconds / 3:.0f} s",
        f"${prices.storage} for a GB and month, ${PRICES['PUT']} for 1,000 PUT or",
        f"${PRICES['GET']} for 1,000 GET",
    ):
        assert text in SIZING.replace("\u00d7", "x"), text
    for size in (f"{MANIFEST} bytes a partition", f"{TABLE} bytes a segment", f"{OFFSETS} bytes an offset"):
        assert size in SCALE  # where a simulation checks them


def test_costs_grow_with_what_they_are_paid_for() -> None:
    one = CASES["middle"]
    assert CASES["small"].month["storage"] < CASES["small, none"].month["storage"]
    assert CASES["middle, every hour"].month["writing"] > one.month["writing"]
    assert one.month["storage"] == pytest.approx(0.023 * (one.segment_bytes + one.point_bytes) / 1e9)
    assert one.records == 5.5e12


def test_a_row_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = re.findall(r"python -m scripts\.bench\.sizing (.*)", SIZING)
    assert main(line.split()) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| yours | 300 | 200 GB | 5 GB | 1 |")


def test_the_table_of_requests_is_what_was_measured() -> None:
    assert "\n".join(table(MEASURED)) in REQUESTS
    counted = {step.label for step in STEPS if step.counted}
    assert (
        {step.label for step in STEPS if step.counted and step.needs_cluster}
        <= STEPS_OF[10].keys()
        <= counted
    )


@pytest.mark.parametrize(("command", "size"), [("list", "0.5 MB"), ("info", "1.8 MB"), ("ls", "1.8 MB")])
def test_the_bytes_in_the_text_are_those_measured(command: str, size: str) -> None:
    assert f"{STEPS_OF[10_000][f'`{command}`']['sent'] / 1e6:.1f} MB" == size
    assert re.search(rf"`{command}`[^.]* (?:reads?|and) [^.]*{re.escape(size)}", REQUESTS)


def test_an_archive_of_10000_restore_points_opens_within_a_second() -> None:
    (large,) = [each for each in MEASURED["sizes"] if each["points"] == 10_000]
    assert len(large["opened"]) >= 5
    assert median(large["opened"]) < 1.0


@pytest.mark.parametrize("points", [10, 1_000, 10_000])
def test_one_record_costs_two_requests_beside_metadata(points: int) -> None:
    listed, read = STEPS_OF[points]["`ls` of a partition"], STEPS_OF[points]["`cat` of one record"]
    assert read["GET"] - listed["GET"] == 2
    assert read["LIST"] == listed["LIST"]


@pytest.mark.parametrize("points", [10, 1_000, 10_000])
def test_runs_ask_no_more_than_sizing_says(points: int) -> None:
    nothing = STEPS_OF[points]["`backup`, nothing new"]
    assert nothing["PUT"] <= RUN
    assert nothing["GET"] + nothing.get("HEAD", 0) <= OPENING["GET"]
    assert nothing["LIST"] <= OPENING["LIST"]
    run = STEPS_OF[points]["`backup`, 10 new segments"]
    renewals = run["seconds"] * 3 / Backup().lease_seconds
    # ten segments with their indexes, and ten partition indexes
    assert run["PUT"] <= RUN + 20 + 10 + renewals
