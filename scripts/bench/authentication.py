"""python -m scripts.bench.authentication: what it costs the JVM to authenticate who connects to a local session.

A session of its own each time, with and without in turns; CPU seconds of its JVM, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from kbackup.spark.session import Starting
from kbackup.spark.tasks import ProgressSender, run_tasks

MOMENTS = ("session ready", "first tasks done", "tasks of 64 MB done")
_WITHOUT = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}


def measure(conf: dict[str, str]) -> list[float]:
    """CPU seconds of the JVM up to each of `MOMENTS`."""

    def work(task: bytes, progress: ProgressSender) -> Iterator[int]:
        yield len(task)

    starting = Starting("local[2]", conf, 1)
    session = starting()
    jvm = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # there is one, of a JVM that we started
    seconds = [_cpu(jvm)]
    for size, count in ((1, 2), (1_000_000, 64)):
        run_tasks(session, [b"x" * size] * count, work)
        seconds.append(_cpu(jvm))
    starting.leave()
    return seconds


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    runs: dict[str, list[list[float]]] = {"with": [], "without": []}
    for _ in range(pairs):
        for name, conf in (("with", {}), ("without", _WITHOUT)):
            code = f"from scripts.bench.authentication import measure; print(*measure({conf!r}))"
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append([float(text) for text in done.stdout.split()])
    for name, measured in runs.items():
        told = zip(MOMENTS, zip(*measured, strict=True), strict=True)
        print(f"{name}: " + ", ".join(f"{moment} {median(values):.1f} s" for moment, values in told))


if __name__ == "__main__":
    main()
