"""python -m scripts.bench.symbols: the CPU that Spark's workers take for a record, by thread, library and symbol.

Runs a loop of `scripts.bench` beside `perf record`, which needs root and Linux's perf. Figures are microseconds a
record, from the first to the last sample of librdkafka's threads in each worker.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kbackup.errors import KbackupError
from scripts.bench.measure import LOOPS, Bench
from scripts.bench.servers import Servers
from scripts.bench.text import grid
from scripts.dev.tools import MissingToolError

_FREQUENCY = 999  # samples a second and core
_CLIENT = "rdk:broker"
"""Names of librdkafka's threads begin with it; brokers are numbered."""
_SHARE = 0.1
"""Processes with so much of all samples of librdkafka's threads are workers; the driver has a few."""
_SAMPLE = re.compile(r"\s*(.+?)\s+(\d+)/\d+\s+([\d.]+):\s+[0-9a-f]+\s+(.*?)\s+\((.*)\)\s*")


class Sample(NamedTuple):
    """The work of one core at `time` (s)."""

    pid: int
    thread: str
    time: float
    library: str
    symbol: str


def parse(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples that `perf script -F comm,pid,tid,time,ip,sym,dso` prints."""
    for line in lines:
        if (found := _SAMPLE.fullmatch(line)) is not None:
            thread, pid, time, symbol, library = found.groups()
            name = symbol.rsplit("+0x", 1)[0]
            yield Sample(int(pid), thread, float(time), library.rsplit("/", 1)[-1], name)


def of_workers(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of the workers while they read or write records."""
    times: dict[int, list[float]] = {}
    for sample in samples:
        if sample.thread.startswith(_CLIENT):
            times.setdefault(sample.pid, []).append(sample.time)
    least = _SHARE * sum(map(len, times.values()))
    spans = {pid: (min(some), max(some)) for pid, some in times.items() if len(some) >= least}
    return [s for s in samples if s.pid in spans and spans[s.pid][0] <= s.time <= spans[s.pid][1]]


def report(samples: Sequence[Sample], records: int, top: int) -> str:
    """Tables of threads, libraries and the first `top` symbols."""
    scale = 1e6 / _FREQUENCY / records
    lines = [f"{len(samples) * scale:.2f} us a record"]
    for head, counts in (
        ("thread", Counter(_thread(s) for s in samples)),
        ("library", Counter(s.library for s in samples)),
        ("symbol", Counter(f"{s.symbol} ({s.library})" for s in samples)),
    ):
        rows = [(f"{count * scale:.3f}", name) for name, count in counts.most_common(top)]
        lines += ["", *(line.rstrip() for line in grid(("us a record", head), rows))]
    return "\n".join(lines)


def _thread(sample: Sample) -> str:
    return "librdkafka" if sample.thread.startswith("rdk:") else "Python"


@contextmanager
def _recorded(path: Path) -> Iterator[None]:
    """Write the samples of all cores to `path` meanwhile."""
    perf = shutil.which("perf")
    if perf is None:
        raise MissingToolError("perf: not found; install Debian's package linux-perf")
    argv = [perf, "record", "--quiet", "--all-cpus", "--freq", str(_FREQUENCY), "--output", str(path)]
    recorder = subprocess.Popen(argv)
    try:
        yield
    finally:
        recorder.send_signal(signal.SIGINT)
        recorder.wait()


def measure(loop: str, size: int, records: int, top: int) -> str:
    with Servers("minio") as servers, tempfile.TemporaryDirectory() as folder:
        bench = Bench(servers, size, records, 2)
        if archive := LOOPS[loop].archive:
            bench.run(archive)
            bench.run(loop)  # the broker compiles what a producer needs
        path = Path(folder) / "perf.data"
        with _recorded(path):
            rate = bench.run(loop).rate
        argv = ["perf", "script", "--input", str(path), "--fields", "comm,pid,tid,time,ip,sym,dso"]
        printed = subprocess.run(argv, capture_output=True, check=True).stdout.decode("utf-8", "replace")
    samples = of_workers(list(parse(printed.splitlines())))
    return f"{loop}, {records:,} records of {size} B, {rate:,.0f} records/s\n{report(samples, records, top)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.symbols", description=__doc__)
    parser.add_argument("--loop", choices=[name for name in LOOPS if LOOPS[name].is_job], default="backup")
    parser.add_argument("--size", type=int, default=540, help="bytes of a value (540)")
    parser.add_argument("--records", type=int, default=4_000_000, help="of the topic (4,000,000)")
    parser.add_argument("--top", type=int, default=30, help="rows of a table (30)")
    options = parser.parse_args(arguments)
    print(measure(options.loop, options.size, options.records, options.top))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
