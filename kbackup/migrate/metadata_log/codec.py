"""Records of a metadata log, decoded and encoded by the tables in records.json.

The tables come from Kafka's own definitions. Every known record uses Kafka's flexible encoding: lengths are unsigned
varints of the length plus one, where 0 is null, and each struct ends in its tagged fields. All integers are
big-endian. A uuid becomes Kafka's text for it; other values become Python's own types.

kafka-python reads such definitions too, but its codec takes null and cut-off text for values, loses tagged fields that
it doesn't know, and fails at records without fields.
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from kbackup.kafka.cursor import Cursor, Output

FRAME_VERSION = 1
UNKNOWN_TAGS = "unknown tagged fields"
"""The key in a struct's values for tagged fields that no schema has: tag to bytes. No field has such a name."""

_VERSION = struct.Struct(">h")
_DEFAULTS: dict[str, Any] = {"bool": False, "bytes": b"", "float64": 0.0, "string": "", "uuid": "A" * 22}


class SchemaField(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field. `type` is int8, int16, uint16, int32, int64, float64, bool, string, bytes, uuid or struct; `[]`
    before it makes it an array.

    `since` is the first version that has the field, `nullable` the first version where it may be null (None: never).
    A field with a `tag` stands in the tagged section, and only where it differs from `default`. `fields` are those of
    a struct."""

    name: str
    type: str
    since: int = 0
    nullable: int | None = None
    tag: int | None = None
    default: Any = msgspec.UNSET
    fields: tuple[SchemaField, ...] = ()

    def default_value(self) -> Any:
        """Return the value that stands for an absent field. Each of Kafka's types has a default of its own."""
        if self.default is not msgspec.UNSET:
            return self.default
        if self.type.startswith("[]"):
            return []
        return {} if self.type == "struct" else _DEFAULTS.get(self.type, 0)


class RecordSchema(msgspec.Struct, frozen=True):
    """A record's name in Kafka, the newest version that is known, and its fields. Version 0 is always the oldest."""

    name: str
    newest: int
    fields: tuple[SchemaField, ...]


_TABLES = msgspec.json.decode(
    resources.files(__package__).joinpath("records.json").read_bytes(), type=dict[str, dict[int, RecordSchema]]
)
RECORDS, CONTROL_RECORDS = _TABLES["metadata"], _TABLES["control"]
"""The schemas of metadata records by apiKey, and of control records by type."""


class MetadataRecord(NamedTuple):
    """A metadata record, or a control record. `number` is its apiKey, or its type.

    `data` maps the names of fields to values. For a type or a version that is not known, it is the encoded fields,
    and `name` says "metadata record 99" where the type is not known."""

    name: str
    number: int
    version: int
    data: dict[str, Any] | bytes
    control: bool = False

    @property
    def known(self) -> bool:
        return isinstance(self.data, dict)


def record(name: str, data: dict[str, Any] | None = None, version: int = 0) -> MetadataRecord:
    """Return a metadata record of a known type. Fields that are not given have Kafka's default."""
    number = next(number for number, schema in RECORDS.items() if schema.name == name)
    return MetadataRecord(name, number, version, data or {})


def decode_record(cursor: Cursor) -> MetadataRecord:
    """Decode the value of a metadata record: its frame and its fields, up to the cursor's end."""
    frame = cursor.unsigned()
    if frame != FRAME_VERSION:
        cursor.fail(f"a metadata record has frame version {frame}; {FRAME_VERSION} is known")
    number = cursor.unsigned()
    version = cursor.unsigned()
    return _decode(cursor, number, version, control=False)


def decode_control(number: int, cursor: Cursor) -> MetadataRecord:
    """Decode the value of a control record. Its first field, an int16, is its version."""
    start = cursor.at
    (version,) = cursor.unpack(_VERSION)
    cursor.at = start
    return _decode(cursor, number, version, control=True)


def _decode(cursor: Cursor, number: int, version: int, control: bool) -> MetadataRecord:
    schemas = CONTROL_RECORDS if control else RECORDS
    schema = schemas.get(number)
    if schema is None or not 0 <= version <= schema.newest:
        kind = "control" if control else "metadata"
        name = schema.name if schema is not None else f"{kind} record {number}"
        return MetadataRecord(name, number, version, cursor.take(cursor.remaining), control)
    data = _codec_of(number, version, control).read(cursor)
    cursor.finish(f"the last field of a {schema.name}")
    return MetadataRecord(schema.name, number, version, data, control)


def encode_record(value: MetadataRecord) -> bytes:
    """Return the value of a record in the log. `ValueError` for fields that its version doesn't have."""
    out = Output()
    if not value.control:
        for number in (FRAME_VERSION, value.number, value.version):
            out.unsigned(number)
    if isinstance(value.data, bytes):
        out += value.data
    else:
        _codec_of(value.number, value.version, value.control).write(out, value.data)
    return bytes(out)


# Codecs of values.


class _Codec(NamedTuple):
    """Reads a value from a cursor, and writes one to an output. A value has `least` bytes or more."""

    read: Callable[[Cursor], Any]
    write: Callable[[Output, Any], None]
    least: int = 1


@functools.cache
def _codec_of(number: int, version: int, control: bool) -> _Codec:
    schemas = CONTROL_RECORDS if control else RECORDS
    schema = schemas[number]
    return _struct(schema.name, schema.fields, version)


def _struct(name: str, fields: tuple[SchemaField, ...], version: int) -> _Codec:
    present: list[tuple[SchemaField, _Codec]] = []
    plain: list[tuple[str, _Codec, SchemaField]] = []
    # Tagged fields come after all others, and each may be left out.
    tagged: dict[int, tuple[SchemaField, _Codec]] = {}
    for field in fields:
        if field.since > version:
            continue
        codec = _field(field, version)
        present.append((field, codec))
        if field.tag is None:
            plain.append((field.name, codec, field))
        else:
            tagged[field.tag] = (field, codec)
    known = {field.name for field, _ in present}
    known.add(UNKNOWN_TAGS)

    def read(cursor: Cursor) -> dict[str, Any]:
        data: dict[str, Any] = {name: codec.read(cursor) for name, codec, _ in plain}
        for field, _ in tagged.values():
            data[field.name] = field.default_value()
        for _ in range(cursor.unsigned()):
            tag = cursor.unsigned()
            size = cursor.unsigned()
            part = cursor.sub_cursor(size)
            if tag in tagged:
                field, codec = tagged[tag]
                data[field.name] = codec.read(part)
                part.finish(f"the tagged field {field.name}")
            else:
                data.setdefault(UNKNOWN_TAGS, {})[tag] = part.take(part.remaining)
        return data

    def write(out: Output, value: dict[str, Any]) -> None:
        unknown = sorted(value.keys() - known)
        if unknown:
            raise ValueError(f"{name}, version {version}, has no field {unknown[0]}")
        for field_name, codec, field in plain:
            field_value = value[field_name] if field_name in value else field.default_value()
            codec.write(out, field_value)
        contents: dict[int, bytes] = dict(value.get(UNKNOWN_TAGS, {}))
        for tag, (field, codec) in tagged.items():
            # Kafka writes a tagged field only where it differs from its default.
            default = field.default_value()
            if value.get(field.name, default) != default:
                part = Output()
                codec.write(part, value[field.name])
                contents[tag] = bytes(part)
        out.unsigned(len(contents))
        for tag, content in sorted(contents.items()):
            out.unsigned(tag)
            out.unsigned(len(content))
            out += content

    return _Codec(read, write)


def _field(field: SchemaField, version: int) -> _Codec:
    """Return the codec of a field in one version of its record."""
    kind = field.type.removeprefix("[]")
    is_array = kind != field.type
    nullable = field.nullable is not None and field.nullable <= version
    if kind == "struct":
        one = _struct(field.name, field.fields, version)
    elif kind in _SIMPLE:
        one = _SIMPLE[kind]
    else:  # an element of an array is never null: only the array is
        one = _bytes(field.name, nullable and not is_array, is_text=kind == "string")
    return _array(field.name, nullable, one) if is_array else one


def _fixed(form: str) -> _Codec:
    """Numbers and booleans, by a format of `struct`."""
    packed = struct.Struct(">" + form)

    def read(cursor: Cursor) -> Any:
        (value,) = cursor.unpack(packed)
        return value

    def write(out: Output, value: Any) -> None:
        out += packed.pack(value)

    return _Codec(read, write, packed.size)


def _read_uuid(cursor: Cursor) -> str:
    text = base64.urlsafe_b64encode(cursor.take(16)).decode()
    return text.rstrip("=")  # Kafka writes ids without padding


def _write_uuid(out: Output, value: str) -> None:
    data = base64.urlsafe_b64decode(value + "==")
    if len(data) != 16:
        raise ValueError(f"{value!r} is no id of Kafka's: 22 characters of URL-safe base64")
    out += data


def _sized(
    name: str, nullable: bool, read: Callable[[Cursor, int], Any], write: Callable[[Output, Any], None]
) -> _Codec:
    """A value after its length plus one; 0 is null."""

    def read_value(cursor: Cursor) -> Any:
        size = cursor.unsigned()
        if size:
            return read(cursor, size - 1)
        if not nullable:
            cursor.fail(f"{name} is null, which it can't be")
        return None

    def write_value(out: Output, value: Any) -> None:
        if value is not None:
            write(out, value)
        elif nullable:
            out.unsigned(0)
        else:
            raise ValueError(f"{name} can't be null")

    return _Codec(read_value, write_value)


def _bytes(name: str, nullable: bool, is_text: bool) -> _Codec:
    def read(cursor: Cursor, size: int) -> bytes | str:
        data = cursor.take(size)
        try:
            return data.decode() if is_text else data
        except UnicodeDecodeError:
            cursor.fail(f"{name} is not UTF-8")

    def write(out: Output, value: Any) -> None:
        data = value.encode() if is_text else value
        out.unsigned(len(data) + 1)
        out += data

    return _sized(name, nullable, read, write)


def _array(name: str, nullable: bool, element: _Codec) -> _Codec:
    def read(cursor: Cursor, size: int) -> list[Any]:
        # Before a list is made: a forged number of elements would take all memory.
        if size * element.least > cursor.remaining:
            cursor.fail(f"{name} has {size} elements, {cursor.remaining} bytes follow")
        return [element.read(cursor) for _ in range(size)]

    def write(out: Output, value: list[Any]) -> None:
        out.unsigned(len(value) + 1)
        for each in value:
            element.write(out, each)

    return _sized(name, nullable, read, write)


_FORMS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}
_SIMPLE = {kind: _fixed(form) for kind, form in _FORMS.items()}
_SIMPLE["uuid"] = _Codec(_read_uuid, _write_uuid, 16)
