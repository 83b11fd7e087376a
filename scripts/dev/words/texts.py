"""Check the first words of docstrings, and the sizes of modules and functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from scripts.dev.words.names import Function
from scripts.dev.words.problem import Problem
from scripts.dev.words.vocabulary import OPENINGS

MODULE_LINES = 250
FUNCTION_LINES = 60


def check_docstring(path: PurePosixPath, node: ast.Expr) -> Iterator[Problem]:
    """Check a text that stands as a statement: of a module, class or function, or below an attribute or constant."""
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        opening = node.value.value.partition(" ")[0].rstrip(",:.")
        if opening in OPENINGS:
            hint = "begin with the verb or the noun of what it documents"
            yield Problem(path, node.lineno, "docstrings", f"docstring begins with {opening!r}", hint)


def check_module_size(path: PurePosixPath, source: str) -> Iterator[Problem]:
    lines = source.count("\n")
    if lines > MODULE_LINES:
        message = f"module of {lines} lines, more than {MODULE_LINES}"
        yield Problem(path, 1, "sizes", message, "split it by subject", path.name)


def check_function_size(path: PurePosixPath, node: Function) -> Iterator[Problem]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > FUNCTION_LINES:
        message = f"function {node.name} of {lines} lines, more than {FUNCTION_LINES}"
        yield Problem(path, node.lineno, "sizes", message, "give its phases names of their own", node.name)
