"""Records of a metadata log, decoded and encoded by the table of schemas.

Every known record uses Kafka's flexible encoding: lengths are unsigned varints of the length plus one, where 0 is null,
and each struct ends in its tagged fields. A uuid becomes Kafka's text for it; other values become Python's own kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kbackup.kafka.metadata_log.cursor import Cursor, Output
from kbackup.kafka.metadata_log.schema import Field, Schema
from kbackup.kafka.metadata_log.schema_table import CONTROL_RECORDS, RECORDS

FRAME_VERSION = 1
UNKNOWN_TAGS = "unknown tagged fields"
"""The key in a struct's values for tagged fields that no schema has: tag to bytes. No field has such a name."""

_FIXED = {"int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}
_INTEGERS = ("int8", "int16", "uint16", "int32", "int64")


class Record(NamedTuple):
    """A metadata record, or a control record. `number` is its apiKey, or its type.

    `data` maps the names of fields to values. For a type or a version that is not known, it is the encoded fields,
    and `name` says "metadata record 99" where the type is not known.
    """

    name: str
    number: int
    version: int
    data: dict[str, Any] | bytes
    control: bool = False

    @property
    def known(self) -> bool:
        return isinstance(self.data, dict)


def record(name: str, data: dict[str, Any] | None = None, version: int = 0) -> Record:
    """Return a metadata record of a known type. Fields that are not given have Kafka's default."""
    number = next(number for number, schema in RECORDS.items() if schema.name == name)
    return Record(name, number, version, data or {})


def decode_record(cursor: Cursor) -> Record:
    """Decode the value of a metadata record: its frame and its fields, up to the cursor's end."""
    if (frame := cursor.unsigned()) != FRAME_VERSION:
        cursor.fail(f"a metadata record has frame version {frame}; {FRAME_VERSION} is known")
    number, version = cursor.unsigned(), cursor.unsigned()
    schema = RECORDS.get(number)
    name = f"metadata record {number}" if schema is None else schema.name
    return Record(name, number, version, _decode_whole(schema, version, cursor))


def decode_control(number: int, cursor: Cursor) -> Record:
    """Decode the value of a control record. Its first field, an int16, is its version."""
    schema = CONTROL_RECORDS.get(number)
    name = f"control record {number}" if schema is None else schema.name
    start = cursor.at
    version = cursor.number("int16")
    cursor.at = start
    return Record(name, number, version, _decode_whole(schema, version, cursor), control=True)


def encode_record(value: Record) -> bytes:
    """Return the value of a metadata record in the log. `ValueError` for fields that its version doesn't have."""
    out = Output()
    if not value.control:
        for number in (FRAME_VERSION, value.number, value.version):
            out.unsigned(number)
    if isinstance(value.data, bytes):
        out += value.data
    else:
        schema = (CONTROL_RECORDS if value.control else RECORDS)[value.number]
        _encode_struct(out, schema.fields, value.version, value.data, value.name)
    return bytes(out)


def _decode_whole(schema: Schema | None, version: int, cursor: Cursor) -> dict[str, Any] | bytes:
    if schema is None or not 0 <= version <= schema.newest:
        return cursor.take(cursor.remaining)
    data = _decode_struct(cursor, schema.fields, version)
    if cursor.remaining:
        cursor.fail(f"{cursor.remaining} bytes follow the last field of a {schema.name}")
    return data


def _decode_struct(cursor: Cursor, fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    present = [f for f in fields if f.since <= version]
    data = {f.name: f.default_value() if f.tag is not None else _decode(cursor, f, version) for f in present}
    tagged = {f.tag: f for f in present if f.tag is not None}
    for _ in range(cursor.unsigned()):
        tag = cursor.unsigned()
        part = cursor.sub_cursor(cursor.unsigned())
        field = tagged.get(tag)
        if field is None:
            data.setdefault(UNKNOWN_TAGS, {})[tag] = part.take(part.remaining)
            continue
        data[field.name] = _decode(part, field, version)
        if part.remaining:
            part.fail(f"{part.remaining} bytes follow the tagged field {field.name}")
    return data


def _decode(cursor: Cursor, field: Field, version: int) -> Any:
    kind = field.type.removeprefix("[]")
    if kind == field.type:
        return _decode_one(cursor, field, kind, version)
    count = _length(cursor, field, version)
    if count is None:
        return None
    if count * _FIXED.get(kind, 1) > cursor.remaining:
        cursor.fail(f"{field.name} has {count} elements, {cursor.remaining} bytes follow")
    return [_decode_one(cursor, field, kind, version) for _ in range(count)]


def _decode_one(cursor: Cursor, field: Field, kind: str, version: int) -> Any:
    if kind in _INTEGERS:
        return cursor.number(kind)
    if kind == "struct":
        return _decode_struct(cursor, field.fields, version)
    if kind in ("string", "bytes"):
        return _decode_sized(cursor, field, kind, version)
    simple: dict[str, Callable[[], Any]] = {"uuid": cursor.uuid, "float64": cursor.float64}
    return simple[kind]() if kind in simple else cursor.take(1) != b"\0"


def _decode_sized(cursor: Cursor, field: Field, kind: str, version: int) -> str | bytes | None:
    # an element of an array is never null: only the array is
    size = _length(cursor, field, version if kind == field.type else -1)
    if size is None:
        return None
    data = cursor.take(size)
    if kind == "bytes":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        cursor.fail(f"{field.name} is not UTF-8")


def _length(cursor: Cursor, field: Field, version: int) -> int | None:
    size = cursor.unsigned() - 1
    if size >= 0:
        return size
    if field.nullable is None or version < field.nullable:
        cursor.fail(f"{field.name} is null, which it can't be")
    return None


def _encode_struct(
    out: Output, fields: tuple[Field, ...], version: int, data: Mapping[str, Any], name: str
) -> None:
    names = {f.name for f in fields if f.since <= version}
    if foreign := sorted(data.keys() - names - {UNKNOWN_TAGS}):
        raise ValueError(f"{name}, version {version}, has no field {foreign[0]}")
    tagged: dict[int, bytes] = dict(data.get(UNKNOWN_TAGS, {}))
    for field in fields:
        if field.name not in names:
            continue
        value = data.get(field.name, field.default_value())
        if field.tag is None:
            _encode(out, field, version, value)
        elif value != field.default_value():
            part = Output()
            _encode(part, field, version, value)
            tagged[field.tag] = bytes(part)
    out.unsigned(len(tagged))
    for tag, content in sorted(tagged.items()):
        out.unsigned(tag)
        out.unsigned(len(content))
        out += content


def _encode(out: Output, field: Field, version: int, value: Any) -> None:
    kind = field.type.removeprefix("[]")
    if value is None:
        if field.nullable is None or version < field.nullable:
            raise ValueError(f"{field.name} can't be null in version {version}")
        out.unsigned(0)
    elif kind == field.type:
        _encode_one(out, field, kind, version, value)
    else:
        out.unsigned(len(value) + 1)
        for element in value:
            _encode_one(out, field, kind, version, element)


def _encode_one(out: Output, field: Field, kind: str, version: int, value: Any) -> None:
    if kind in _FIXED and kind != "uuid":
        out.number(kind, value)
    elif kind == "uuid":
        out.uuid(value)
    elif kind == "bool":
        out.append(bool(value))
    elif kind == "struct":
        _encode_struct(out, field.fields, version, value, field.name)
    else:
        data = value.encode() if kind == "string" else value
        out.unsigned(len(data) + 1)
        out += data
