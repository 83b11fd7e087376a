"""Avro, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fastavro
from fastavro._read_py import schemaless_reader as python_reader
from fastavro._schema_py import load_schema  # compiled, it ends the process where references go deep
from fastavro.repository import SchemaRepositoryError
from fastavro.repository.base import AbstractSchemaRepository

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Kind, Schema, misfit
from kbackup.schemas.values import plain

_WHOLE = ""


class _Texts(AbstractSchemaRepository):
    """The schemas that others name, by those names."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def load(self, name: str) -> Any:
        if name not in self._texts:
            raise SchemaRepositoryError(name)
        return _loaded(self._texts[name])


class AvroCodec:
    """Unions are their value alone, enums their names; logical types as `plain` has them."""

    kind: Kind = "AVRO"

    def __init__(self, schema: Schema) -> None:
        """Raises what fastavro does for a schema that is none."""
        self._schema = load_schema(_WHOLE, repo=_Texts({**dict(schema.references), _WHOLE: schema.text}))
        found = list(_types(self._schema))
        if any(_is_array_of_nothing(kind) for kind, _ in found):
            # a few bytes could say that there are 2^62 of them
            raise UndecodableError(f"{schema.name} has an array of items that take no bytes")
        # compiled, the reader of a type within itself ends the process where data goes deep
        nested = any(isinstance(kind, str) and kind in within for kind, within in found)
        self._read = python_reader if nested else fastavro.schemaless_reader
        # serializers of registries write a value of this type as it is, without its length
        self._bytes = self._schema == "bytes" or self._schema == {"type": "bytes"}

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        if self._bytes:
            return plain(data)
        stream = io.BytesIO(data)
        try:
            value = plain(self._read(stream, self._schema, None))
        except Exception as error:
            # fastavro raises what it comes upon: IndexError, EOFError, KeyError, OverflowError, RecursionError, ...
            raise misfit("AVRO", error) from error
        if left := len(data) - stream.tell():
            raise UndecodableError(f"not AVRO by its schema: {left} of {len(data)} bytes are left over")
        return value


def _types(schema: Any, within: frozenset[str] = frozenset()) -> Iterator[tuple[Any, frozenset[str]]]:
    """Every type in a schema, each with the names of those that it stands in."""
    yield schema, within
    if isinstance(schema, list):
        for kind in schema:
            yield from _types(kind, within)
    elif isinstance(schema, dict):
        inside = within | {schema["name"]} if "name" in schema else within
        for field in schema.get("fields", ()):
            yield from _types(field["type"], inside)
        for name in ("items", "values"):
            if name in schema:
                yield from _types(schema[name], inside)


def _is_array_of_nothing(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "array" and _is_nothing(schema["items"])


def _is_nothing(schema: Any) -> bool:
    if isinstance(schema, dict):
        if schema["type"] == "record":
            return all(_is_nothing(field["type"]) for field in schema["fields"])
        return bool(schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0))
    return bool(schema == "null")


def _loaded(text: str) -> Any:
    """JSON, or the bare name of a type."""
    return json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
