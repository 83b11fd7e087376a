"""Check the words of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from scripts.dev.words.problem import Problem
from scripts.dev.words.vocabulary import (
    LOCAL_LINES,
    LOCAL_RIDDLES,
    PHRASES,
    RENAMED,
    RIDDLES,
    TEST_OPENINGS,
)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_module(path: PurePosixPath) -> Iterator[Problem]:
    module = path.parent.name if path.stem == "__init__" else path.stem
    name = path.name if path.stem != "__init__" else path.parent.name
    if not module.startswith("test_"):
        yield from _check(path, 1, module, f"module {module}", name, public=path.parts[0] != "tests")


def check_function(path: PurePosixPath, node: Function) -> Iterator[Problem]:
    """Check a function's name, of tests the opening alone, and its parameters."""
    if path.parts[0] == "tests":
        yield from _check_test(path, node)
    else:
        public = not node.name.startswith("_")
        yield from _check(path, node.lineno, node.name, f"function {node.name}", node.name, public=public)
    arguments = node.args
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]:
        label = f"parameter {argument.arg} of {node.name}"
        yield from _check(path, argument.lineno, argument.arg, label, argument.arg, public=False)


def _check_test(path: PurePosixPath, node: Function) -> Iterator[Problem]:
    if node.name.startswith(TEST_OPENINGS):
        opening = node.name.split("_")[1]
        message = f"test {node.name} begins with {opening!r}"
        hint = "begin with the noun that the test is about"
        yield Problem(path, node.lineno, "names", message, hint, node.name)


def check_locals(path: PurePosixPath, node: Function) -> Iterator[Problem]:
    """Check the names of a function's locals that live long; parameters are not among them."""
    lines: dict[str, list[int]] = {}
    assigned: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            lines.setdefault(child.id, []).append(child.lineno)
            if isinstance(child.ctx, ast.Store):
                assigned.add(child.id)
    for name in sorted(assigned):
        begin, end = min(lines[name]), max(lines[name])
        if end - begin < LOCAL_LINES:
            continue
        label = f"local {name} of {node.name}"
        yield from _check(path, begin, name, label, name, public=False)
        if name in LOCAL_RIDDLES:
            yield Problem(path, begin, "names", f"{label}: {name!r} names nothing", LOCAL_RIDDLES[name], name)


def check_attribute(path: PurePosixPath, node: ast.Attribute) -> Iterator[Problem]:
    """Check the name of an attribute that is assigned on `self`."""
    if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
        label = f"attribute {node.attr}"
        yield from _check(path, node.lineno, node.attr, label, node.attr, public=False)
        if node.attr.lstrip("_") in LOCAL_RIDDLES:
            hint = LOCAL_RIDDLES[node.attr.lstrip("_")]
            yield Problem(
                path, node.lineno, "names", f"{label}: {node.attr!r} names nothing", hint, node.attr
            )


def check_class(path: PurePosixPath, node: ast.ClassDef) -> Iterator[Problem]:
    """Check a class's name and its annotated attributes."""
    checks_terms = path.parts[0] != "tests"
    public = checks_terms and not node.name.startswith("_")
    yield from _check(path, node.lineno, node.name, f"class {node.name}", node.name, public=public)
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            attribute = child.target.id
            name = f"{node.name}.{attribute}"
            public = checks_terms and not attribute.startswith("_")
            yield from _check(path, child.lineno, attribute, f"attribute {name}", name, public=public)


def split_words(name: str) -> list[str]:
    """Split snake_case and CamelCase into lower-case words, without phrases that are plain."""
    words = [word.lower() for word in _WORD.findall(name)]
    for phrase in PHRASES:
        for at in range(len(words) - len(phrase), -1, -1):
            if tuple(words[at : at + len(phrase)]) == phrase:
                del words[at : at + len(phrase)]
    return words


def _check(
    path: PurePosixPath, line: int, name: str, label: str, exempted_name: str, *, public: bool
) -> Iterator[Problem]:
    for word in split_words(name):
        if word in RIDDLES:
            yield Problem(
                path, line, "names", f"{label}: {word!r} names nothing", RIDDLES[word], exempted_name
            )
        elif public and word in RENAMED:
            message = f"{label}: the glossary has another word for {word!r}"
            yield Problem(path, line, "terms", message, RENAMED[word], exempted_name)
