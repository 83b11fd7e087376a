"""The simulation runs kbackup's own code: small, it must agree with the model that the documents show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench.__main__ import main
from scripts.bench.model import Cluster, Data, cost, segments_of, upload_requests
from scripts.bench.simulate import Simulated, simulate
from scripts.bench.sizing import RUN

MIB = 1 << 20
PARTITIONS, RECORD, GROWN = 60, 1024, 0.5
FIRST = 7
"""More PUTs of a first run: archive.json, the probe of the store, incarnations and their catalog."""
SIZE = PARTITIONS * 300e6


@pytest.fixture(scope="module")
def runs() -> list[Simulated]:
    return simulate(PARTITIONS, SIZE, RECORD, GROWN)


def test_every_step_was_run_and_measured(runs: list[Simulated]) -> None:
    assert [run.name for run in runs] == ["first", "nightly", "restore"]
    backup = ["open", "plan", "reserve", "ship tasks", "results", "commit", "refresh"]
    assert [step.name for step in runs[0].steps] == backup == [step.name for step in runs[1].steps]
    assert all(step.peak > MIB for run in runs for step in run.steps)


def test_tasks_hold_what_is_to_be_read(runs: list[Simulated]) -> None:
    first, night, back = runs
    assert sum(first.tasks) == first.data.size == pytest.approx(SIZE, rel=1e-4)
    assert sum(night.tasks) == pytest.approx(SIZE * GROWN, rel=1e-4)
    # segments have a magic byte each
    assert sum(back.tasks) == pytest.approx(first.data.size + night.data.size, rel=1e-6)


def test_the_drivers_requests_are_those_of_the_model(runs: list[Simulated]) -> None:
    """A partition index for each, and a group file where groups moved; a handful for the restore point itself."""
    for run in runs[:2]:
        assert 0 <= run.requests["PUT"] - 2 * PARTITIONS <= RUN + FIRST * (run is runs[0])
        assert run.requests["GET"] <= 24
    assert runs[2].requests.get("PUT", 0) == 0


def test_segments_and_requests_of_executors() -> None:
    assert [segments_of(n) for n in (0, 1, 128 * MIB, 128 * MIB + 1)] == [0, 1, 1, 2]
    assert upload_requests(16 * MIB, 16 * MIB) == 1
    assert upload_requests(16 * MIB + 1, 16 * MIB) == 2 + 2
    assert upload_requests(128 * MIB, 16 * MIB) == 8 + 2
    data = Data(10, 10 * 128 * MIB, 1024)
    assert data.segments == 10
    assert data.index_bytes == 24 * 10 * 128 * 1024
    assert data.puts() == 10 * (upload_requests(128 * MIB) + 1)


def test_cost() -> None:
    assert cost({"PUT": 1000, "GET": 1_000_000, "LIST": 0}) == pytest.approx(0.405)


def test_executors() -> None:
    """Handing tasks out one after another comes near to the formula that spreads them evenly."""
    cluster = Cluster(4, 2, rate=100e6, start=6.0, task=0.1, launch=200.0)
    tasks = [2e9] * 80
    assert cluster.seconds(tasks) == pytest.approx(6 + 10 * (0.1 + 20), rel=0.01)
    assert cluster.bound(sum(tasks), len(tasks)) <= cluster.seconds(tasks)
    assert cluster.seconds(tasks) == pytest.approx(cluster.bound(sum(tasks), len(tasks)), rel=0.02)
    small = Cluster(100, 100, rate=100e6)
    assert small.seconds([0.0] * 2000) == pytest.approx(small.start + 2000 / small.launch, rel=0.05)


def test_command_writes_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "simulation.json"
    arguments = ["--simulate", "--partitions", "20", "--partition-bytes", "1e9", "--json", str(found)]
    assert main(arguments) == 0
    assert "first: 20 partitions" in capsys.readouterr().out
    written = json.loads(found.read_text())
    assert [run["name"] for run in written["runs"]] == ["first", "nightly", "restore"]
