"""Decode keys and values by schemas from files or a registry, framed as Confluent's serializers do."""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.base import Codec, Headers, Json, Schema, SchemaType, misfit, missing, of_others


def codec_of(schema: Schema) -> Codec:
    """Return the codec of a schema. `UndecodableError` for an invalid schema, `UsageError` if its library is not
    installed."""
    try:
        if schema.kind == "AVRO":
            from kbackup.schemas.avro import AvroCodec

            with of_others(schema.name, "Avro schema"):
                return AvroCodec(schema)
        if schema.kind == "PROTOBUF":
            from kbackup.schemas.protobuf import protobuf_codec

            with of_others(schema.name, "Protobuf schema"):
                return protobuf_codec(schema)
        with of_others(schema.name, "JSON Schema"):
            return JsonCodec(schema)
    except ImportError as error:
        raise missing(error) from error


class JsonCodec:
    """JSON that a JSON Schema describes is shown as it is. It is not validated by the schema: showing it needs no
    schema, and a schema and a record can be made for each other so that a validation does not end."""

    kind: SchemaType = "JSON"

    def __init__(self, schema: Schema) -> None:
        self.schema = msgspec.json.decode(schema.text)
        if not isinstance(self.schema, dict | bool):
            raise TypeError("it is neither an object nor a boolean")

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        try:
            value: Json = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise misfit("JSON", error) from error
        return value

    def fits(self, data: bytes, indexes: Sequence[int] | None = None) -> bool:
        try:
            self.decode(data)
        except UndecodableError:
            return False
        return True


# The frames that schema registries' serializers put around data, to name its schema.
#
# In front of the data: a byte 0, the schema's id as four bytes (big-endian), and for Protobuf the message's indexes.
# Or in a header of its own: the same, or a byte 1 and the schema's GUID as sixteen bytes.
# (docs.confluent.io, "Formats, Serializers, and Deserializers": wire format.)

HEADERS = {"key": b"__key_schema_id", "value": b"__value_schema_id"}

_MOST_INDEXES = 64  # levels that messages are nested; a parser's own limit is 100


class SchemaFrame(NamedTuple):
    """`schema` is an id or a GUID; `rest` is what follows it, in the data or (`apart`) in the header."""

    schema: int | str
    rest: bytes
    apart: bool = False


def frame_of(data: bytes, headers: Headers, header: bytes) -> SchemaFrame | None:
    """Return the frame that names a schema; None if no schema is named. `UndecodableError` for an invalid header."""
    for name, value in headers:
        if name == header and value is not None:
            if len(value) >= 17 and value[0] == 1:
                guid = uuid.UUID(bytes=value[1:17])
                return SchemaFrame(str(guid), value[17:], apart=True)
            frame = in_front(value)
            if frame is None:
                raise UndecodableError(f"header {header.decode()} names no schema")
            return frame._replace(apart=True)
    return in_front(data)


def in_front(data: bytes) -> SchemaFrame | None:
    """Return the frame at the beginning of data.

    No registry gives the id 0, so that a number below 2^24 as eight bytes is no frame. A larger number, such as a time
    in milliseconds, can't be told from an id and three bytes of data (Avro's of a text of two letters);
    `--decode value`, or a schema that is not found, settles it."""
    if len(data) < 5 or data[0] != 0:
        return None
    (number,) = struct.unpack_from(">I", data, 1)
    return SchemaFrame(number, data[5:]) if 0 < number < 1 << 31 else None


def message_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the indexes that Protobuf data begins with (their count and each of them as zigzag varints; a count of 0
    stands for the first message alone), and what follows."""
    count, at = _varint(data, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise UndecodableError(f"{count} message indexes can't be")
    indexes = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return tuple(indexes) or (0,), data[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at + n + 1
    raise UndecodableError("the message indexes are cut off")


# Schemas in files of the user's own.

_KINDS = ".avsc (Avro), .proto, .desc or .pb (Protobuf: text, or a set that protoc wrote), .json (JSON Schema)"


def file_codec(path: Path, message: str | None = None) -> Codec:
    """Return a codec by the file's ending; `message` is for Protobuf. `UsageError` for a file that can't be used. An
    Avro type that the file does not define is looked for beside it, in `<its full name>.avsc`; an import of a .proto in
    its folder, and among Google's own."""
    kind = path.suffix.lower()
    if message is not None and kind not in (".proto", ".desc", ".pb"):
        raise UsageError(f"{path} has no message {message}", "name a message only with a Protobuf file")
    try:
        if kind in (".proto", ".desc", ".pb"):
            return _protobuf_codec(path, kind, message)
        if kind == ".avsc":
            text = path.read_text(encoding="utf-8")
            return codec_of(Schema("AVRO", text, _avro_files_beside(path), str(path)))
        if kind == ".json":
            text = path.read_text(encoding="utf-8")
            return codec_of(Schema("JSON", text, (), str(path)))
    except ImportError as error:
        raise missing(error) from error
    except UnicodeDecodeError:
        raise UsageError(f"schema {path} is not UTF-8", f"name a file {_KINDS}") from None
    except OSError as error:
        raise UsageError(f"schema {path}: {(error.strerror or str(error)).lower()}", "name a readable file") from error
    except UndecodableError as error:
        raise UsageError(error.message, f"name a file {_KINDS}") from error
    raise UsageError(f"{path} is no schema by its name", f"name a file {_KINDS}")


def _avro_files_beside(path: Path) -> tuple[tuple[str, str], ...]:
    """Return (name without ending, text) of the other Avro files in the same folder."""
    files: list[tuple[str, str]] = []
    for other in sorted(path.parent.glob("*.avsc")):
        if other != path:
            # A file that is no text of UTF-8 matters only if the schema names it.
            text = other.read_text(encoding="utf-8", errors="replace")
            files.append((other.stem, text))
    return tuple(files)


def _protobuf_codec(path: Path, kind: str, message: str | None) -> Codec:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from kbackup.schemas.protobuf import ProtobufCodec, compiled

    data = path.read_bytes()  # before protoc reads it, whose words for an unreadable file are others
    if kind == ".proto":
        with of_others(str(path), "Protobuf schema"):
            files = compiled(path.parent, path.name, str(path))
            return ProtobufCodec(files, path.name, message)
    with of_others(str(path), "set of file descriptors that is whole"):
        files = FileDescriptorSet.FromString(data)
        main = files.file[-1].name  # protoc writes imports first
        return ProtobufCodec(files, main, message)


# Keys and values of records, decoded by the schema that each names or by one schema for all of them.


class Decoded(NamedTuple):
    """The data as JSON, and the schema that decoded them."""

    value: Json
    schema: Mapping[str, Json]


class Undecoded(NamedTuple):
    why: str


Made = Decoded | Undecoded | None  # none: a null, or data that names no schema.


class DecodedRecord(NamedTuple):
    """The decoded key and value of a record."""

    key: Made = None
    value: Made = None


Decoder = Callable[[bytes, Headers], Made]
"""Decodes data of a record with these headers. It never raises for the data; `UnreachableError` if a registry can't be
asked."""


class Registry(Protocol):
    def schema(self, schema_id: int | str) -> Schema:
        """Return the schema of an id or a GUID; `UndecodableError` if there is none, `UnreachableError` without an
        answer."""
        ...


class ByFile:
    """Decodes by one schema. Data may stand behind a registry's frame or not: if the data do not fit as they are, what
    is behind the frame may."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def __call__(self, data: bytes, headers: Headers) -> Made:
        schema: dict[str, Json] = {"type": self._codec.kind}
        try:
            return Decoded(self._decode(data), schema)
        except UndecodableError as error:
            return Undecoded(error.message)

    def _decode(self, data: bytes) -> Json:
        try:
            return self._codec.decode(data)
        except UndecodableError:
            frame = in_front(data)
            if frame is None:
                raise
        return payload_value(self._codec, frame.rest, None)


class FramedPayload(NamedTuple):
    """What a serializer wrote: the id or GUID of a schema and its codec, the `front` of the data with what names the
    schema (empty if a header does), and the `payload` behind it. Of Protobuf, `indexes` select the message."""

    schema: int | str
    codec: Codec
    front: bytes
    payload: bytes
    indexes: tuple[int, ...] | None


class ByRegistry:
    """Decodes by the schemas that a registry has. Each schema is asked for once, even a missing one. Thread-safe."""

    def __init__(self, registry: Registry, header: bytes) -> None:
        self._registry, self._header = registry, header
        self._codecs: dict[int | str, Codec | Undecoded] = {}
        self._lock = threading.Lock()

    def __call__(self, data: bytes, headers: Headers) -> Made:
        try:
            frame = frame_of(data, headers, self._header)
            if frame is None:
                return None
            codec = self.codec(frame.schema)
            if isinstance(codec, Undecoded):
                return codec
            apart = data if frame.apart else None
            value = payload_value(codec, frame.rest, apart)
        except UndecodableError as error:
            return Undecoded(error.message)
        return Decoded(value, {"type": codec.kind, "id": frame.schema})

    def payload(self, data: bytes, headers: Headers) -> FramedPayload | None:
        """Return what a frame of these data names and holds, None without a frame. `UndecodableError` for a schema that
        is not there, and for data that can't stand behind a frame."""
        frame = frame_of(data, headers, self._header)
        if frame is None:
            return None
        codec = self.codec(frame.schema)
        if isinstance(codec, Undecoded):
            raise UndecodableError(codec.why)
        apart = data if frame.apart else None
        payload, indexes = _parts_of(codec, frame.rest, apart)
        front = data[: len(data) - len(payload)]
        return FramedPayload(frame.schema, codec, front, payload, indexes)

    def codec(self, schema_id: int | str) -> Codec | Undecoded:
        """Return what decodes by a schema, or why nothing does."""
        with self._lock:
            if schema_id not in self._codecs:
                made: Codec | Undecoded
                try:
                    made = codec_of(self._registry.schema(schema_id))
                except UndecodableError as error:
                    made = Undecoded(error.message)
                except RecursionError:
                    made = Undecoded(f"schema {schema_id} stands on too many others, each on the next")
                self._codecs[schema_id] = made
            return self._codecs[schema_id]


def payload_value(codec: Codec, rest: bytes, apart: bytes | None) -> Json:
    """Decode `rest`, or the data `apart` from it; of Protobuf, `rest` begins with the message's indexes."""
    return codec.decode(*_parts_of(codec, rest, apart))


def payload_fits(codec: Codec, rest: bytes, apart: bytes | None) -> bool:
    """Return whether what stands behind a frame, or `apart` from it, is what a serializer writes by this codec's
    schema."""
    try:
        data, indexes = _parts_of(codec, rest, apart)
    except UndecodableError:
        return False
    return codec.fits(data, indexes)


def _parts_of(codec: Codec, rest: bytes, apart: bytes | None) -> tuple[bytes, tuple[int, ...] | None]:
    """Return the data to decode, and the message's indexes, which only Protobuf has."""
    if codec.kind != "PROTOBUF":
        return (rest if apart is None else apart), None
    indexes, behind = message_indexes(rest)
    return (behind if apart is None else apart), indexes


class NamedSchemas:
    """The schemas that frames in the records of a topic name."""

    def __init__(self, parts: Mapping[str, ByRegistry]) -> None:
        self._parts = parts

    def payload(self, part: str, data: bytes, headers: Headers) -> FramedPayload | None:
        """Return what a frame of a key or a value (`part`) names and holds, as `ByRegistry.payload` does."""
        return self._parts[part].payload(data, headers)
