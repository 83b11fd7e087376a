"""Reading and writing of the values that Kafka's records are made of. All integers are big-endian."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from kbackup.errors import CorruptError
from kbackup.kafka.metadata_log.schema import Field, Schema
from kbackup.kafka.metadata_log.schema_table import CONTROL_RECORDS, RECORDS

HINT = "copy the file again from the controller; if it stays, take the one of another controller"

_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
_UUID_BYTES = 16
_LOW = 0x7F
_MORE = 0x80


class Cursor:
    """Takes values off the front of `data[at:end]`. `base` is the position of `data` in the file `name`.

    Every method raises `CorruptError` where the bytes end too early or are none of its kind.
    """

    def __init__(self, data: bytes, name: str, base: int = 0, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.name = name
        self.base = base
        self.at = at
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        return self.end - self.at

    def fail(self, problem: str) -> NoReturn:
        raise corrupt(self.name, self.base + self.at, problem)

    def take(self, size: int) -> bytes:
        start = self.at
        end = start + size
        if not start <= end <= self.end:
            self.fail(f"{size} bytes are expected, {self.remaining} follow")
        self.at = end
        return self.data[start:end]

    def sub_cursor(self, size: int) -> Cursor:
        """Take `size` bytes as a cursor of their own."""
        start = self.at
        self.take(size)
        return Cursor(self.data, self.name, self.base, start, self.at)

    def number(self, kind: str) -> int:
        form = _NUMBERS[kind]
        (value,) = form.unpack(self.take(form.size))
        return int(value)

    def float64(self) -> float:
        (value,) = _NUMBERS["float64"].unpack(self.take(8))
        return float(value)

    def uuid(self) -> str:
        return base64.urlsafe_b64encode(self.take(_UUID_BYTES)).decode().rstrip("=")

    def unsigned(self, bits: int = 32) -> int:
        """Take a number of 7 bits a byte, the lowest first."""
        if self.at < self.end and (byte := self.data[self.at]) <= _LOW:  # nearly all are that small
            self.at += 1
            return byte
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & _LOW) << shift
            shift += 7
            if not byte & _MORE:
                break
            if shift >= bits:
                self.fail(f"a number of variable length has more than {bits} bits")
        if value >> bits:
            self.fail(f"a number of variable length has more than {bits} bits")
        return value

    def signed(self, bits: int = 32) -> int:
        """Take such a number in zigzag form: 0, -1, 1, -2, …"""
        value = self.unsigned(bits)
        return (value >> 1) ^ -(value & 1)


class Output(bytearray):
    """The opposite of `Cursor`."""

    def number(self, kind: str, value: float) -> None:
        self += _NUMBERS[kind].pack(value)

    def uuid(self, text: str) -> None:
        data = base64.urlsafe_b64decode(text + "==")
        if len(data) != _UUID_BYTES:
            raise ValueError(f"{text!r} is no id of Kafka's: 22 characters of URL-safe base64")
        self += data

    def unsigned(self, value: int) -> None:
        while value > _LOW:
            self.append(value & _LOW | _MORE)
            value >>= 7
        self.append(value)

    def signed(self, value: int) -> None:
        self.unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def corrupt(name: str, position: int, problem: str) -> CorruptError:
    return CorruptError(f"{name}: byte {position}: {problem}", HINT)


# Records of a metadata log, decoded and encoded by the table of schemas.
#
# Every known record uses Kafka's flexible encoding: lengths are unsigned varints of the length plus one, where 0 is
# null, and each struct ends in its tagged fields. A uuid becomes Kafka's text for it; other values become Python's
# own kinds.


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
