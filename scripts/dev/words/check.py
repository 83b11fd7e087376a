"""Check all modules in one pass over their syntax trees."""

from __future__ import annotations

import ast
import gc
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from scripts.dev.words import names, texts
from scripts.dev.words.exceptions import EXEMPTIONS, Exemption
from scripts.dev.words.hints import ErrorClasses
from scripts.dev.words.problem import Problem

ROOT = Path(__file__).parents[3]
TOPS = ("kbackup", "scripts", "tests")

_CHECKED = {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Attribute, ast.Expr, ast.Call}


class _Module(NamedTuple):
    path: PurePosixPath
    problems: list[Problem]
    classes: list[ast.ClassDef]
    calls: list[ast.Call]  # of errors, as far as their names say
    constants: dict[str, ast.expr]


def read_sources(root: Path = ROOT) -> dict[PurePosixPath, str]:
    """Read every module, by its path below the root."""
    paths = sorted(path for top in TOPS for path in (root / top).rglob("*.py"))
    return {PurePosixPath(path.relative_to(root).as_posix()): path.read_text("utf-8") for path in paths}


def check_sources(
    sources: Mapping[PurePosixPath, str], exemptions: Collection[Exemption] = EXEMPTIONS
) -> list[Problem]:
    """Return the problems of all rules, in the order of the files, and exemptions that nothing needs."""
    gc.disable()  # syntax trees have no cycles: a quarter of the time
    try:
        modules = [_read_module(path, source) for path, source in sources.items()]
    finally:
        gc.enable()
    errors = ErrorClasses([node for module in modules for node in module.classes])
    problems = [problem for module in modules for problem in _all_problems(module, errors)]
    return [*_without_exempted(problems, exemptions)]


def _read_module(path: PurePosixPath, source: str) -> _Module:
    module = _Module(path, [*names.check_module(path), *texts.check_module_size(path, source)], [], [], {})
    tree = ast.parse(source)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            module.constants[statement.targets[0].id] = statement.value
    for node in ast.walk(tree):
        if type(node) in _CHECKED:  # a tenth of a million nodes
            _read_node(module, node)
    return module


def _read_node(module: _Module, node: ast.AST) -> None:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            module.problems.extend(names.check_function(module.path, node))
            module.problems.extend(names.check_locals(module.path, node))
            module.problems.extend(texts.check_function_size(module.path, node))
        case ast.ClassDef():
            module.problems.extend(names.check_class(module.path, node))
            module.classes.append(node)
        case ast.Attribute():
            module.problems.extend(names.check_attribute(module.path, node))
        case ast.Expr():
            module.problems.extend(texts.check_docstring(module.path, node))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.endswith("Error"):
            module.calls.append(node)


def _all_problems(module: _Module, errors: ErrorClasses) -> Iterator[Problem]:
    yield from module.problems
    if module.path.parts[0] == "kbackup":
        for call in module.calls:
            yield from errors.check_call(module.path, call, module.constants)


def _without_exempted(problems: Iterable[Problem], exemptions: Collection[Exemption]) -> Iterator[Problem]:
    unneeded = set(exemptions)
    for problem in problems:
        reasons = {e for e in exemptions if e.name == problem.name and problem.path.is_relative_to(e.path)}
        unneeded -= reasons
        if not reasons:
            yield problem
    for exemption in sorted(unneeded):
        message = f"nothing needs the exemption of {exemption.name}"
        yield Problem(PurePosixPath(exemption.path), 1, "names", message, "delete it from exceptions.py")
