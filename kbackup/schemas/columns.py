"""Keys and values of records as columns of Arrow: of the types that their schemas have, or as JSON."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as t

from kbackup.schemas.base import AVRO_DECIMAL, Headers, Json, Schema
from kbackup.schemas.decoder import Decoder, Undecoded, codec_of

JSON = pa.large_string()
"""Text in JSON, for values whose schema has no type of Arrow's. Text itself is `pa.string()`."""
_TIME = pa.timestamp("us", "UTC")
_MOST_FIELDS = 2000  # of a schema: records within records double with each level
_NO_NAME = re.compile(r"[ ,;{}()\n\t=]|^$")  # of a column of Delta


@lru_cache(1000)
def column_type(schema: Schema) -> pa.DataType:
    """Return the type of the values that a schema describes. `UndecodableError` for an invalid schema."""
    codec: Any = codec_of(schema)
    left = iter(range(_MOST_FIELDS))
    try:
        if schema.kind == "PROTOBUF":
            messages = [_message(kind, (), left) for kind in _roots(codec.file)]
            return reduce(merged_types, messages)
        if schema.kind == "AVRO":
            return _avro(codec.schema, {}, (), left)
        return _json(codec.schema, codec.schema, (), left)
    except (StopIteration, RuntimeError, LookupError, AttributeError, TypeError, ValueError):
        return JSON  # more fields than a table is good for, or a hostile text


def _struct(fields: Iterable[tuple[str, pa.DataType]], left: Iterator[int]) -> pa.DataType:
    """Return a struct, or JSON for names that tables can't have, or can't tell apart. `left` ends with an error when a
    schema has too many fields."""
    members: list[tuple[str, pa.DataType]] = []
    for field in fields:
        next(left)
        members.append(field)
    if not members:
        return JSON
    # Tables tell names apart by more than upper and lower case.
    lower = {name.lower() for name, _ in members}
    has_bad_name = any(_NO_NAME.search(name) for name in lower)
    if has_bad_name or len(lower) < len(members):
        return JSON
    return pa.struct(members)


def merged_types(held: pa.DataType, more: pa.DataType, keep: bool = False) -> pa.DataType:
    """Return a type for the values of both, with the fields of both. Where they differ it is JSON, or with `keep` the
    type that a table has."""
    if t.is_struct(held) and t.is_struct(more):
        return _merged_structs(held, more, keep)
    if t.is_list(held) and t.is_list(more):
        return pa.list_(merged_types(held.value_type, more.value_type, keep))
    if t.is_map(held) and t.is_map(more):
        return pa.map_(pa.string(), merged_types(held.item_type, more.item_type, keep))
    if held == more:
        return held
    # To a table, text and JSON are one type: its column of text takes JSON.
    if keep and not (t.is_string(held) and more == JSON):
        return held
    return JSON


def _merged_structs(held: Any, more: Any, keep: bool) -> pa.DataType:
    fields = {field.name: field.type for field in held}
    lower = {name.lower() for name in fields}
    for field in more:
        if field.name in fields:
            fields[field.name] = merged_types(fields[field.name], field.type, keep)
        elif field.name.lower() not in lower:
            fields[field.name] = field.type
        elif not keep:
            return JSON
    return pa.struct(list(fields.items()))


# The types of the three kinds of schemas. `above` are the types around a type: a type within itself is JSON.

_AVRO: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "null": JSON,
    "int date": pa.date32(),
    "long timestamp-millis": _TIME,
    "long timestamp-micros": _TIME,
    "int time-millis": pa.string(),
    "long time-micros": pa.string(),
    "long local-timestamp-millis": pa.string(),
    "long local-timestamp-micros": pa.string(),
}
"""By Avro's type, or by the type and its logical type."""


def _avro(schema: Any, known: dict[str, Any], above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    """Return the type of an Avro schema. `known` are the named types so far."""
    if isinstance(schema, list):
        # A union with null is a type that may be null, as every column may; other unions have no type of Arrow's.
        kinds = [kind for kind in schema if kind != "null"]
        return _avro(kinds[0], known, above, left) if len(kinds) == 1 else JSON
    if isinstance(schema, str):
        if schema not in known:
            return _AVRO[schema]
        schema = known[schema]
    kind = schema["type"]
    logical = schema.get("logicalType", "")
    name = schema.get("name", "")
    known[name] = schema
    if name in above:
        return JSON
    if kind in ("record", "error"):
        within = (*above, name)
        fields = ((field["name"], _avro(field["type"], known, within, left)) for field in schema["fields"])
        return _struct(fields, left)
    if kind == "array":
        return pa.list_(_avro(schema["items"], known, above, left))
    if kind == "map":
        return pa.map_(pa.string(), _avro(schema["values"], known, above, left))
    if logical == AVRO_DECIMAL and "precision" in schema:
        return _avro_decimal(schema["precision"], schema.get("scale", 0))
    return _AVRO.get(f"{kind} {logical}", _AVRO[kind])


def _avro_decimal(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= 38 else JSON  # Delta has no larger ones


_PROTOBUF: Sequence[pa.DataType] = (
    pa.null(),  # there is no type 0
    pa.int32(),
    pa.int64(),
    pa.int64(),  # uint32
    pa.decimal128(20, 0),  # uint64
    pa.float64(),
    pa.float32(),
    pa.bool_(),
    pa.string(),  # an enum: its names
    pa.string(),
)
"""By a field's `cpp_type`."""
_GOOGLE: dict[str, pa.DataType] = {
    f"google.protobuf.{name}": pa.string() for name in ("Timestamp", "Duration", "FieldMask")
}
_GOOGLE |= {f"google.protobuf.{name}": JSON for name in ("Any", "Struct", "Value", "ListValue")}


def _roots(file: Any) -> list[Any]:
    """Return the messages of a file that no other one of it has as a field: records are of these."""
    messages = list(file.message_types_by_name.values())
    inner: set[str] = set()
    for kind in messages:
        inner.update(name for name in _parts(kind) if name != kind.full_name)
    roots = [kind for kind in messages if kind.full_name not in inner]
    return roots or messages[:1]


def _parts(kind: Any) -> Iterator[str]:
    """Yield the names of the messages that a message, or one that is nested in it, has as fields."""
    for field in kind.fields:
        if field.message_type is not None:
            yield field.message_type.full_name
    for nested in kind.nested_types:
        yield from _parts(nested)


def _message(kind: Any, above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    name = kind.full_name
    if name in _GOOGLE or name in above:
        return _GOOGLE.get(name, JSON)
    if kind.file.name == "google/protobuf/wrappers.proto":
        return _field(kind.fields[0], above, left)
    within = (*above, name)
    fields = ((field.name, _field(field, within, left)) for field in kind.fields)
    return _struct(fields, left)


def _field(field: Any, above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return pa.map_(pa.string(), _field(message.fields_by_name["value"], above, left))
    if message is not None:
        kind = _message(message, above, left)
    elif field.type == field.TYPE_BYTES:  # its `cpp_type` is that of text
        kind = pa.binary()
    else:
        kind = _PROTOBUF[field.cpp_type]
    return pa.list_(kind) if field.is_repeated else kind


_JSON: dict[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


def _json(schema: Any, root: Any, above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    """Return the type of a JSON Schema by its `properties`, `items` and `type`; JSON for a schema that says more."""
    if not isinstance(schema, dict):
        return JSON
    name = schema.get("$ref")
    if isinstance(name, str):
        return _json(_json_at(root, name, above), root, (*above, name), left)
    kinds = schema.get("anyOf") or schema.get("oneOf") or schema.get("type")
    if isinstance(kinds, list):
        kinds = [kind for kind in kinds if kind not in ("null", {"type": "null"})]
        if len(kinds) != 1:
            return JSON
        if isinstance(kinds[0], dict):
            return _json(kinds[0], root, above, left)
        kinds = kinds[0]
    properties = schema.get("properties")
    others = schema.get("additionalProperties")
    items = schema.get("items")
    if kinds in ("object", None) and isinstance(properties, dict):
        fields = ((name, _json(kind, root, above, left)) for name, kind in properties.items())
        return _struct(fields, left)
    if kinds == "object" and isinstance(others, dict):
        return pa.map_(pa.string(), _json(others, root, above, left))
    if kinds == "array" and isinstance(items, dict):
        return pa.list_(_json(items, root, above, left))
    return _JSON.get(kinds, JSON) if isinstance(kinds, str) else JSON


def _json_at(root: Any, name: str, above: tuple[str, ...]) -> Any:
    """Return the part of a schema that `#/definitions/order` names; None if it is elsewhere, or around itself."""
    if not name.startswith("#") or name in above:
        return None
    part = root
    for step in name.split("/")[1:]:
        part = part.get(step) if isinstance(part, dict) else None
    return part


DECODED = {"key": "key_decoded", "value": "value_decoded"}
"""The names of the columns of decoded keys and values, by part."""
DECODE_ERROR = "decode_error"
"""The column with the reason why a key or a value could not be decoded."""

# Decoded values, as pyarrow takes them for a type. A value that does not fit raises an error.


def decoded_columns(
    batch: pa.RecordBatch, decoders: Mapping[str, Decoder], types: Mapping[str, pa.DataType]
) -> list[pa.Array[Any]]:
    """Return columns of the decoded keys and values of `types`, and why others could not be decoded, of records in
    columns of `rows.SCHEMA`. They are null where a key or value is null, or names no schema."""
    headers: list[list[tuple[bytes, bytes | None]]] = []
    for row in batch.column("headers").to_pylist():
        headers.append([(header["key"].encode(), header["value"]) for header in row or ()])
    errors: list[list[str]] = [[] for _ in headers]
    columns = [_DecodedColumn(part, kind, errors) for part, kind in types.items()]
    decoded = 0
    for column in columns:
        for n, data in enumerate(batch.column(column.part).to_pylist()):
            if data is None:
                column.add(None)
            elif decoded > MOST_DECODED:
                column.fail(f"the decoded records before it in its batch take more than {MOST_DECODED >> 20:,} MiB")
            else:
                decoded += column.decode(decoders[column.part], data, headers[n])
    # The arrays come before the errors: a value may turn out not to fit only when its array is made.
    arrays = [column.array() for column in columns]
    error_texts = ["; ".join(of_record) or None for of_record in errors]
    arrays.append(pa.array(error_texts, pa.string()))
    return arrays


MOST_DECODED = 1 << 30
"""Characters of JSON that the decoded records of a batch are at most: no further record of it is decoded then."""
_MOST_OBJECTS = 16 << 20
"""Characters of JSON that values are until they become a part of their column: Python's objects take several times as
much memory."""


class _DecodedColumn:
    """The decoded keys or values of a batch, added one after another. `errors` has a list for each record, to which the
    record's errors are added."""

    def __init__(self, part: str, kind: pa.DataType, errors: list[list[str]]) -> None:
        self.part, self._kind, self._errors = part, kind, errors
        self._values: list[object] = []
        self._size = 0
        self._arrays: list[pa.Array[Any]] = []
        self._done = 0

    def add(self, value: object) -> None:
        self._values.append(value)

    def fail(self, why: str) -> None:
        self._errors[self._done + len(self._values)].append(f"{self.part}: {why}")
        self.add(None)

    def decode(self, decoder: Decoder, data: bytes, headers: Headers) -> int:
        """Add a decoded key or value, or null and why it could not be decoded; return its size as JSON."""
        made = decoder(data, headers)
        if isinstance(made, Undecoded):
            self.fail(made.why)
            return 0
        if made is None:
            self.add(None)
            return 0
        try:
            size = len(msgspec.json.encode(made.value))
            # Only a JSON Schema leaves open which other fields an object may have.
            is_exact = made.schema["type"] != "JSON"
            make = _maker(self._kind, is_exact)
            self.add(make(made.value))
        except _MISFIT as error:
            self.fail(f"it does not fit the column: {error}")
            return 0
        self._size += size
        if self._size > _MOST_OBJECTS:
            self._flush()
        return size

    def array(self) -> pa.Array[Any]:
        self._flush()
        return pa.concat_arrays(self._arrays)

    def _flush(self) -> None:
        errors = self._errors[self._done : self._done + len(self._values)]
        self._arrays.append(_array(self._values, self._kind, self.part, errors))
        self._done += len(self._values)
        self._values = []
        self._size = 0


_MISFIT = (ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException)


def _array(values: list[object], kind: pa.DataType, part: str, errors: list[list[str]]) -> pa.Array[Any]:
    """Return an array in which the values that do not fit are null, and add why."""
    try:
        return pa.array(values, kind)
    except _MISFIT:
        # The error does not tell which value it is of: each is tried alone.
        for n, value in enumerate(values):
            try:
                pa.array([value], kind)
            except _MISFIT as error:
                values[n] = None
                errors[n].append(f"{part}: it does not fit the column: {error}")
        return pa.array(values, kind)


_Make = Callable[[Any], object]
"""Makes the value that pyarrow takes of a decoded one."""


@lru_cache(1000)
def _maker(kind: pa.DataType, exact: bool) -> _Make:
    """Return what makes values of a type. `exact`: an object has no other fields than the type."""
    make = _inner(kind, exact)

    def make_or_none(value: Any) -> object:
        return None if value is None else make(value)

    return make_or_none


def _inner(kind: pa.DataType, exact: bool) -> _Make:
    if t.is_struct(kind):
        return _struct_maker(kind, exact)
    if t.is_list(kind):
        make_item = _maker(kind.value_type, exact)
        return lambda value: [make_item(item) for item in _listed(value)]
    if t.is_map(kind):
        make_entry = _maker(kind.item_type, exact)
        return lambda value: [(name, make_entry(entry)) for name, entry in value.items()]
    if t.is_decimal(kind):
        return Decimal
    if t.is_integer(kind):
        return _whole
    return _SIMPLE.get(kind, _as_it_is)


def _struct_maker(kind: Any, exact: bool) -> _Make:
    makers = {field.name: _maker(field.type, exact) for field in kind}

    def struct(value: dict[str, Json]) -> object:
        if exact:
            others = value.keys() - makers.keys()
            if others:
                raise ValueError(f"it has no field {min(others)}")
        return {name: make(value.get(name)) for name, make in makers.items()}

    return struct


def _as_it_is(value: Any) -> object:
    return value


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _as_text(value: Any) -> object:
    return str(value) if type(value) is int else value  # a number of an enum that has no name for it


_SIMPLE: dict[pa.DataType, _Make] = {
    JSON: _as_json,
    _TIME: datetime.fromisoformat,
    pa.date32(): date.fromisoformat,
    pa.binary(): base64.b64decode,
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): _as_text,
}


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("it is no array")
    return value


def _whole(value: Any) -> int:
    """Return an integer. Large ones of Protobuf are text."""
    number = int(value)
    is_other = number != value and str(number) != value
    if is_other or isinstance(value, bool):
        raise TypeError(f"{value} is no integer")
    return number
