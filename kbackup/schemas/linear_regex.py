"""Validators of JSON Schema whose regular expressions run in linear time: RE2 in place of `re`.

A schema and a record can be made for each other so that Python's backtracking does not end. jsonschema has no setting
for the engine. So the validators here use copies of jsonschema's functions that search by RE2; jsonschema itself, and
whoever else uses it in this process, stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import attrs
from jsonschema import _keywords, _legacy_keywords, _utils, validators

from kbackup.util.linear_regex import search

_MOST_STEPS = 200_000
"""Parts of a schema that one value is held against; that takes some seconds."""
_steps = threading.local()


@contextmanager
def bounded() -> Iterator[None]:
    """Bound the steps of a validation in this thread: parts that refer to others twice double with each level."""
    _steps.left = _MOST_STEPS
    yield


def _count_step() -> None:
    _steps.left = getattr(_steps, "left", _MOST_STEPS) - 1
    if _steps.left < 0:
        raise ValueError(f"the schema has more than {_MOST_STEPS:,} parts for this value")


@cache
def linear(stock: Any) -> Any:
    """Return the validator class of the same draft as jsonschema's class `stock` that searches by `search`."""
    copies = _copies()
    keywords = {name: copies.get(function, function) for name, function in stock.VALIDATORS.items()}
    extend: Any = validators.extend
    kind: Any = extend(stock, validators=keywords)

    def evolve(self: Any, **changes: Any) -> Any:
        """Evolve a validator as jsonschema does; a part of a schema that names a draft of its own gets a linear
        validator too."""
        _count_step()
        schema = changes.setdefault("schema", self.schema)
        for field in attrs.fields(kind):
            if field.init:
                changes.setdefault(field.alias, getattr(self, field.name))
        return linear(validators.validator_for(schema, default=stock))(**changes)

    kind.evolve = evolve
    return kind


@cache
def _copies() -> dict[Callable[..., Any], Callable[..., Any]]:
    """jsonschema's functions for keywords, and their helpers, each with a copy that knows `search` as `re.search`."""
    copies: dict[Any, Any] = {}
    for module in (_utils, _keywords, _legacy_keywords):  # each imports from those before it
        names: dict[str, Any] = {}
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__globals__ is vars(module):
                copies[value] = _copy(value, names)
            names[name] = copies.get(value, value) if isinstance(value, FunctionType | ModuleType) else value
        names["re"] = SimpleNamespace(search=search)
        copies[module] = SimpleNamespace(**names)
    return copies


def _copy(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
