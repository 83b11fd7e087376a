"""python -m scripts.bench.grid: one setting at a time around its default, on loopback and over a link with delay.

The link (scripts/bench/link.py) needs root and iproute2. Servers are at one end of it, what is measured
at the other.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from kbackup.errors import KbackupError
from scripts.bench.link import SERVERS, Link
from scripts.bench.measure import Bench
from scripts.bench.servers import Servers
from scripts.bench.text import grid
from scripts.dev.tools import MissingToolError

_ROOT = Path(__file__).parents[2]
_MIB = 1 << 20
End = Literal["loopback", "link"]


class Factor(NamedTuple):
    """A setting, what tries it, and the values beside its default (None: as kbackup has it). `kind` says whose it
    is: a Kafka client's property, an option of the job, or one of the store."""

    name: str
    kind: Literal["cluster", "options", "s3_options"]
    loops: tuple[str, ...]
    values: tuple[Any, ...]


_READING = ("bare kernel", "backup")
_FACTORS = (
    Factor("fetch.message.max.bytes", "cluster", _READING, (_MIB // 4, 4 * _MIB, 8 * _MIB)),
    Factor("queued.max.messages.kbytes", "cluster", _READING, (8 << 10, 16 << 10, 64 << 10)),
    Factor("queued.min.messages", "cluster", _READING, (10_000, 1_000_000)),
    Factor("fetch.queue.backoff.ms", "cluster", _READING, (1, 100, 1000)),
    Factor("fetch.wait.max.ms", "cluster", _READING, (10, 500)),
    Factor("socket.receive.buffer.bytes", "cluster", _READING, (4 * _MIB,)),
    Factor("part_size", "s3_options", ("bare upload", "backup"), (8 * _MIB, 32 * _MIB)),
    Factor("parts_in_flight", "s3_options", ("bare upload", "backup"), (1, 4, 8)),
    Factor("linger.ms", "cluster", ("restore",), (0, 20, 100)),
    Factor("batch.size", "cluster", ("restore",), (_MIB // 4, 4 * _MIB)),
    Factor("batch.num.messages", "cluster", ("restore",), (10_000, 1_000_000)),
    Factor("compression.type", "cluster", ("restore",), ("none", "zstd")),
    Factor("transaction_bytes", "options", ("restore",), (8 * _MIB, 128 * _MIB)),
)


@dataclass(frozen=True)
class Cell:
    """`rates` are records/s by round; `value` None is the default, measured right before the others."""

    end: End
    factor: str
    value: Any
    loop: str
    size: int
    rates: tuple[float, ...]


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options.clients is not None:
        options.json.write_text(json.dumps([asdict(cell) for cell in _measure("link", options)]))
        return 0
    cells: list[Cell] = []
    for end in options.ends:
        cells += _over_link(arguments, options) if end == "link" else _measure(end, options)
        _write(options, cells)
    print(table(cells))
    return 0


def _over_link(arguments: Sequence[str], options: argparse.Namespace) -> list[Cell]:
    """This script again at the servers' end of a link, which this process carries."""
    with tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder, Link(options.delay / 1000) as link:
        out = Path(folder) / "cells.json"
        inside = ("--clients", json.dumps(link.at_clients), "--json", str(out))
        command = [*link.at_servers, sys.executable, "-m", "scripts.bench.grid", *arguments, *inside]
        if subprocess.run(command, cwd=_ROOT, check=False).returncode:
            raise SystemExit("error: the part over the link failed: see above")
        return [Cell(**{**cell, "rates": tuple(cell["rates"])}) for cell in json.loads(out.read_text())]


def _measure(end: End, options: argparse.Namespace) -> list[Cell]:
    within = tuple(json.loads(options.clients)) if options.clients else ()
    cells: list[Cell] = []
    with Servers("minio", SERVERS if within else "127.0.0.1") as servers:
        _say(f"{end}: writing {options.records:,} records of {options.size} B")
        bench = Bench(servers, options.size, options.records, options.tasks, within=within)
        for factor in _FACTORS:
            if options.factors and factor.name not in options.factors:
                continue
            for loop in factor.loops:
                cells += _cells(bench, end, factor, loop, options)
    return cells


def _cells(bench: Bench, end: End, factor: Factor, loop: str, options: argparse.Namespace) -> Iterator[Cell]:
    values = (None, *factor.values)
    rates: dict[Any, list[float]] = {value: [] for value in values}
    for _ in range(options.repeat):
        for value in values:
            rates[value].append(bench.run(loop, _extra(factor, value)).rate)
            _say(f"  {end}: {factor.name}={value}, {loop}: {rates[value][-1]:,.0f} records/s")
    for value in values:
        yield Cell(end, factor.name, value, loop, options.size, tuple(rates[value]))


def _extra(factor: Factor, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if factor.kind != "cluster":
        return {factor.kind: {factor.name: value}}
    return {"cluster": {factor.name: str(value)}}


def table(cells: Sequence[Cell]) -> str:
    """Medians, and what each value makes of the default's rate in the same round."""
    base = {(c.end, c.factor, c.loop): c.rates for c in cells if c.value is None}
    rows = [
        (
            *(cell.end, cell.factor, "default" if cell.value is None else f"{cell.value}", cell.loop),
            f"{median(cell.rates):,.0f}",
            f"{median(a / b for a, b in zip(cell.rates, base[cell.end, cell.factor, cell.loop], strict=True)):.2f}",
        )
        for cell in cells
    ]
    return "\n".join(grid(("end", "setting", "value", "loop", "records/s", "to default"), rows))


def _write(options: argparse.Namespace, cells: Sequence[Cell]) -> None:
    if options.json is not None:
        head = {"format": "kbackup-bench-grid", "version": 1, "delay ms": options.delay}
        options.json.write_text(json.dumps({**head, "cells": [asdict(c) for c in cells]}, indent=1) + "\n")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.grid", description=__doc__)
    add = parser.add_argument
    add("--ends", type=_ends, default=["loopback", "link"], help="loopback, link or both (loopback,link)")
    add("--delay", type=float, default=30.0, help="of the link, there and back, in ms (30)")
    add("--records", type=int, default=1_000_000, help="of the topic (1,000,000)")
    add("--size", type=int, default=540, help="bytes of a value (540)")
    add("--repeat", type=int, default=3, help="rounds (3)")
    add("--tasks", type=int, default=2, help="tasks at a time (2)")
    add(
        "--factors", type=lambda text: text.split(","), help="some of: " + ", ".join(f.name for f in _FACTORS)
    )
    add("--json", type=Path, metavar="FILE", help="write all cells to FILE")
    add("--clients", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _ends(text: str) -> list[str]:
    ends = text.split(",")
    if set(ends) - {"loopback", "link"}:
        raise argparse.ArgumentTypeError("loopback, link or both")
    return ends


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers, removes the link
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
