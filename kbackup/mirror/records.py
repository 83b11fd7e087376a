"""Records of MirrorMaker 2's internal topics, byte for byte as its Java classes write and read them.

All integers are big-endian; a string is its length in bytes (int16) and UTF-8. A key has no version. The value of a
heartbeat or a checkpoint begins with its version, 0 (int16). No value is ever null: Java's `RemoteClusterUtils` fails
at a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Headers
from kbackup.schemas.decoder import Decoded, Decoder, Made, Undecoded
from kbackup.types import TopicPartition

Fields = Mapping[str, Literal["string", "int16", "int32", "int64"]]
"""Fields of a key or a value in their order, with the names that Java's schemas give them."""

VERSION = 0

_NUMBERS = {"int16": ">h", "int32": ">i", "int64": ">q"}
_LONGEST = 0x7FFF  # bytes of a string


class RecordFields(NamedTuple):
    """The fields of the key and value of a kind of record."""

    kind: str
    key: Fields
    value: Fields


HEARTBEAT = RecordFields(
    "heartbeat",
    {"sourceClusterAlias": "string", "targetClusterAlias": "string"},
    {"version": "int16", "timestamp": "int64"},
)
CHECKPOINT = RecordFields(
    "checkpoint",
    {"group": "string", "topic": "string", "partition": "int32"},
    {"version": "int16", "upstreamOffset": "int64", "offset": "int64", "metadata": "string"},
)
OFFSET_SYNC = RecordFields(
    "offset sync", {"topic": "string", "partition": "int32"}, {"upstreamOffset": "int64", "offset": "int64"}
)


class Heartbeat(NamedTuple):
    """A sign of life of the flow `source->target`; `timestamp` in ms since the epoch."""

    source: str
    target: str
    timestamp: int

    @property
    def key(self) -> bytes:
        return _encode(HEARTBEAT.key, self.source, self.target)

    @property
    def value(self) -> bytes:
        return _encode(HEARTBEAT.value, VERSION, self.timestamp)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        source, target = decode_key(HEARTBEAT, key).values()
        return cls(source, target, decode_value(HEARTBEAT, value)["timestamp"])


class Checkpoint(NamedTuple):
    """A group's committed offset in the source (`upstream`) and the same position in the target (`offset`). `tp` is
    the target's partition."""

    group: str
    tp: TopicPartition
    upstream: int
    offset: int
    metadata: str

    @property
    def key(self) -> bytes:
        return _encode(CHECKPOINT.key, self.group, *self.tp)

    @property
    def value(self) -> bytes:
        return _encode(CHECKPOINT.value, VERSION, self.upstream, self.offset, self.metadata)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        group, *tp = decode_key(CHECKPOINT, key).values()
        _, *rest = decode_value(CHECKPOINT, value).values()
        return cls(group, TopicPartition(*tp), *rest)


class OffsetSync(NamedTuple):
    """The record at offset `upstream` of the source's partition `tp` is at `offset` of the target's."""

    tp: TopicPartition
    upstream: int
    offset: int

    @property
    def key(self) -> bytes:
        return _encode(OFFSET_SYNC.key, *self.tp)

    @property
    def value(self) -> bytes:
        return _encode(OFFSET_SYNC.value, self.upstream, self.offset)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        return cls(TopicPartition(*decode_key(OFFSET_SYNC, key).values()), *decode_value(OFFSET_SYNC, value).values())


def fits(text: str) -> bool:
    """Return whether a string can stand in a record."""
    return len(text.encode()) <= _LONGEST


def decode_key(record: RecordFields, data: bytes) -> dict[str, Any]:
    """Return the fields of a key by name. `UndecodableError` for bytes that are none."""
    return _decode(record.key, data, f"key of a {record.kind}")


def decode_value(record: RecordFields, data: bytes) -> dict[str, Any]:
    """Return the fields of a value by name. `UndecodableError` for bytes that are none, or of another version."""
    fields = _decode(record.value, data, f"value of a {record.kind}")
    if fields.get("version", VERSION) != VERSION:
        raise UndecodableError(f"value of a {record.kind}: unknown version {fields['version']}")
    return fields


def _encode(fields: Fields, *values: str | int) -> bytes:
    parts: list[bytes] = []
    for kind, value in zip(fields.values(), values, strict=True):
        if isinstance(value, str):
            data = value.encode()
            parts += struct.pack(">h", len(data)), data
        else:
            parts.append(struct.pack(_NUMBERS[kind], value))
    return b"".join(parts)


def _decode(fields: Fields, data: bytes, name: str) -> dict[str, Any]:
    """Take the fields off the front of `data`. What follows the last one is ignored, as Java does."""
    values: dict[str, Any] = {}
    at = 0
    try:
        for field, kind in fields.items():
            form = _NUMBERS["int16" if kind == "string" else kind]
            (number,) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
            if kind != "string":
                values[field] = number
                continue
            if not 0 <= number <= len(data) - at:
                raise UndecodableError(f"{name}: {field} has {number} bytes, {len(data) - at} follow")
            values[field] = data[at : at + number].decode()
            at += number
    except struct.error:
        raise UndecodableError(f"{name}: {len(data)} bytes are too few") from None
    except UnicodeDecodeError:
        raise UndecodableError(f"{name}: {field} is not UTF-8") from None
    return values


def decoder_of(topic: str, part: str) -> Decoder | None:
    """Return the decoder for the `key` or the `value` of an internal topic's records, whatever the separator in its
    name; None for any other topic."""
    fields: RecordFields | None = None
    if topic.endswith("internal"):
        if topic.startswith("mm2-offset-syncs"):
            fields = OFFSET_SYNC
        elif "checkpoints" in topic:
            fields = CHECKPOINT
    elif topic.endswith("heartbeats"):
        fields = HEARTBEAT
    return partial(_made, fields, part) if fields is not None else None


def _made(record: RecordFields, part: str, data: bytes, headers: Headers) -> Made:
    try:
        value: dict[str, Any] = (decode_key if part == "key" else decode_value)(record, data)
    except UndecodableError as error:
        return Undecoded(error.message)
    return Decoded(value, {"type": "MM2", "record": record.kind})
