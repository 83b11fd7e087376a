"""python -m scripts.bench --simulate: planning and commit at 10,000 and 100,000 partitions, up to 1 PB, and what
executors make of them; as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kbackup.spark.session import build_session
from kbackup.spark.tasks import ProgressSender, run_tasks
from scripts.bench.model import Cluster, cost, total
from scripts.bench.simulate import Simulated, simulate
from scripts.bench.text import grid

_EXECUTORS = (1, 4, 16, 64, 256)
_MIB = 1 << 20
_ROOT = Path(__file__).parents[2]
_NOTE = """\
Driver: seconds and memory (the step's high-water mark of the process, with the synthetic cluster and the store's
objects in it). Requests: the driver's as counted, the executors' by the formulas of infra/docs/scale.md.
"""


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    runs = [
        run
        for partitions in options.partitions
        for run in simulate(
            partitions, partitions * options.partition_bytes, options.record, options.grown, options.restore
        )
    ]
    print("\n".join([_NOTE, *_report(runs, options)]))
    spark = _spark(options.spark_tasks) if options.spark_tasks else {}
    if spark:
        print(
            "Spark, local[2], empty tasks: " + "  ".join(f"{name} {value:,}" for name, value in spark.items())
        )
    if options.json is not None:
        options.json.write_text(json.dumps({**document(runs, options), "spark": spark}, indent=1) + "\n")
    return 0


def _nothing(task: list[int], progress: ProgressSender) -> Iterator[int]:
    yield len(task)


def _spark(tasks: int) -> dict[str, float]:
    """Return Spark's time for empty tasks: as a rate, and for one where `local[2]` runs two at a time."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    session = build_session("local[2]", {}, 1)
    try:
        run_tasks(session, [[0]] * 4, _nothing)
        began = time.monotonic()
        run_tasks(session, [[0]] * tasks, _nothing)
        seconds = time.monotonic() - began
    finally:
        session.stop()
    return {
        "tasks": tasks,
        "tasks/s": round(tasks / seconds, 1),
        "ms of one": round(2000 * seconds / tasks, 1),
    }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench --simulate", description=__doc__)
    add = parser.add_argument
    add("--partitions", type=_numbers, default=[10_000, 100_000], help="sizes to try (10000,100000)")
    add("--partition-bytes", type=float, default=1e10, help="bytes of a partition (1e10: 1 PB in 100,000)")
    add("--record", type=int, default=1024, help="bytes of an encoded record (1024)")
    add("--grown", type=float, default=0.01, help="what a night adds, as a share (0.01)")
    add(
        "--no-restore",
        action="store_false",
        dest="restore",
        help="leave out the restore, which takes most memory",
    )
    add("--cores", type=int, default=4, help="cores of an executor (4)")
    add(
        "--core-rate",
        type=float,
        default=150e6,
        help="bytes/s that a core backs up, by a measurement (150e6)",
    )
    add("--spark-tasks", type=int, default=0, help="also run so many empty tasks on Spark (0)")
    add("--json", type=Path, metavar="FILE", help="write all of it to FILE")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _report(runs: Sequence[Simulated], options: argparse.Namespace) -> list[str]:
    lines: list[str] = []
    for run in runs:
        size = run.data.size
        lines += [
            f"{run.name}: {run.partitions:,} partitions, {size / 1e12:,.1f} TB, {len(run.tasks):,} tasks",
            *grid(
                ("step", "s", "CPU s", "MiB", ""),
                [
                    (s.name, f"{s.seconds:.2f}", f"{s.cpu:.2f}", f"{s.peak / _MIB:,.0f}", s.note)
                    for s in run.steps
                ],
            ),
            "  ".join(f"{name} {value:,}" for name, value in run.sizes.items()),
            *_requests(run),
            *grid(("executors", "cores", "data phase, h"), _clusters(run, options)),
            "",
        ]
    return lines


def _requests(run: Simulated) -> list[str]:
    rows = [
        (who, *(f"{requests.get(kind, 0):,}" for kind in ("PUT", "GET", "LIST")), f"{cost(requests):,.2f}")
        for who, requests in requests_of(run).items()
    ]
    return grid(("requests of", "PUT", "GET", "LIST", "USD"), rows)


def requests_of(run: Simulated) -> dict[str, dict[str, int]]:
    """By who asks: the driver as counted, executors as the model has it."""
    executors = {"GET": run.data.gets()} if run.name == "restore" else {"PUT": run.data.puts()}
    return {"driver": run.requests, "executors": executors, "all": total([run.requests, executors])}


def _clusters(run: Simulated, options: argparse.Namespace) -> list[tuple[str, str, str]]:
    return [
        (f"{n:,}", f"{n * options.cores:,}", f"{hours:.2f}")
        for n, hours in zip(_EXECUTORS, _hours(run, options), strict=True)
    ]


def _hours(run: Simulated, options: argparse.Namespace) -> list[float]:
    return [Cluster(n, options.cores, options.core_rate).seconds(run.tasks) / 3600 for n in _EXECUTORS]


def document(runs: Sequence[Simulated], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "format": "kbackup-bench-simulation",
        "version": 1,
        "options": {name: str(value) for name, value in vars(options).items()},
        "runs": [
            {
                **run.document(),
                "all requests": requests_of(run),
                "USD": {who: round(cost(some), 4) for who, some in requests_of(run).items()},
                "hours by executors": dict(zip(_EXECUTORS, _hours(run, options), strict=True)),
            }
            for run in runs
        ],
    }
