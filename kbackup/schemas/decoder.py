"""Keys and values of records, decoded by the schema that each names or by one for all of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Codec, Headers, Json, Schema
from kbackup.schemas.codec import codec_of
from kbackup.schemas.frame import frame_of, in_front, message_indexes


class Decoded(NamedTuple):
    """The data as JSON, and the schema that decoded them."""

    value: Json
    schema: Mapping[str, Json]


class Undecoded(NamedTuple):
    why: str


Made = Decoded | Undecoded | None
"""None: a null, or data that names no schema."""


class DecodedRecord(NamedTuple):
    """The decoded key and value of a record."""

    key: Made = None
    value: Made = None


class Decoder(Protocol):
    def __call__(self, data: bytes, headers: Headers) -> Made:
        """Never raises for the data; `UnreachableError` where a registry can't be asked."""
        ...


class Registry(Protocol):
    def schema(self, schema_id: int | str) -> Schema:
        """Return the schema of an id or a GUID; `UndecodableError` if there is none, `UnreachableError` without an
        answer."""
        ...


class ByFile:
    """By one schema. Data may stand behind a registry's frame or not: where it does not fit as it is, what is behind
    such a frame may."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def __call__(self, data: bytes, headers: Headers) -> Made:
        try:
            return Decoded(self._codec.decode(data), {"type": self._codec.kind})
        except UndecodableError as error:
            frame = in_front(data)
            if frame is None:
                return Undecoded(error.message)
        try:
            return Decoded(_payload(self._codec, frame.rest, None), {"type": self._codec.kind})
        except UndecodableError as error:
            return Undecoded(error.message)


class ByRegistry:
    """By the schemas that a registry has. Each is asked for once, also one that is not there. Thread-safe."""

    def __init__(self, registry: Registry, header: bytes) -> None:
        self._registry, self._header = registry, header
        self._codecs: dict[int | str, Codec | Undecoded] = {}
        self._lock = threading.Lock()

    def __call__(self, data: bytes, headers: Headers) -> Made:
        try:
            frame = frame_of(data, headers, self._header)
            if frame is None:
                return None
            codec = self._codec(frame.schema)
            if isinstance(codec, Undecoded):
                return codec
            value = _payload(codec, frame.rest, data if frame.apart else None)
        except UndecodableError as error:
            return Undecoded(error.message)
        return Decoded(value, {"type": codec.kind, "id": frame.schema})

    def _codec(self, schema_id: int | str) -> Codec | Undecoded:
        with self._lock:
            if schema_id not in self._codecs:
                try:
                    self._codecs[schema_id] = codec_of(self._registry.schema(schema_id))
                except UndecodableError as error:
                    self._codecs[schema_id] = Undecoded(error.message)
                except RecursionError:
                    self._codecs[schema_id] = Undecoded(
                        f"schema {schema_id} stands on too many others, each on the next"
                    )
            return self._codecs[schema_id]


def _payload(codec: Codec, rest: bytes, apart: bytes | None) -> Json:
    """Decode `rest`, or the data `apart` from it; of Protobuf, `rest` begins with the message's indexes."""
    if codec.kind != "PROTOBUF":
        return codec.decode(rest if apart is None else apart)
    indexes, behind = message_indexes(rest)
    return codec.decode(behind if apart is None else apart, indexes)
