"""Check that every error of kbackup has a hint, and that the hint begins with what to do.

A hint is the second argument of an error, or the class's `default_hint`. Hints that are computed pass, but for those of
a conditional expression, an f-string or a constant of the same module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from scripts.dev.words.problem import Problem
from scripts.dev.words.vocabulary import VERBS

_ROOT = "KbackupError"
_CONDITION = re.compile(r"^(?:if|where|when|for|to|in|on|with|without|after|before|once|until) [^,:]+[,:] ")


class ErrorClasses:
    """The classes below KbackupError in some modules, and which of them have a hint by default."""

    def __init__(self, classes: Iterable[ast.ClassDef]) -> None:
        bases = {node.name: [_last_name(base) for base in node.bases] for node in classes}
        self._names = {_ROOT}
        while more := {name for name, of in bases.items() if self._names & set(of)} - self._names:
            self._names |= more
        hinted = {node.name for node in classes if _has_default(node)}
        while more := {name for name in self._names if hinted & set(bases.get(name, ()))} - hinted:
            hinted |= more
        own = {node.name for node in classes if any(_is_init(child) for child in node.body)}
        self._hinted = hinted | (own - {_ROOT})

    def check_call(
        self, path: PurePosixPath, call: ast.Call, constants: Mapping[str, ast.expr]
    ) -> Iterator[Problem]:
        """Check the making of an error; `constants` are those of its module."""
        name = _last_name(call.func)
        if name not in self._names or any(isinstance(argument, ast.Starred) for argument in call.args):
            return
        hint = _hint_of(call)
        if hint is None:
            if name not in self._hinted:
                yield Problem(
                    path, call.lineno, "hints", f"{name} without a hint", "pass what to do as second argument"
                )
            return
        for text in _texts(hint, constants):
            if not _is_imperative(text):
                message = f"hint of {name} says not what to do: {text!r}"
                yield Problem(path, call.lineno, "hints", message, "begin with a verb of VERBS")


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _is_init(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _has_default(node: ast.ClassDef) -> bool:
    return node.name != _ROOT and any(
        "default_hint" in (_last_name(target) for target in _targets(child)) for child in node.body
    )


def _targets(node: ast.stmt) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign(target=target):
            return [target]
        case _:
            return []


def _hint_of(call: ast.Call) -> ast.expr | None:
    if len(call.args) > 1:
        return call.args[1]
    return next((keyword.value for keyword in call.keywords if keyword.arg == "hint"), None)


def _texts(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the beginnings of the text, as far as it is known."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            yield text
        case ast.IfExp(body=body, orelse=otherwise):
            yield from _texts(body, constants)
            yield from _texts(otherwise, constants)
        case ast.BinOp(left=left, op=ast.Add()):
            yield from _texts(left, constants)
        case ast.Name(id=name) if name in constants:
            yield from _texts(constants[name], {})


def _is_imperative(text: str) -> bool:
    first = re.match(r"[a-z]+", _CONDITION.sub("", text))
    return text.startswith("did you mean ") or (first is not None and first[0] in VERBS)
