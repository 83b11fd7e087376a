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
"""Text in JSON, where a schema has no type of Arrow's. Text itself is `pa.string()`."""
_TIME = pa.timestamp("us", "UTC")
_MOST_FIELDS = 2000  # records within records double with each level
_NO_NAME = re.compile(r"[ ,;{}()\n\t=]|^$")  # of a column of Delta


@lru_cache(1000)
def column_type(schema: Schema) -> pa.DataType:
    """Return the type of what a schema describes. `UndecodableError` for an invalid schema."""
    codec: Any = codec_of(schema)
    left = iter(range(_MOST_FIELDS))
    try:
        if schema.kind == "PROTOBUF":
            return reduce(merged_types, [_message(kind, (), left) for kind in _roots(codec.file)])
        if schema.kind == "AVRO":
            return _avro(codec.schema, {}, (), left)
        return _json(codec.schema, codec.schema, (), left)
    except (StopIteration, RuntimeError, LookupError, AttributeError, TypeError, ValueError):
        return JSON  # more fields than a table is good for, or a hostile text


def _struct(fields: Iterable[tuple[str, pa.DataType]], left: Iterator[int]) -> pa.DataType:
    """Return JSON for names that tables can't have, or can't tell apart."""
    kinds = [field for field in fields if next(left) >= 0]
    names = {name.lower() for name, _ in kinds}
    return pa.struct(kinds) if kinds and len(names) == len(kinds) and not any(map(_NO_NAME.search, names)) else JSON


def merged_types(held: pa.DataType, more: pa.DataType, keep: bool = False) -> pa.DataType:
    """Return a type for the values of both, with the fields of both. Where they differ it is JSON, or with `keep` the
    one that a table has."""
    if t.is_struct(held) and t.is_struct(more):
        fields = {f.name: f.type for f in held}
        lower = {name.lower() for name in fields}
        for f in more:
            if f.name in fields:
                fields[f.name] = merged_types(fields[f.name], f.type, keep)
            elif f.name.lower() not in lower:
                fields[f.name] = f.type
            elif not keep:
                return JSON
        return pa.struct(list(fields.items()))
    if t.is_list(held) and t.is_list(more):
        return pa.list_(merged_types(held.value_type, more.value_type, keep))
    if t.is_map(held) and t.is_map(more):
        return pa.map_(pa.string(), merged_types(held.item_type, more.item_type, keep))
    return held if held == more or (keep and not (t.is_string(held) and more == JSON)) else JSON


# The types of the three kinds of schemas. `above` are the types around one: one within itself is JSON.

_AVRO: dict[str, pa.DataType] = {
    **{"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()},
    **{"bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(), "null": JSON},
    **{"int date": pa.date32(), "long timestamp-millis": _TIME, "long timestamp-micros": _TIME},
    **{"int time-millis": pa.string(), "long time-micros": pa.string()},
    **{"long local-timestamp-millis": pa.string(), "long local-timestamp-micros": pa.string()},
}


def _avro(schema: Any, known: dict[str, Any], above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        return _avro(kinds[0], known, above, left) if len(kinds) == 1 else JSON
    if isinstance(schema, str):
        if schema not in known:
            return _AVRO[schema]
        schema = known[schema]
    kind, logical, name = schema["type"], schema.get("logicalType", ""), schema.get("name", "")
    known[name] = schema
    if name in above:
        return JSON
    if kind in ("record", "error"):
        return _struct(((f["name"], _avro(f["type"], known, (*above, name), left)) for f in schema["fields"]), left)
    if kind == "array":
        return pa.list_(_avro(schema["items"], known, above, left))
    if kind == "map":
        return pa.map_(pa.string(), _avro(schema["values"], known, above, left))
    if logical == AVRO_DECIMAL and "precision" in schema:
        return pa.decimal128(schema["precision"], schema.get("scale", 0)) if schema["precision"] <= 38 else JSON
    return _AVRO.get(f"{kind} {logical}", _AVRO[kind])


_PROTOBUF: Sequence[pa.DataType] = (
    *(pa.null(), pa.int32(), pa.int64(), pa.int64(), pa.decimal128(20, 0), pa.float64(), pa.float32(), pa.bool_()),
    *(pa.string(), pa.string()),
)
"""By a field's `cpp_type`; enums are their names."""
_GOOGLE: dict[str, pa.DataType] = {
    f"google.protobuf.{name}": pa.string() for name in ("Timestamp", "Duration", "FieldMask")
}
_GOOGLE |= {f"google.protobuf.{name}": JSON for name in ("Any", "Struct", "Value", "ListValue")}


def _roots(file: Any) -> list[Any]:
    """Return the messages of a file that no other one of it has as a field: records are of these."""
    every = list(file.message_types_by_name.values())
    inner = {name for kind in every for name in _parts(kind) if name != kind.full_name}
    return [kind for kind in every if kind.full_name not in inner] or every[:1]


def _parts(kind: Any) -> Iterator[str]:
    yield from (f.message_type.full_name for f in kind.fields if f.message_type is not None)
    for nested in kind.nested_types:
        yield from _parts(nested)


def _message(kind: Any, above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    name = kind.full_name
    if name in _GOOGLE or name in above:
        return _GOOGLE.get(name, JSON)
    if kind.file.name == "google/protobuf/wrappers.proto":
        return _field(kind.fields[0], above, left)
    return _struct(((f.name, _field(f, (*above, name), left)) for f in kind.fields), left)


def _field(field: Any, above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return pa.map_(pa.string(), _field(message.fields_by_name["value"], above, left))
    if message is not None:
        kind = _message(message, above, left)
    else:
        kind = pa.binary() if field.type == field.TYPE_BYTES else _PROTOBUF[field.cpp_type]
    return pa.list_(kind) if field.is_repeated else kind


_JSON: dict[str, pa.DataType] = {
    **{"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
}


def _json(schema: Any, root: Any, above: tuple[str, ...], left: Iterator[int]) -> pa.DataType:
    """By `properties`, `items` and `type`; JSON for all that says more."""
    if not isinstance(schema, dict):
        return JSON
    if isinstance(name := schema.get("$ref"), str):
        found = root if name.startswith("#") and name not in above else None
        for step in name.split("/")[1:]:
            found = found.get(step) if isinstance(found, dict) else None
        return _json(found, root, (*above, name), left)
    kinds = schema.get("anyOf") or schema.get("oneOf") or schema.get("type")
    if isinstance(kinds, list):
        kinds = [kind for kind in kinds if kind not in ("null", {"type": "null"})]
        if len(kinds) != 1 or isinstance(kinds[0], dict):
            return _json(kinds[0], root, above, left) if len(kinds) == 1 else JSON
        kinds = kinds[0]
    fields, items, others = (schema.get(name) for name in ("properties", "items", "additionalProperties"))
    if kinds in ("object", None) and isinstance(fields, dict):
        return _struct(((name, _json(kind, root, above, left)) for name, kind in fields.items()), left)
    if kinds == "object" and isinstance(others, dict):
        return pa.map_(pa.string(), _json(others, root, above, left))
    if kinds == "array" and isinstance(items, dict):
        return pa.list_(_json(items, root, above, left))
    return _JSON.get(kinds, JSON) if isinstance(kinds, str) else JSON


# Decoded values, as pyarrow takes them for a type. What does not fit raises an error.


def decoded_columns(
    batch: pa.RecordBatch, decoders: Mapping[str, Decoder], types: Mapping[str, pa.DataType]
) -> list[pa.Array[Any]]:
    """Return columns of the decoded keys and values of `types`, and why others could not be decoded, of records in
    columns of `rows.SCHEMA`. They are null where a key or value is null, or names no schema."""
    headers = [[(h["key"].encode(), h["value"]) for h in row or ()] for row in batch.column("headers").to_pylist()]
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
    arrays = [column.array() for column in columns]  # before the errors, to which they add
    return [*arrays, pa.array(["; ".join(why) or None for why in errors], pa.string())]


MOST_DECODED = 1 << 30
"""Characters of JSON that the decoded records of a batch are at most: no further record of it is decoded then."""
_MOST_OBJECTS = 16 << 20
"""Characters of JSON that values are until they become a part of their column: Python's objects take several times as
much memory."""


class _DecodedColumn:
    """The decoded keys or values of a batch, added one after another. `errors` are lists by record, to which a record's
    is added."""

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
            self.add(_maker(self._kind, made.schema["type"] != "JSON")(made.value))
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
        self._values, self._size = [], 0


_MISFIT = (ValueError, TypeError, ArithmeticError, AttributeError, pa.ArrowException)


def _array(values: list[object], kind: pa.DataType, part: str, errors: list[list[str]]) -> pa.Array[Any]:
    """Return an array in which the values that do not fit are null, and add why."""
    try:
        return pa.array(values, kind)
    except _MISFIT:
        for n, value in enumerate(values):
            try:
                pa.array([value], kind)
            except _MISFIT as error:
                values[n] = None
                errors[n].append(f"{part}: it does not fit the column: {error}")
        return pa.array(values, kind)


@lru_cache(1000)
def _maker(kind: pa.DataType, exact: bool) -> Callable[[Any], object]:
    """`exact`: an object has no other fields than the type."""
    make = _inner(kind, exact)
    return lambda value: None if value is None else make(value)


def _inner(kind: pa.DataType, exact: bool) -> Callable[[Any], object]:
    if t.is_struct(kind):
        fields = {f.name: _maker(f.type, exact) for f in kind}

        def struct(value: dict[str, Json]) -> object:
            if exact and (others := value.keys() - fields.keys()):
                raise ValueError(f"it has no field {min(others)}")
            return {name: make(value.get(name)) for name, make in fields.items()}

        return struct
    if t.is_list(kind):
        item = _maker(kind.value_type, exact)
        return lambda value: [item(each) for each in _listed(value)]
    if t.is_map(kind):
        held = _maker(kind.item_type, exact)
        return lambda value: [(name, held(each)) for name, each in value.items()]
    if t.is_decimal(kind):
        return Decimal
    if t.is_integer(kind):
        return _whole
    simple: dict[pa.DataType, Callable[[Any], object]] = {
        JSON: lambda value: msgspec.json.encode(value).decode(),
        _TIME: datetime.fromisoformat,
        pa.date32(): date.fromisoformat,
        pa.binary(): base64.b64decode,
        pa.float32(): float,
        pa.float64(): float,
        pa.string(): lambda value: str(value) if type(value) is int else value,  # of an enum, without a name
    }
    return simple.get(kind, lambda value: value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("it is no array")
    return value


def _whole(value: Any) -> int:
    """Return an integer: of Protobuf, large ones are text."""
    number = int(value)
    if isinstance(value, bool) or (number != value and str(number) != value):
        raise TypeError(f"{value} is no integer")
    return number
