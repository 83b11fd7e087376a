"""`python -m scripts.soak.mutants OTHER [--sample N]`: change one operator of the code at a time, and see whether a
unit test fails: in this checkout and in another one, which has its own .venv.

Both get the same changes: of lines that stand once in either. A change is judged by the unit tests of its package, so
that a score tells of two checkouts how they compare, and of one alone that at least as much is held.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]
_MINUTES = 6  # for the tests of a package; a change that makes a loop endless is found too
_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
    ast.Add: (" + ", " - "),
    ast.Sub: (" - ", " + "),
}


class Change(NamedTuple):
    """A line (stripped), and what it becomes."""

    line: str
    becomes: str


def changes(tree: Path) -> dict[Change, tuple[Path, int]]:
    """Return where in a checkout the lines stand that can be changed; lines that stand twice are left out."""
    found: dict[Change, tuple[Path, int]] = {}
    count: Counter[str] = Counter()
    for path in sorted(tree.glob("kbackup/**/*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        count.update(stripped := [line.strip() for line in lines])
        for number, swap in _swaps(ast.parse(text)):
            line = stripped[number - 1]
            if line.count(swap[0]) == 1 and '"' not in line:
                found[Change(line, line.replace(*swap))] = (path, number)
    return {change: place for change, place in found.items() if count[change.line] == 1}


def _swaps(tree: ast.AST) -> Iterator[tuple[int, tuple[str, str]]]:
    for node in ast.walk(tree):
        operators: Sequence[ast.AST] = ()
        if isinstance(node, ast.Compare):
            operators = node.ops
        elif isinstance(node, ast.BoolOp | ast.BinOp):
            operators = [node.op]
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            yield from ((node.lineno, _SWAPS[type(each)]) for each in operators if type(each) in _SWAPS)


def is_noticed(tree: Path, change: Change, place: tuple[Path, int]) -> bool:
    """Return whether a unit test of the package fails with the change, which is undone."""
    path, number = place
    before = path.read_text("utf-8")
    lines = before.splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(change.line, change.becomes)
    path.write_text("".join(lines), "utf-8")
    try:
        command = [".venv/bin/python", "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", _tests(tree, path)]
        done = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_MINUTES * 60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(before, "utf-8")
    return done.returncode != 0


def _tests(tree: Path, path: Path) -> str:
    """Return the unit tests of a module's subject: the file of its name, or the nearest folder around it."""
    subject = tree / "tests" / "unit" / path.relative_to(tree / "kbackup").with_suffix("")
    while True:
        if (file := subject.with_name(f"test_{subject.name}.py")).exists():
            return str(file.relative_to(tree))
        if any(subject.glob("test_*.py")):
            return str(subject.relative_to(tree))
        subject = subject.parent


def _score(tree: Path, chosen: Sequence[Change]) -> list[bool]:
    places = changes(tree)
    return [is_noticed(tree, change, places[change]) for change in chosen]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.mutants", description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    trees = [options.other.resolve(), _ROOT]
    both = sorted(changes(trees[0]).keys() & changes(trees[1]).keys())
    chosen = random.Random(options.seed).sample(both, options.sample)
    with ThreadPoolExecutor() as pool:
        noticed = list(pool.map(lambda tree: _score(tree, chosen), trees))
    for change, *seen in zip(chosen, *noticed, strict=True):
        print(*("noticed" if each else "MISSED " for each in seen), f"{change.line}  ->  {change.becomes}")
    for tree, seen in zip(trees, noticed, strict=True):
        print(f"{tree.name}: {sum(seen)} of {len(seen)}")


if __name__ == "__main__":
    main(sys.argv[1:])
