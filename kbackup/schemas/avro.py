"""Avro: records by their schemas, as values that JSON holds without loss."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
from fastavro._read_py import schemaless_reader as python_reader
from fastavro._schema_py import load_schema
from fastavro.repository import SchemaRepositoryError
from fastavro.repository.base import AbstractSchemaRepository

from kbackup.errors import UndecodableError
from kbackup.schemas.base import AVRO_DECIMAL, Json, Schema, SchemaType, TextBudget, misfit

_MOST_ZEROS = 1_000


def plain(value: object, budget: TextBudget) -> Json:
    """Return a value as JSON has it: decimals as text with all their digits (and an exponent if too many zeros would
    stand there), times as RFC 3339, bytes as base64, and floats that are no number as `NaN`, `Infinity`, `-Infinity`.

    `TypeError` for a value without such a form, and `UndecodableError` for more text than `budget` has."""
    match value:
        case None | bool() | int():
            budget.spend(_NUMBER)
            return value
        case str():
            budget.spend(_NUMBER + len(value))
            return value
        case float():
            budget.spend(_NUMBER)
            return value if math.isfinite(value) else _no_number(value)
        case Mapping():
            fields: dict[str, Json] = {}
            budget.spend(_NUMBER)
            for name, item in value.items():
                budget.spend(len(name))
                fields[str(name)] = plain(item, budget)
            return fields
        case list() | tuple():
            budget.spend(_NUMBER)
            return [plain(item, budget) for item in value]
    text = _text_of(value)
    budget.spend(_NUMBER + len(text))
    return text


def _no_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


_NUMBER = 8
"""Characters that a value takes at least: what stands around it, and what it takes in memory, is counted as well."""


def _text_of(value: object) -> str:
    match value:
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime() | time():
            precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
            exact = value.isoformat(timespec=precision)
            return exact.replace("+00:00", "Z") if isinstance(value, datetime) else exact
        case date():
            return value.isoformat()
        case Decimal():
            return _decimal_text(value)
        case UUID():
            return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _decimal_text(value: Decimal) -> str:
    # With a schema's scale of millions, two bytes would be megabytes of zeros, before the digits or behind them.
    exponent = value.as_tuple().exponent
    many_zeros = value.adjusted() < -_MOST_ZEROS or (isinstance(exponent, int) and exponent > _MOST_ZEROS)
    return str(value) if many_zeros else f"{value:f}"


# Avro, by fastavro.

_WHOLE = ""
_MOST_IDLE = 1_000
_MOST_VALUES = 4_000_000
"""Values that a key or value may be made of where many of them take no bytes: each is some 50 bytes of memory."""
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
    fastavro.read.LOGICAL_READERS[f"{_kind}-{AVRO_DECIMAL}"] = _read_decimal


class _Texts(AbstractSchemaRepository):
    """The schemas that others name, by those names: JSON, or the bare name of a type."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def load(self, name: str) -> Any:
        text = self._texts.get(name)
        if text is None:
            raise SchemaRepositoryError(name)
        is_json = text.lstrip()[:1] in ("{", "[", '"')
        return json.loads(text) if is_json else text.strip()


class AvroCodec:
    """Decodes Avro. A union becomes its value alone, an enum its name; logical types become what `plain` returns."""

    kind: SchemaType = "AVRO"

    def __init__(self, schema: Schema) -> None:
        """Raises what fastavro raises for an invalid schema."""
        texts = dict(schema.references)
        texts[_WHOLE] = schema.text
        self.schema = load_schema(_WHOLE, repo=_Texts(texts))
        try:
            extent = _extent(self.schema, {})
        except UndecodableError as error:
            raise UndecodableError(f"{schema.name} can't be read by: {error.message}") from None
        # The compiled reader ends the process where data go deep.
        self._read = python_reader if extent.deep > _MOST_LEVELS else fastavro.schemaless_reader
        self._values_per_byte = extent.per_byte
        # Serializers of registries write a value of this type as it is, without its length.
        self.is_bare_bytes = self.schema == "bytes" or self.schema == {"type": "bytes"}

    @cached_property
    def named_types(self) -> dict[str, Any]:
        """The types that have names, by these."""
        named: dict[str, Any] = {}
        waiting = [self.schema]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, list):
                waiting += schema
            if not isinstance(schema, dict):
                continue
            if "name" in schema:
                named[schema["name"]] = schema
            waiting += [field["type"] for field in schema.get("fields", ())]
            waiting += [schema[inner] for inner in ("items", "values") if inner in schema]
        return named

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        if self.is_bare_bytes:
            return base64.b64encode(data).decode()
        budget = TextBudget(len(data))
        most_values = self._values_per_byte * len(data)
        if self._values_per_byte > _ALL_READ and most_values > _MOST_VALUES:
            raise UndecodableError(
                f"its {len(data):,} bytes could be {most_values:,.0f} values, most of which take no bytes"
            )
        stream = io.BytesIO(data)
        try:
            read = self._read(stream, self.schema, None)
            value = plain(read, budget)
        except UndecodableError:
            raise
        except Exception as error:
            # fastavro raises what it comes upon: IndexError, EOFError, KeyError, OverflowError, RecursionError, ...
            raise misfit("AVRO", error) from error
        unread = len(data) - stream.tell()
        if unread:
            raise UndecodableError(f"not AVRO by its schema: {unread} of {len(data)} bytes are left over")
        return value

    def fits(self, data: bytes, indexes: Sequence[int] | None = None) -> bool:
        # Any bytes fit the type of bytes, and no bytes fit every type that takes none: neither proves anything.
        if self.is_bare_bytes or not data:
            return False
        try:
            self.decode(data)
        except UndecodableError:
            return False
        return True


class _Extent(NamedTuple):
    """The extent of a type.

    One value takes `least` bytes. `idle` is the number of values that it is made of if none of them takes a byte, 0 if
    one does; `deep` is the number of types that it goes through at most; `per_byte` is the number of values that a byte
    can become at most.
    """

    least: int = 1
    idle: int = 0
    deep: float = 0
    per_byte: float = 1.0


_ALL_READ = 8.0
"""Values for each byte up to which a type is taken as it is: real ones have one or two."""
_BARE = dict.fromkeys(("boolean", "int", "long", "float", "double", "bytes", "string"), _Extent())
_BARE["null"] = _Extent(least=0, idle=1)
_OPEN = _Extent(deep=math.inf)  # of a type within itself


def _extent(schema: Any, known: dict[str, _Extent]) -> _Extent:
    """Return the extent of a type. `known` are the named types so far.

    `UndecodableError` if a few bytes could be any number of values: arrays of nothing, and records of nothing within
    others, which double with each level."""
    if isinstance(schema, str):
        return _BARE.get(schema) or known.get(schema, _OPEN)
    if isinstance(schema, list):
        return _extent_of_union([_extent(kind, known) for kind in schema])
    kind = schema["type"]
    if kind in ("record", "error"):
        extent = _extent_of_fields([_extent(field["type"], known) for field in schema["fields"]])
    elif kind in ("array", "map"):
        item = _extent(schema["items" if kind == "array" else "values"], known)
        if item.idle and kind == "array":
            raise UndecodableError("an array of items that take no bytes could be any number of them")
        extent = _Extent(deep=1 + item.deep, per_byte=max(1.0, item.per_byte, item.idle))
    else:
        if schema.get("logicalType") == "decimal":
            # An invalid logical type is ignored, by Avro's specification: the value is of its plain type.
            is_valid = kind in ("bytes", "fixed") and "precision" in schema
            schema["logicalType"] = AVRO_DECIMAL if is_valid else ""
        size = schema["size"] if kind == "fixed" else 1
        extent = _BARE.get(kind) or _Extent(least=size, idle=int(size == 0))
    if extent.idle > _MOST_IDLE:
        raise UndecodableError(f"a record of {extent.idle:,} values that take no bytes is nothing but their number")
    if "name" in schema:
        known[schema["name"]] = extent
    return extent


def _extent_of_union(branches: Sequence[_Extent]) -> _Extent:
    deep = per_byte = 1.0
    for branch in branches:
        deep = max(deep, 1 + branch.deep)
        # The number of the branch is a byte, whatever the branch takes.
        per_byte = max(per_byte, branch.per_byte, branch.idle)
    return _Extent(deep=deep, per_byte=per_byte)


def _extent_of_fields(fields: Sequence[_Extent]) -> _Extent:
    """Return the extent of a record: its own value, and those of its fields that take no bytes, come on top of what the
    bytes of the others can be."""
    least = sum(field.least for field in fields)
    idle = 1 + sum(field.idle for field in fields)
    deep = 1 + max((field.deep for field in fields), default=0)
    if not least:
        return _Extent(least=0, idle=idle, deep=deep)
    per_byte = idle / least + max(field.per_byte for field in fields)
    return _Extent(least=least, deep=deep, per_byte=per_byte)
