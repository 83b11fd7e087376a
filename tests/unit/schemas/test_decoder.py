"""Which schema a record names, and what is made of its key and value by it."""

from __future__ import annotations

import io
import json
import struct
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from confluent_kafka.schema_registry.common.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Schema
from kbackup.schemas.decoder import (
    HEADERS,
    ByFile,
    ByRegistry,
    Decoded,
    SchemaFrame,
    Undecoded,
    codec_of,
    frame_of,
    in_front,
    message_indexes,
)

GUID = "12345678-1234-5678-1234-567812345678"
PROTO = 'syntax = "proto3"; message A { string a = 1; message B { string b = 1; } } message C { string c = 1; }'


@dataclass
class Known:
    """A registry of these schemas; what it was asked for."""

    schemas: dict[int | str, Schema]
    asked: list[int | str] = field(default_factory=list)

    def schema(self, identity: int | str) -> Schema:
        self.asked.append(identity)
        if identity not in self.schemas:
            raise UndecodableError(f"the registry has no schema {identity}")
        return self.schemas[identity]


def registry() -> Known:
    return Known(
        {
            1: Schema("AVRO", '"string"'),
            2: Schema("PROTOBUF", PROTO),
            3: Schema("JSON", '{"type": "object"}'),
            4: Schema("AVRO", "{"),
            GUID: Schema("PROTOBUF", PROTO),
        }
    )


@given(
    st.integers(1, 2**31 - 1),
    st.none() | st.just([0]) | st.lists(st.integers(0, 2**28), min_size=1, max_size=5),
    st.binary(max_size=9),
)
def test_frames_are_those_of_the_serializers(number: int, indexes: list[int] | None, rest: bytes) -> None:
    head = SchemaId("PROTOBUF", number, None, indexes).id_to_bytes()
    frame = in_front(head + rest)
    assert frame is not None
    assert frame.schema == number
    if indexes is None:
        assert frame.rest == rest
    else:
        assert message_indexes(frame.rest) == (tuple(indexes), rest)


@given(st.binary(max_size=20))
def test_any_bytes_behind_a_frame(data: bytes) -> None:
    """The decoder reads the same values as the serializers' own library."""
    with suppress(UndecodableError):
        found = message_indexes(data)
        stream = io.BytesIO(data)
        assert found == (tuple(SchemaId._read_index_array(stream)), stream.read())


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", b"\0\0\0\0\0\0\0\x01", b"\0\xff\xff\xff\xff", b"key-1", b"\x01abcdef"]
)
def test_values_without_a_frame(data: bytes) -> None:
    assert in_front(data) is None


def test_a_time_as_eight_bytes_looks_like_a_frame() -> None:
    """An id and three bytes of data are the same bytes; it is shown as it is, unless there is such a schema."""
    moment = struct.pack(">q", 1_770_000_000_000)
    assert in_front(moment) == SchemaFrame(1_770_000_000_000 >> 24, moment[5:])
    found = ByRegistry(registry(), HEADERS["key"])(moment, ())
    assert found == Undecoded(f"the registry has no schema {1_770_000_000_000 >> 24}")


def test_a_header_names_the_schema_of_a_value() -> None:
    header = HEADERS["value"]
    guid = SchemaId("AVRO", guid=GUID).guid_to_bytes()
    assert frame_of(b"data", [(b"other", b"x"), (header, guid)], header) == SchemaFrame(GUID, b"", apart=True)
    assert frame_of(b"data", [(header, b"\0\0\0\0\x07")], header) == SchemaFrame(7, b"", apart=True)
    assert frame_of(b"data", [(HEADERS["key"], guid), (header, None)], header) is None
    with pytest.raises(UndecodableError, match="header __value_schema_id names no schema"):
        frame_of(b"\0\0\0\0\x07", [(header, b"?")], header)


def framed(number: int, rest: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + rest


def test_a_value_is_decoded_by_the_schema_that_the_registry_has() -> None:
    known = registry()
    decode = ByRegistry(known, HEADERS["value"])
    assert decode(framed(1, b"\x04hi"), ()) == Decoded("hi", {"type": "AVRO", "id": 1})
    assert decode(framed(2, b"\0\x0a\x02hi"), ()) == Decoded({"a": "hi"}, {"type": "PROTOBUF", "id": 2})
    assert decode(framed(2, b"\x04\0\0\x0a\x02hi"), ()) == Decoded({"b": "hi"}, {"type": "PROTOBUF", "id": 2})
    assert decode(framed(3, b"{}"), ()) == Decoded({}, {"type": "JSON", "id": 3})
    head = SchemaId("PROTOBUF", guid=GUID, message_indexes=[1]).guid_to_bytes()
    apart = decode(b"\x0a\x02hi", [(HEADERS["value"], head)])
    assert apart == Decoded({"c": "hi"}, {"type": "PROTOBUF", "id": GUID})
    assert decode(b"plain", ()) is None


def test_undecodable_values_are_reported_and_schemas_requested_once() -> None:
    known = registry()
    decode = ByRegistry(known, HEADERS["value"])
    for _ in range(3):
        assert decode(framed(9, b"\x04hi"), ()) == Undecoded("the registry has no schema 9")
        found = decode(framed(4, b""), ())
        assert isinstance(found, Undecoded)
        assert "no Avro schema" in found.why
        assert isinstance(decode(framed(1, b"\x04h"), ()), Undecoded)
        assert isinstance(decode(framed(2, b""), ()), Undecoded)
    assert known.asked == [9, 4, 1, 2]


def test_a_schema_that_stands_on_itself_without_end_is_refused() -> None:
    """A registry's schema that stands on thousands of others is told like one that it has not."""

    class Endless(Known):
        def schema(self, identity: int | str) -> Schema:
            return self.schema(identity)

    decode = ByRegistry(Endless({}), HEADERS["value"])
    found = decode(framed(5, b""), ())
    assert found == Undecoded("schema 5 stands on too many others, each on the next")


@pytest.mark.parametrize("head", [b"", b"\0\0\0\0\x07"])
def test_by_a_file_with_and_without_a_frame(head: bytes) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    decode = ByFile(codec_of(Schema("AVRO", json.dumps(record))))
    assert decode(head + b"\x04hi", ()) == Decoded({"a": "hi"}, {"type": "AVRO"})
    decode = ByFile(codec_of(Schema("PROTOBUF", PROTO)))
    index = b"\x02\x02" if head else b""
    due: Json = {"c": "hi"} if head else {"a": "hi"}
    assert decode(head + index + b"\x0a\x02hi", ()) == Decoded(due, {"type": "PROTOBUF"})
    assert isinstance(decode(head + b"\x0a\xff", ()), Undecoded)
