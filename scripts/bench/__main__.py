"""python -m scripts.bench: kbackup beside bare loops on this machine, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from importlib import import_module
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.bench.measure import LOOPS, Bench, Result
from scripts.bench.report import Measured, document, table
from scripts.bench.servers import Servers
from scripts.dev.tools import MissingToolError

_GROWTH = 10
_GROWTH_SIZE = 540
_MODES = {
    "--simulate": "scripts.bench.simulation",
    "--small": "scripts.bench.small",
    "--quiet": "scripts.bench.quiet",
    "--mirror": "scripts.bench.mirror",
    "--latency": "scripts.bench.latency",
}
"""Other things to measure, each with options of its own."""
_EPILOG = (
    "Also: --simulate, --small, --quiet, --mirror, --latency (each with --help of its own), "
    "python -m scripts.bench.grid"
)
_JOBS = ("backup", "restore")

Cases = dict[int, int]
"""Records by value size in bytes."""

_FULL: Cases = {140: 8_000_000, 540: 1_000_000, 1024: 4_000_000}
_QUICK: Cases = {140: 400_000}
_LARGE: Cases = {1_000_000: 400, 20_000_000: 24}


def main(arguments: list[str]) -> int:
    for flag, module in _MODES.items():
        if flag in arguments:
            mode = import_module(module)
            return int(mode.main([argument for argument in arguments if argument != flag]))
    return _pairs(_options(arguments))


def _pairs(options: argparse.Namespace) -> int:
    measured = Measured()
    for size, records in options.cases.items():
        _speed(options, size, records, measured)
    if options.grown:
        _growth(options, measured)
    for size, records in options.large.items():
        _large(options, size, records, measured)
    print(table(measured))
    return 0


def _write(options: argparse.Namespace, measured: Measured) -> None:
    """Write the results after each loop, so that an interrupted benchmark leaves those before."""
    if options.json is not None:
        options.json.write_text(json.dumps(document(vars(options), measured), indent=1) + "\n")


def _speed(options: argparse.Namespace, size: int, records: int, measured: Measured) -> None:
    """Every loop `repeat` times in turns, so that what else the machine does meets all of them."""
    with Servers(options.store) as servers:
        _say(f"{size} B: writing {records:,} records")
        bench = Bench(servers, size, records, options.tasks)
        for number in range(options.repeat):
            for name in options.loops:
                measured.speed.append(_report(bench.run(name), number))
                _write(options, measured)


def _growth(options: argparse.Namespace, measured: Measured) -> None:
    """Measure a topic and one ten times as large."""
    for records in (options.grown // _GROWTH, options.grown):
        with Servers(options.store) as servers:
            _say(f"growth: writing {records:,} records of {_GROWTH_SIZE} B")
            bench = Bench(servers, _GROWTH_SIZE, records, options.tasks)
            for number in range(min(3, options.repeat)):
                measured.grown += [
                    _report(bench.run(name), number) for name in _JOBS if name in options.loops
                ]
                _write(options, measured)


def _large(options: argparse.Namespace, size: int, records: int, measured: Measured) -> None:
    """Measure large records once, for their memory."""
    with Servers(options.store) as servers:
        _say(f"large: writing {records:,} records of {size:,} B")
        bench = Bench(servers, size, records, options.tasks, options.tasks)
        measured.large += [_report(bench.run(name), 0) for name in _JOBS if name in options.loops]
        _write(options, measured)


def _report(result: Result, number: int) -> Result:
    _say(f"  {number + 1}. {result.loop}: {result.rate:,.0f} records/s, {result.seconds:.1f} s")
    return result


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__, epilog=_EPILOG)
    add = parser.add_argument
    add("--cases", type=_cases, help="value sizes and records (140:8000000,540:1000000,1024:4000000)")
    add("--repeat", type=int, help="how often each loop runs; medians count (5)")
    add("--tasks", type=int, default=2, help="tasks at a time, and processes of the bare loops (2)")
    add(
        "--only",
        type=_loops,
        dest="loops",
        metavar="LOOPS",
        help=f"some of these, joined by +: {'; '.join(LOOPS)}",
    )
    add("--store", choices=("minio", "file"), default="minio", help="where archives go (minio)")
    add("--grown", type=int, help="records of the grown topic, 0 for none (10,000,000)")
    add("--large", type=_cases, help="large records, '' for none (1000000:400,20000000:24)")
    add("--quick", action="store_true", help="400,000 records of 140 B once, large records: a look")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    options = parser.parse_args(arguments)
    cases, repeat, grown, large = (
        (_QUICK, 1, 0, {1_000_000: 100}) if options.quick else (_FULL, 5, 10_000_000, _LARGE)
    )
    options.cases = cases if options.cases is None else options.cases
    options.repeat = options.repeat or repeat
    options.grown = grown if options.grown is None else options.grown
    options.large = large if options.large is None else options.large
    options.loops = options.loops or list(LOOPS)
    return options


def _cases(text: str) -> Cases:
    measured = {
        int(size): int(records) for size, _, records in (e.partition(":") for e in text.split(",") if e)
    }
    if measured and min(measured) < 128:
        raise argparse.ArgumentTypeError("values of 128 bytes or more")
    return measured


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
