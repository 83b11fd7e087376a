"""python -m scripts.bench.whole: whole commands from start to exit, kbackup's and other tools' in turns.

Each tool runs its commands against the same broker and S3 server on this machine. A tool is a TOML file and a program:
see `scripts/bench/peers`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.bench.servers import Servers
from scripts.bench.whole.measure import WORKS, Round, WholeBench
from scripts.bench.whole.table import document, table
from scripts.bench.whole.tool import Tool, kbackup
from scripts.dev.tools import MissingToolError

_CASES = "540:1000000,540:4000000,540:16000000,140:8000000"

_WARM_RECORDS = 4_000
"""Records of the first round, which brings programs into the system's caches and does not count."""


def main(arguments: list[str]) -> int:
    """Measure the rounds that the arguments ask for, and print the table."""
    options = _options(arguments)
    rounds: list[Round] = []
    for case in options.cases.split(","):
        size, _, records = case.partition(":")
        with Servers("minio") as servers:
            warm = WholeBench(servers, int(size), _WARM_RECORDS, _tools(options)) if not rounds else None
            for each in warm.rounds(1, options.works) if warm else ():
                print(f"not counted: {each.tool} {each.wall:.1f} s", file=sys.stderr, flush=True)
            bench = WholeBench(servers, int(size), int(records), _tools(options))
            for each in bench.rounds(options.repeat, options.works):
                rounds.append(each)
                startup = f", start-up {each.startup:.1f} s" if each.startup is not None else ""
                line = f"{each.work} {size} B {each.tool}: {each.rate:,.0f} records/s, {each.wall:.1f} s{startup}"
                print(line, file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps(document(rounds), indent=1) + "\n")
    print(table(rounds))
    return 0


def _tools(options: argparse.Namespace) -> list[tuple[Tool, str]]:
    tools = [
        (kbackup(f"kbackup {value}" if value else "kbackup", more=_settings(value)), "")
        for value in options.set
    ]
    tools += [(kbackup(tree.name, tree.resolve()), "") for tree in options.against]
    return [*tools, *((Tool.load(Path(file)), program) for file, program in options.peer)]


def _settings(value: str) -> dict[str, str]:
    """Return the environment variables of settings such as `KBACKUP_BACKUP_COMPRESSION=zstd`, joined by commas."""
    return dict(each.split("=", 1) for each in value.split(",") if each)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.whole", description=__doc__)
    add = parser.add_argument
    add("--cases", default=_CASES, help=f"value sizes and records ({_CASES})")
    add("--repeat", type=int, default=3, help="rounds (3)")
    add("--works", type=lambda text: tuple(text.split(",")), default=WORKS, help="backup,restore")
    add(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="kbackup once more, with these variables; '' for none",
    )
    add("--against", type=Path, action="append", default=[], help="kbackup of another checkout")
    add("--peer", nargs=2, action="append", default=[], metavar=("FILE", "PROGRAM"), help="another tool")
    add("--json", type=Path, metavar="FILE", help="write all rounds to FILE")
    options = parser.parse_args(arguments)
    options.set = options.set or [""]
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
