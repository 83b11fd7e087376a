"""Check the words of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from scripts.dev.words.problem import Problem
from scripts.dev.words.vocabulary import PHRASES, RENAMED, RIDDLES

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_module(path: PurePosixPath) -> Iterator[Problem]:
    module = path.parent.name if path.stem == "__init__" else path.stem
    name = path.name if path.stem != "__init__" else path.parent.name
    if not module.startswith("test_"):
        yield from _check(path, 1, module, f"module {module}", name, public=path.parts[0] != "tests")


def check_function(path: PurePosixPath, node: Function) -> Iterator[Problem]:
    """Check a function's name, but for those of tests, and its parameters."""
    if path.parts[0] != "tests":
        public = not node.name.startswith("_")
        yield from _check(path, node.lineno, node.name, f"function {node.name}", node.name, public=public)
    arguments = node.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        label = f"parameter {argument.arg} of {node.name}"
        yield from _check(path, argument.lineno, argument.arg, label, argument.arg, public=False)


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
