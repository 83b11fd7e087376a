"""infra/docs/scale.md, sizing.md and requests.md say what the model, the code and the measurements say."""

from __future__ import annotations

import json
import re

import pytest

from kbackup.archive.segments.read import FETCH_SPAN
from kbackup.config.models import Backup
from kbackup.jobs.backup.task import PACK_PARTITIONS
from scripts.bench.requests import table
from scripts.bench.simulate import CORES, PREFIX_RATES, PRICES, RATE, RECORD, RUN, Cluster, simulate, worked_rows
from tests.project.docs.documents import ROOT

DOCS = ROOT / "infra" / "docs"
SCALE, SIZING, REQUESTS = (
    (DOCS / f"{name}.md").read_text("utf-8").replace("\u00d7", "x") for name in ("scale", "sizing", "requests")
)
MEASURED = json.loads((ROOT / "scripts" / "bench" / "results" / "requests.json").read_text("utf-8"))


def test_the_worked_table_is_the_models() -> None:
    assert [line for line in SCALE.splitlines() if re.search(r"\| (first|night) \|", line)] == [*worked_rows()]


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
        assert text in SCALE, text
    for text in (f"with new records, {RUN} for the run", f"one every {Backup().lease_seconds / 3:.0f} s"):
        assert text in SIZING, text


def test_sizes_and_requests_are_those_of_a_simulation() -> None:
    """Small, so within a tenth or so: names grow with their numbers, and headers count for more."""
    partitions = 2000
    first, night, back = simulate(partitions, partitions * 3e9, RECORD, 0.01)
    segments = first.data.segments
    for pattern, measured in {
        r"`manifest.json`, (\d+) bytes a partition": first.sizes["manifest.json"] / partitions,
        r"`tables/`, (\d+) bytes a segment": first.sizes["tables"] / segments,
        r"`groups.json`, (\d+) bytes an offset": first.sizes["groups.json"] / (2 * partitions),
        r"on their way back, (\d+) bytes a segment": first.sizes["a result, pickled"],
        r"that restore, (\d+) bytes a segment": back.sizes["plan.json"] / (segments + partitions),
    }.items():
        (size,) = re.findall(pattern, SCALE)
        assert int(size) == pytest.approx(measured, rel=0.15), pattern
    # a partition index and a changed group file for each partition
    assert 0 <= night.requests["PUT"] - 2 * partitions <= RUN
    assert back.requests.get("PUT", 0) == 0


def test_the_table_of_requests_is_what_was_measured() -> None:
    assert "\n".join(table(MEASURED)) in REQUESTS


@pytest.mark.parametrize("size", MEASURED["sizes"], ids=lambda size: str(size["points"]))
def test_runs_ask_no_more_than_sizing_says(size: dict[str, dict[str, dict[str, float]]]) -> None:
    nothing = size["steps"]["`backup`, nothing new"]
    gets, lists = map(int, re.findall(r"\| GET, LIST \| (\d+) and (\d+) at most", SIZING)[0])
    assert nothing["PUT"] <= RUN
    assert nothing["GET"] + nothing.get("HEAD", 0) <= gets
    assert nothing["LIST"] <= lists
