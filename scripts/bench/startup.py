"""python -m scripts.bench.startup: the start of a run. `kbackup backup` of a small topic from the command to its exit,
by step, against a real broker and S3 server on this machine; `--against` compares another checkout, in turns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scripts.bench.servers import Servers, grid
from scripts.bench.whole import Round, WholeBench, kbackup, table

ROOT = Path(__file__).parents[2]
_RECORDS, _SIZE = 4_000, 140


def steps_table(rounds: Sequence[Round]) -> str:
    """Return the medians of the wall time and of each step, one column per checkout."""
    tools = list(dict.fromkeys(each.tool for each in rounds))
    of = {tool: [each for each in rounds if each.tool == tool] for tool in tools}
    names = list(dict.fromkeys(name for each in rounds for name in each.steps))
    rows = [["to the exit", *(f"{median(r.wall for r in of[tool]):.2f}" for tool in tools)]]
    rows += [["before and after the steps", *(f"{median(_outside(r) for r in of[tool]):.2f}" for tool in tools)]]
    rows += [[name, *(f"{median(r.steps.get(name, 0) for r in of[tool]):.2f}" for tool in tools)] for name in names]
    return "\n".join(grid(("s", *tools), rows))


def _outside(one: Round) -> float:
    return one.wall - sum(one.steps.values())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.startup", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="how often; medians count (5)")
    parser.add_argument("--against", type=Path, action="append", default=[], help="another checkout")
    options = parser.parse_args(arguments)
    tools = [(kbackup(tree.name, tree), "") for tree in (*(t.resolve() for t in options.against), ROOT)]
    with Servers() as servers:
        bench = WholeBench(servers, _SIZE, _RECORDS, tools)
        list(bench.rounds(1, ("backup",)))  # brings files into the system's caches; not counted
        rounds = list(bench.rounds(options.repeat, ("backup",)))
    print(steps_table(rounds), table(rounds), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
