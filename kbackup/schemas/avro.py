"""Avro: records by their schemas, as values that JSON holds without loss."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Context, Decimal
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
from fastavro._read_py import schemaless_reader as python_reader
from fastavro._schema_py import load_schema
from fastavro.repository import SchemaRepositoryError
from fastavro.repository.base import AbstractSchemaRepository

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Kind, Schema, misfit

_MOST_ZEROS = 1_000


def plain(value: object) -> Json:
    """Decimals as text with all their digits (and an exponent where too many zeros would lead), times as RFC 3339,
    bytes as base64, what is no number as `NaN`, `Infinity`, `-Infinity`; `TypeError` for what has no such form."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case datetime() | time():
            exact = value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
            return exact.replace("+00:00", "Z") if isinstance(value, datetime) else exact
        case date():
            return value.isoformat()
        case Decimal():
            # of a schema's scale of millions, two bytes would be megabytes of zeros
            return f"{value:f}" if value.adjusted() >= -_MOST_ZEROS else str(value)
        case UUID():
            return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


# Avro, by fastavro.

_DECIMAL = "kbackup-decimal"
"""Stands for fastavro's type, whose time is quadratic in the bytes of a number, with one context for all threads."""
_WHOLE = ""
_MOST_IDLE = 1_000
_MOST_DECIMAL = 4096  # bytes of a number
_MOST_LEVELS = 100


def _read_decimal(data: bytes, writer_schema: Any, _reader_schema: Any = None) -> Decimal:
    """`ValueError` for more bytes than the digits of the type take, or than a number has."""
    precision, scale = writer_schema["precision"], writer_schema.get("scale", 0)
    if len(data) > min(precision // 2 + 2, _MOST_DECIMAL):
        raise ValueError(f"{len(data)} bytes for a decimal of {precision} digits")
    context = Context(prec=precision)
    return context.create_decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, context)


for _kind in ("bytes", "fixed"):
    fastavro.read.LOGICAL_READERS[f"{_kind}-{_DECIMAL}"] = _read_decimal


class _Texts(AbstractSchemaRepository):
    """The schemas that others name, by those names: JSON, or the bare name of a type."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def load(self, name: str) -> Any:
        if (text := self._texts.get(name)) is None:
            raise SchemaRepositoryError(name)
        return json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()


class AvroCodec:
    """Unions are their value alone, enums their names; logical types as `plain` has them."""

    kind: Kind = "AVRO"

    def __init__(self, schema: Schema) -> None:
        """Raises what fastavro does for a schema that is none."""
        self.schema = load_schema(_WHOLE, repo=_Texts({**dict(schema.references), _WHOLE: schema.text}))
        try:
            extent = _extent(self.schema, {})
        except UndecodableError as error:
            raise UndecodableError(f"{schema.name} can't be read by: {error.message}") from None
        # compiled, the reader ends the process where data goes deep
        self._read = python_reader if extent.deep > _MOST_LEVELS else fastavro.schemaless_reader
        # serializers of registries write a value of this type as it is, without its length
        self._bytes = self.schema == "bytes" or self.schema == {"type": "bytes"}

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        if self._bytes:
            return plain(data)
        stream = io.BytesIO(data)
        try:
            value = plain(self._read(stream, self.schema, None))
        except Exception as error:
            # fastavro raises what it comes upon: IndexError, EOFError, KeyError, OverflowError, RecursionError, ...
            raise misfit("AVRO", error) from error
        if unread := len(data) - stream.tell():
            raise UndecodableError(f"not AVRO by its schema: {unread} of {len(data)} bytes are left over")
        return value


class _Extent(NamedTuple):
    """Of a type: how many values one of it is made of where none of them takes a byte (0 if one does), and how many
    types it goes through at most."""

    idle: int = 0
    deep: float = 0


_BARE = dict.fromkeys(("boolean", "int", "long", "float", "double", "bytes", "string"), _Extent())
_BARE["null"] = _Extent(idle=1)
_OPEN = _Extent(deep=math.inf)  # of a type within itself


def _extent(schema: Any, known: dict[str, _Extent]) -> _Extent:
    """`known` are the named types so far. `UndecodableError` if a few bytes could be any number of values: arrays of
    nothing, and records of nothing within others, which double with each level."""
    if isinstance(schema, str):
        return _BARE.get(schema) or known.get(schema, _OPEN)
    if isinstance(schema, list):
        return _Extent(deep=1 + max((_extent(kind, known).deep for kind in schema), default=0))
    kind = schema["type"]
    if kind in ("record", "error"):
        inner = [_extent(field["type"], known) for field in schema["fields"]]
        idle = 1 + sum(each.idle for each in inner) if all(each.idle for each in inner) else 0
        extent = _Extent(idle, 1 + max((each.deep for each in inner), default=0))
    elif kind in ("array", "map"):
        item = _extent(schema["items" if kind == "array" else "values"], known)
        if item.idle and kind == "array":
            raise UndecodableError("an array of items that take no bytes could be any number of them")
        extent = _Extent(deep=1 + item.deep)
    else:
        if schema.get("logicalType") == "decimal":
            valid = kind in ("bytes", "fixed") and "precision" in schema
            schema["logicalType"] = _DECIMAL if valid else ""  # then it is its plain type, by Avro's specification
        extent = _BARE.get(kind) or _Extent(idle=int(kind == "fixed" and schema["size"] == 0))
    if extent.idle > _MOST_IDLE:
        raise UndecodableError(f"a record of {extent.idle:,} values that take no bytes is nothing but their number")
    if "name" in schema:
        known[schema["name"]] = extent
    return extent
