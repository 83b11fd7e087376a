"""python -m scripts.bench.startup: from the command `kbackup backup` to its first records, and from its last to its
end, against a real broker and S3 server on this machine.

The command runs as users run it, on a small topic; `traced/sitecustomize.py` notes the moments from outside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench.processes import Tree
from scripts.bench.servers import Servers

ROOT = Path(__file__).parents[2]
_TRACED = Path(__file__).with_name("traced")
_LIMIT = 120.0  # s
RECORDS, SIZE = 1_000, 140  # of a partition; bytes of a value

MOMENTS = {
    "imported": "the command is imported",
    "configured": "configuration read",
    "session begun": "session asked for",
    "JVM begun": "JVM started",
    "JVM up": "JVM answers",
    "session ready": "session ready",
    "daemon begun": "Python daemon started",
    "worker forked": "first worker forked",
    "phase connect": "driver begins to connect",
    "phase run": "driver has planned",
    "tasks sent": "tasks sent",
    "task begins": "first task begins",
    "client made": "its client made",
    "first records": "first records consumed",
    "tasks done": "last task's results here",
    "reported": "committed and reported",
    "ended": "process ended",
}
"""The events that `traced` records, and their names in the table."""


@dataclass(frozen=True)
class Run:
    """Seconds from the command to each moment, when it came first; by role, seconds of CPU and the most bytes."""

    tree: str
    moments: dict[str, float]
    cpu: dict[str, float]
    peaks: dict[str, int]


def measure(servers: Servers, topic: str, tree: Path, arguments: Sequence[str]) -> Run:
    with tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder:
        noted = Path(folder, "moments")
        env = environment(servers, topic, tree) | _noting(tree, noted)
        began = time.monotonic()
        command = [sys.executable, "-m", "kbackup", "backup", "--json", *arguments]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
        cpu: dict[str, float] = {}
        with Tree(process.pid) as processes:
            while process.poll() is None and time.monotonic() < began + _LIMIT:
                time.sleep(0.05)
                cpu |= {role: max(used, cpu.get(role, 0)) for role, used in processes.cpu().items()}
            code = process.wait(0)
        ended = time.monotonic()
        if code:
            raise SystemExit(f"kbackup of {tree} ended with exit code {code}")
        moments = {"ended": ended - began}
        for line in noted.read_text().splitlines():
            name, _, at = line.partition("\t")
            moments.setdefault(name, float(at) - began)
    return Run(str(tree), moments, cpu, processes.peaks())


def environment(servers: Servers, topic: str, tree: Path) -> dict[str, str]:
    """Return the environment in which kbackup of the checkout `tree` backs `topic` up into a new archive."""
    archive = servers.new_archive()
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_"))}
    s3 = {f"KBACKUP_S3_{name.upper()}": value for name, value in archive["s3"].items()}
    return {
        **plain,
        **s3,
        "PYTHONPATH": str(tree),
        "KBACKUP_ARCHIVE": archive["store"],
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": servers.broker.bootstrap,
        "KBACKUP_BACKUP_TOPICS": topic,
    }


def _noting(tree: Path, noted: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(tree), str(_TRACED)]), "BENCH_MOMENTS": str(noted)}


def table(runs: Sequence[Run]) -> str:
    """A row a moment, in the order of the first tree; a column a tree."""
    trees = list(dict.fromkeys(run.tree for run in runs))
    at = {tree: _medians([run for run in runs if run.tree == tree]) for tree in trees}
    order = sorted((name for name in MOMENTS if name in at[trees[0]]), key=lambda name: at[trees[0]][name])
    lines = [f"{'s after the command':<28}" + "".join(f"{Path(tree).name:>18}" for tree in trees)]
    for name in order:
        cells = (f"{at[tree][name]:>18.2f}" if name in at[tree] else f"{'':>18}" for tree in trees)
        lines.append(f"{MOMENTS[name]:<28}" + "".join(cells))
    return "\n".join([*lines, *_costs(runs, trees)])


def _costs(runs: Sequence[Run], trees: Sequence[str]) -> list[str]:
    def row(name: str, values: Mapping[str, float]) -> str:
        return f"{name:<28}" + "".join(f"{values[tree]:>18.2f}" for tree in trees)

    of = {tree: [run for run in runs if run.tree == tree] for tree in trees}
    rows = []
    for role in sorted({role for run in runs for role in run.peaks}):
        cpu = {tree: median(run.cpu.get(role, 0) for run in of[tree]) for tree in trees}
        peaks = {tree: median(run.peaks.get(role, 0) for run in of[tree]) / 2**20 for tree in trees}
        rows += [row(f"{role}: CPU, s", cpu), row(f"{role}: peak, MiB", peaks)]
    return rows


def _medians(runs: Sequence[Run]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, at in run.moments.items():
            found[name].append(at)
    return {name: median(values) for name, values in found.items()}


def document(runs: Sequence[Run]) -> dict[str, Any]:
    trees = list(dict.fromkeys(run.tree for run in runs))
    return {
        "format": "kbackup-bench-startup",
        "version": 1,
        "cores": os.cpu_count(),
        "medians": {tree: _medians([run for run in runs if run.tree == tree]) for tree in trees},
        "runs": [vars(run) for run in runs],
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.startup", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="how often; medians count (5)")
    parser.add_argument(
        "--against", type=Path, action="append", default=[], help="another checkout, in turns"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything that was measured to FILE"
    )
    parser.add_argument("more", nargs="*", help="after --: more of kbackup's arguments")
    options = parser.parse_args(arguments)
    trees = [*(tree.resolve() for tree in options.against), ROOT]
    runs: list[Run] = []
    with Servers("minio") as servers:
        topic = servers.fill(SIZE, RECORDS)
        for tree in trees:
            measure(servers, topic, tree, options.more)  # brings files into the system's cache; not counted
        for _ in range(options.repeat):
            for tree in trees:
                runs.append(measure(servers, topic, tree, options.more))
                print(f"{tree.name}: {runs[-1].moments.get('first records', 0):.2f} s", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(document(runs), indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
