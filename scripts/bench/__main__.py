"""python -m scripts.bench: kbackup beside bare loops on this machine, as a table and as JSON.

The loops run in turns, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from kbackup.config.models import Backup
from kbackup.errors import KbackupError
from scripts.bench.loops import Child, Spec, children
from scripts.bench.processes import Tree
from scripts.bench.servers import PARTITIONS, Servers, encoded_bytes, grid
from scripts.dev.tools import MissingToolError

Seconds = dict[str, float]
_CASES = "140:8000000,540:1000000,1024:4000000"


class Loop(NamedTuple):
    """`work` is a job of kbackup (with `options`), or a bare loop. `archive` is the loop whose archive is restored;
    `change` is what the workers do otherwise (`loops.CHANGES`): such loops run where `--only` names them."""

    work: str
    options: Mapping[str, Any] = {}
    archive: str = ""
    change: str = ""


LOOPS = {
    "bare consume": Loop("consume"),
    "bare kernel": Loop("kernel"),
    "bare upload": Loop("upload"),
    "backup": Loop("backup", {"compression": "none"}),
    "backup zstd": Loop("backup", {"compression": "zstd"}),
    "backup zstd, nothing counted": Loop("backup", {"compression": "zstd"}, change="nothing counted"),
    "bare produce": Loop("produce"),
    "restore": Loop("restore", archive="backup"),
    "restore zstd": Loop("restore", archive="backup zstd"),
    "restore zstd, ids mapped": Loop("restore", archive="backup zstd", change="ids mapped"),
    "restore, no transactions": Loop("restore", {"transactions": False}, "backup"),
}
"""In the order of a round: a restore takes the archive of the last backup of its kind."""


@dataclass(frozen=True)
class Result:
    """`seconds` is the wall time of the data phase; `cpu` its CPU seconds and `peak` the most bytes of one process
    in its whole life, by role; `steps` are kbackup's own times by step, `sizes` its bytes."""

    loop: str
    size: int
    records: int
    seconds: float
    cpu: Seconds
    peak: dict[str, int]
    steps: Seconds = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds


class Bench:
    """The servers and the topic of `records` records for one size of records, written once."""

    def __init__(self, servers: Servers, size: int, records: int, tasks: int) -> None:
        self._servers, self._size, self._tasks = servers, size, tasks
        self._count = max(1, records // PARTITIONS)
        self._topic = servers.fill(size, self._count)
        self._archives: dict[str, dict[str, Any]] = {}

    def run(self, name: str) -> Result:
        loop = LOOPS[name]
        return self._job(name, loop) if loop.work in {"backup", "restore"} else self._bare(name, loop)

    def _bare(self, name: str, loop: Loop) -> Result:
        makes_topic = loop.work == "produce"
        topic = self._servers.new_topic(size=self._size) if makes_topic else self._topic
        where = self._servers.new_archive()
        specs = [self._spec(number, topic) | where for number in range(self._tasks)]
        with children(specs, loop.work) as running:
            before = self._servers.cpu()
            for child in running:
                child.go()
            answers = [child.hear() for child in running]
            servers = _difference(self._servers.cpu(), before)
        if makes_topic:
            self._servers.delete_topic(topic)
        self._servers.delete_archive(where)
        seconds = max(words["ended"] for words in answers) - min(words["began"] for words in answers)
        cpu = {"worker": sum(words["cpu"] for words in answers), **servers}
        peak = {"worker": max(words["peak"] for words in answers)}
        return Result(name, self._size, sum(words["records"] for words in answers), seconds, cpu, peak)

    def _spec(self, number: int, topic: str) -> Spec:
        """Of process `number`: its partitions, and what its uploads amount to."""
        here = list(range(number, PARTITIONS, self._tasks))
        size = self._count * encoded_bytes(self._size)
        segments = -(-size // Backup().segment_bytes)
        return {
            "bootstrap": self._servers.broker.bootstrap,
            "topic": topic,
            "partitions": here,
            "size": self._size,
            "count": self._count,
            "records": self._count * len(here),
            "prefix": f"process-{number}",
            "segments": segments * len(here),
            "segment_bytes": size // segments,
            "index_bytes": 24 * self._count // segments,
        }

    def _job(self, name: str, loop: Loop) -> Result:
        spec: Spec = {
            "bootstrap": self._servers.broker.bootstrap,
            "topic": self._topic,
            "target": self._servers.unused_name(),
            "tasks": self._tasks,
            "options": dict(loop.options),
            "change": loop.change,
        }
        where = self._archive_for(name)
        with children([spec | where], loop.work) as (child,), Tree(child.pid) as tree:
            child.go()
            cpu, words = self._follow(child, tree)
        if loop.work == "restore":
            self._servers.delete_topic(spec["target"])
        records = self._count * PARTITIONS
        steps: Seconds = words["seconds"]
        return Result(name, self._size, records, steps["run"], cpu, dict(tree.peaks), steps, words["sizes"])

    def _archive_for(self, name: str) -> dict[str, Any]:
        """A new one for a backup, kept until the next of its kind. A restore takes that, and makes it where there is
        none."""
        if LOOPS[name].work == "backup":
            if name in self._archives:
                self._servers.delete_archive(self._archives[name])
            self._archives[name] = self._servers.new_archive()
            return self._archives[name]
        if LOOPS[name].archive not in self._archives:
            self.run(LOOPS[name].archive)
        return self._archives[LOOPS[name].archive]

    def _follow(self, child: Child, tree: Tree) -> tuple[Seconds, dict[str, Any]]:
        """The CPU that tree and servers used in step 'run', and the child's last words."""
        marks: list[Seconds] = []
        words: dict[str, Any] = {"phase": None}
        while words["phase"] != "":
            words = child.hear()
            if words["phase"] == "run" or len(marks) == 1:
                marks.append({**tree.cpu(), **self._servers.cpu()})
        return _difference(marks[1], marks[0]), words


def _difference(after: Seconds, before: Seconds) -> Seconds:
    return {name: round(used - before.get(name, 0.0), 2) for name, used in after.items()}


_NOTE = """\
Medians. Data phase: kbackup's step 'run' with Spark and its Python workers started before; the bare loops from their
first call to their last record. CPU in µs a record, of all processes of a kind; memory: the high-water mark of the
largest one, in MiB.
"""
_CPU = ("worker", "jvm", "driver", "broker", "minio")
_MEMORY = ("worker", "jvm", "driver")
_HEAD = ("value", "loop", "s", "records/s", "MB/s", "stored", "CPU", *_CPU[1:], "memory", *_MEMORY[1:])


def table(results: Sequence[Result]) -> str:
    """Return one row per size and loop."""
    groups: dict[tuple[int, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.size, result.loop), []).append(result)
    return "\n".join([_NOTE, *grid(_HEAD, [list(_cells(rows)) for rows in groups.values()])])


def _cells(rows: Sequence[Result]) -> Iterator[str]:
    first, rate = rows[0], median(r.rate for r in rows)
    yield from (f"{first.size} B", first.loop, f"{median(r.seconds for r in rows):.1f}", f"{rate:,.0f}")
    yield f"{rate * encoded_bytes(first.size) / 1e6:.0f}"
    yield f"{first.sizes['stored'] / first.sizes['bytes']:.2f}" if "stored" in first.sizes else ""
    for role in _CPU:
        yield f"{median(r.cpu[role] / r.records for r in rows) * 1e6:.2f}" if role in first.cpu else ""
    for role in _MEMORY:
        yield f"{max(r.peak[role] for r in rows) / 2**20:.0f}" if role in first.peak else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    add, usual = parser.add_argument, [name for name, loop in LOOPS.items() if not loop.change]
    add("--cases", type=_cases, default=_cases(_CASES), help=f"value sizes and records ({_CASES})")
    add("--repeat", type=int, default=5, help="how often each loop runs; medians count (5)")
    add("--tasks", type=int, default=2, help="tasks at a time, and processes of the bare loops (2)")
    add("--only", type=_loops, dest="loops", default=usual, metavar="LOOPS", help=f"of: {'+'.join(LOOPS)}")
    add("--store", choices=("minio", "file"), default="minio", help="where archives go (minio)")
    add("--json", type=Path, metavar="FILE", help="write all results to FILE")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    for size, records in options.cases.items():
        with Servers(options.store) as servers:
            print(f"{size} B: writing {records:,} records", file=sys.stderr, flush=True)
            bench = Bench(servers, size, records, options.tasks)
            for number in range(options.repeat):
                for name in options.loops:
                    results.append(bench.run(name))
                    line = f"{name}: {results[-1].rate:,.0f} records/s, {results[-1].seconds:.1f} s"
                    print(f"  {number + 1}. {line}", file=sys.stderr, flush=True)
                    if options.json is not None:
                        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    print(table(results))
    return 0


def _cases(text: str) -> dict[int, int]:
    cases = {int(size): int(count) for size, _, count in (case.partition(":") for case in text.split(","))}
    if min(cases) < 128:
        raise argparse.ArgumentTypeError("values of 128 bytes or more")
    return cases


def _loops(text: str) -> list[str]:
    """By name, in the order of a round."""
    named = {each.strip() for each in text.split("+")}
    if unknown := named - set(LOOPS):
        raise argparse.ArgumentTypeError(f"no loop {', '.join(sorted(unknown))}")
    return [name for name in LOOPS if name in named]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
