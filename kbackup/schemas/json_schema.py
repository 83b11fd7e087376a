"""Validators of JSON Schema whose regular expressions run in linear time: RE2 in place of `re`.

A schema and a record can be made for each other so that Python's backtracking does not end. jsonschema has no setting
for the engine. So the validators here use copies of jsonschema's functions that search by RE2; jsonschema itself, and
whoever else uses it in this process, stays as it is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import attrs
import jsonschema
import msgspec
import referencing
import referencing.jsonschema
from jsonschema import _keywords, _legacy_keywords, _utils, validators
from jsonschema.exceptions import ValidationError
from jsonschema.validators import validator_for

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Kind, Schema, misfit, of_others
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


# JSON that a JSON Schema describes: read, and held against the schema by jsonschema.


class JsonCodec:
    """Nothing is fetched for a schema: what it refers to is in it, or among its references."""

    kind: Kind = "JSON"

    def __init__(self, schema: Schema) -> None:
        """Raises what the libraries do for a schema that is none, or that refers to one."""
        whole = json.loads(schema.text)
        kind = _checked(whole, jsonschema.Draft7Validator)
        known: Any = referencing.Registry()
        for name, text in schema.references:
            other = json.loads(text)
            with of_others(f"{name}, which it refers to,", "JSON Schema"):
                _checked(other, kind)
            known = known.with_resource(name, _resource(other))
        self._validator = linear(kind)(whole, registry=known)

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        try:
            value: Json = msgspec.json.decode(data)
            with bounded():
                self._validator.validate(value)
        except ValidationError as error:
            raise UndecodableError(f"not JSON by its schema: {error.json_path}: {error.message}") from error
        except Exception as error:
            # what the schema refers to may be nothing, or no schema: `re.error`, `UnknownType`, ...
            raise misfit("JSON", error) from error
        return value


def _checked(schema: Any, default: Any) -> Any:
    """Return the validator class of the draft that `schema` names; raise if it is invalid by that draft."""
    kind = validator_for(schema, default=default)
    kind.check_schema(schema)
    return kind


def _resource(schema: Any) -> Any:
    return referencing.Resource.from_contents(schema, default_specification=referencing.jsonschema.DRAFT7)
