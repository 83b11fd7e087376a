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
    """What JSON can say of the data, and which schema it was read by."""

    value: Json
    schema: Mapping[str, Json]


class Undecoded(NamedTuple):
    why: str


Made = Decoded | Undecoded | None
"""None: a null, or data that names no schema."""


class Parts(NamedTuple):
    """What was made of a record's key and value."""

    key: Made = None
    value: Made = None


class Decoder(Protocol):
    def __call__(self, data: bytes, headers: Headers) -> Made:
        """Never raises for the data; `UnreachableError` where a registry can't be asked."""
        ...


class Registry(Protocol):
    def schema(self, wanted: int | str) -> Schema:
        """By id or GUID. `UndecodableError` where there is none, `UnreachableError` where nobody can be asked."""
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

    def _codec(self, wanted: int | str) -> Codec | Undecoded:
        with self._lock:
            if wanted not in self._codecs:
                try:
                    self._codecs[wanted] = codec_of(self._registry.schema(wanted))
                except UndecodableError as error:
                    self._codecs[wanted] = Undecoded(error.message)
                except RecursionError:
                    self._codecs[wanted] = Undecoded(
                        f"schema {wanted} stands on too many others, each on the next"
                    )
            return self._codecs[wanted]


def _payload(codec: Codec, rest: bytes, apart: bytes | None) -> Json:
    """Decodes `rest`, or what is `apart` from it: of Protobuf, behind the message's indexes."""
    if codec.kind != "PROTOBUF":
        return codec.decode(rest if apart is None else apart)
    indexes, behind = message_indexes(rest)
    return codec.decode(behind if apart is None else apart, indexes)
