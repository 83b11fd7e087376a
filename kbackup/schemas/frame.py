"""The frames that schema registries' serializers put around data, to name its schema.

In front of the data: a byte 0, the schema's id as four bytes (big-endian), and for Protobuf the message's indexes.
Or in a header of its own: the same, or a byte 1 and the schema's GUID as sixteen bytes.
(docs.confluent.io, "Formats, Serializers, and Deserializers": wire format.)
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Headers

HEADERS = {"key": b"__key_schema_id", "value": b"__value_schema_id"}

_MOST_INDEXES = 64  # levels that messages are nested; a parser's own limit is 100


class Frame(NamedTuple):
    """`schema` is an id or a GUID; `rest` what follows it, in the data or (`apart`) in the header."""

    schema: int | str
    rest: bytes
    apart: bool = False


def frame_of(data: bytes, headers: Headers, header: bytes) -> Frame | None:
    """Return the frame that names a schema; None where no schema is named. `UndecodableError` for an invalid header."""
    for name, value in headers:
        if name == header and value is not None:
            frame = in_front(value) or _guid(value)
            if frame is None:
                raise UndecodableError(f"header {header.decode()} names no schema")
            return frame._replace(apart=True)
    return in_front(data)


def in_front(data: bytes) -> Frame | None:
    """Return the frame at the beginning of data. No registry gives the id 0, so that a number below 2^24 as eight bytes
    is no frame. A larger number, such as a time in milliseconds, can't be told from an id and three bytes of data
    (Avro's of a text of two letters); `--decode value`, or a schema that is not found, settles it."""
    if len(data) < 5 or data[0] != 0:
        return None
    (number,) = struct.unpack_from(">I", data, 1)
    return Frame(number, data[5:]) if 0 < number < 1 << 31 else None


def _guid(data: bytes) -> Frame | None:
    if len(data) < 17 or data[0] != 1:
        return None
    return Frame(str(uuid.UUID(bytes=data[1:17])), data[17:])


def message_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The indexes that Protobuf data begins with (their count and each of them as zigzag varints; a count of 0 stands
    for the first message alone), and what follows."""
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
