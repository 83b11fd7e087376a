"""python -m scripts.bench: kbackup beside bare confluent-kafka loops on this machine, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

from kbackup.errors import KbackupError
from scripts.bench.measure import Bench, Result, What
from scripts.bench.report import document, table
from scripts.bench.servers import Servers
from scripts.dev.tools import MissingToolError

_GROWTH = 10
_EPILOG = "Also: --simulate, --small (each with --help of its own), python -m scripts.bench.grid"


_MODES = {"--simulate": "scripts.bench.simulation", "--small": "scripts.bench.small"}
"""Other things to measure, each with options of its own."""


def main(arguments: list[str]) -> int:
    for flag, module in _MODES.items():
        if flag in arguments:
            mode = import_module(module)
            return int(mode.main([argument for argument in arguments if argument != flag]))
    return _pairs(arguments)


def _pairs(arguments: list[str]) -> int:
    options = _options(arguments)
    results: list[Result] = []
    grown: list[Result] = []
    for size in options.sizes:
        results += _speed(options, size)
        _write(options, results, grown)  # what is measured stays when the rest is cut off
    if not options.no_growth:
        grown += _growth(options)
        _write(options, results, grown)
    print(table(results, grown))
    return 0


def _write(options: argparse.Namespace, results: list[Result], grown: list[Result]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(document(vars(options), results, grown), indent=1) + "\n")


def _speed(options: argparse.Namespace, size: int) -> list[Result]:
    """Every loop `repeat` times in turns, so that what else the machine does meets all of them."""
    results: list[Result] = []
    with Servers(options.store) as servers:
        _say(f"{size} B: writing {options.records:,} records")
        bench = Bench(servers, size, options.records, options.tasks)
        for number in range(options.repeat):
            for what in options.what:
                for processes in (options.tasks, 1):
                    results.append(_said(bench.bare(what, processes), number))
                results.append(_said(bench.kbackup(what), number))
    return results


def _growth(options: argparse.Namespace) -> list[Result]:
    """The same topic small and ten times as large, for its memory alone."""
    results: list[Result] = []
    large = options.grown
    for records in (large // _GROWTH, large):
        with Servers(options.store) as servers:
            _say(f"memory: writing {records:,} records of {options.growth_size} B")
            bench = Bench(servers, options.growth_size, records, options.tasks)
            results += [_said(bench.kbackup(what), 0) for what in options.what]
    return results


def _said(result: Result, number: int) -> Result:
    _say(
        f"  {number + 1}. {result.what} {result.loop} x{result.processes}: "
        f"{result.rate:,.0f} records/s, {result.seconds:.1f} s"
    )
    return result


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__, epilog=_EPILOG)
    add = parser.add_argument
    add("--records", type=int, help="records of a topic (2,000,000)")
    add("--sizes", type=_sizes, default=[140, 540, 1024], help="value sizes in bytes (140,540,1024)")
    add("--repeat", type=int, help="how often each loop runs; medians count (3)")
    add("--tasks", type=int, default=2, help="tasks at a time, and processes of the bare loop (2)")
    add("--only", choices=get_args(What), help="backup or restore alone")
    add("--store", choices=("minio", "file"), default="minio", help="where archives go (minio)")
    add("--grown", type=int, help="records of the grown topic, for memory (10,000,000)")
    add("--growth-size", type=int, default=540, help="its value size in bytes (540)")
    add("--no-growth", action="store_true", help="leave the memory part out")
    add("--quick", action="store_true", help="200,000 records, once each, grown to 2,000,000")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    options = parser.parse_args(arguments)
    records, repeat, grown = (200_000, 1, 2_000_000) if options.quick else (2_000_000, 3, 10_000_000)
    options.records, options.repeat = options.records or records, options.repeat or repeat
    options.grown = options.grown or grown
    options.what = [options.only] if options.only else list(get_args(What))
    return options


def _sizes(text: str) -> list[int]:
    sizes = [int(each) for each in text.split(",")]
    if min(sizes) < 128:
        raise argparse.ArgumentTypeError("128 bytes or more")
    return sizes


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
