"""`python -m scripts.soak.mutants [PACKAGE or MODULE ...]`: change one operator of the code at a time, and see whether
a unit test fails that imports its module, in the sample that `make quick` runs.

A changed line that no test notices is a hole, or a line that could as well be missing. Everything runs in a copy of the
tree. The same `--seed` takes the same lines, as long as they stand in the code: so two versions of the tests compare.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("archive", "jobs", "formats", "kafka")
_CPU_SECONDS = 240  # for the tests of a module; a change that makes a loop endless is found by that
_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: (" < ", " <= "),
    ast.LtE: (" <= ", " < "),
    ast.Gt: (" > ", " >= "),
    ast.GtE: (" >= ", " > "),
    ast.Eq: (" == ", " != "),
    ast.NotEq: (" != ", " == "),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
    ast.Add: (" + ", " - "),
    ast.Sub: (" - ", " + "),
}


class Mutant(NamedTuple):
    """A line of a file (relative to the tree, stripped), and what it becomes."""

    file: str
    line: str
    becomes: str


def mutants(tree: Path, packages: Sequence[str]) -> list[Mutant]:
    """Return all changes of lines that stand once in their file. A package may be a single module, without its .py."""
    found: list[Mutant] = []
    for package in packages:
        folder = tree / "kbackup" / package
        module = folder.with_suffix(".py")
        files = [module] if module.is_file() else sorted(folder.rglob("*.py"))
        for file in files:
            found += _mutants_of(file, str(file.relative_to(tree)))
    return found


def _mutants_of(file: Path, name: str) -> Iterator[Mutant]:
    text = file.read_text("utf-8")
    lines = [line.strip() for line in text.splitlines()]
    times = Counter(lines)
    for number, (operator, other) in _operators(ast.parse(text)):
        line = lines[number - 1]
        if times[line] == 1 and line.count(operator) == 1 and '"' not in line:
            yield Mutant(name, line, line.replace(operator, other))


def _operators(tree: ast.AST) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the line of each operator that can be changed, with its text and that of the other one."""
    for node in ast.walk(tree):
        operators: Sequence[ast.AST] = ()
        if isinstance(node, ast.Compare):
            operators = node.ops
        elif isinstance(node, ast.BoolOp | ast.BinOp):
            operators = [node.op]
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            yield from ((node.lineno, _SWAPS[type(each)]) for each in operators if type(each) in _SWAPS)


def tests_of(tree: Path, file: str) -> list[str]:
    """Return the unit tests that import a module; without any, the nearest folder with tests around it."""
    module = Path(file).with_suffix("")
    package, name = ".".join(module.parent.parts), module.name
    imports = re.compile(
        rf"from {re.escape(package)}\.{name} import|from {re.escape(package)} import .*\b{name}\b"
        rf"|\b{re.escape(package)}\.{name}\b"
    )
    unit = tree / "tests" / "unit"
    importing = [test for test in sorted(unit.rglob("test_*.py")) if imports.search(test.read_text("utf-8"))]
    folder = unit / module.relative_to("kbackup")
    while not importing and not any(folder.glob("test_*.py")):
        folder = folder.parent
    return [str(test.relative_to(tree)) for test in importing or [folder]]


def _limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))


def is_noticed(tree: Path, mutant: Mutant) -> bool:
    """Return whether a test fails with the change, which is undone."""
    path = tree / mutant.file
    before = path.read_text("utf-8")
    path.write_text(before.replace(mutant.line, mutant.becomes), "utf-8")
    pytest = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "--sample", "-p", "no:cacheprovider", "-p", "no:xdist"]
    try:
        done = subprocess.run(
            [*pytest, *tests_of(tree, mutant.file)],
            cwd=tree,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_limit_cpu,
            check=False,
        )
    finally:
        path.write_text(before, "utf-8")
    return done.returncode != 0


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.mutants", description=__doc__)
    parser.add_argument("package", nargs="*", default=_PACKAGES, help="packages or modules of kbackup")
    parser.add_argument("--sample", type=int, default=40, help="how many changes are tried (40)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    every = mutants(_ROOT, options.package)
    # A mutant's place in the order follows from itself alone: lines that come or go move no other one.
    every.sort(key=lambda mutant: random.Random(f"{options.seed} {mutant}").random())
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(_ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache", "build"))
        for mutant in every[: options.sample]:
            noticed = is_noticed(tree, mutant)
            missed += not noticed
            print(
                "noticed" if noticed else "MISSED ", f"{mutant.file}: {mutant.line}  ->  {mutant.becomes}", flush=True
            )
    print(f"{options.sample - missed} of {options.sample} are noticed")


if __name__ == "__main__":
    main(sys.argv[1:])
