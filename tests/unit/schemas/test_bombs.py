"""A few bytes become no gigabytes, whatever their schema says: what one key or value may become is bounded."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from kbackup.errors import UndecodableError
from kbackup.schemas import base, columns, protobuf
from kbackup.schemas.base import Schema, TextBudget
from kbackup.schemas.columns import JSON, column_type, decoded_columns
from kbackup.schemas.decoder import Decoded, Made, codec_of
from kbackup.schemas.protobuf_growth import MessageGrowth
from tests.unit.schemas.test_codecs import avro

MIB = 1 << 20
TOO_MUCH = "would become more than|could be .* values"


def avro_schema(schema: object) -> Schema:
    return Schema("AVRO", json.dumps(schema))


def proto(text: str) -> Schema:
    return Schema("PROTOBUF", f'syntax = "proto3"; {text}')


def record(*fields: tuple[str, object], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


NOUGHTS = [(f"n{number}", "null") for number in range(10_000)]
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 1000, "scale": 1000}
AVRO: dict[str, object] = {
    "long names of fields": {"type": "array", "items": record(("f" * 100_000, "boolean"))},
    "long symbols": {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["S" * 100_000]}},
    "fields without bytes": {"type": "array", "items": record(("a", "boolean"), *NOUGHTS)},
    "maps of nothing": {"type": "map", "values": record(*NOUGHTS[:900])},
    "zeros of decimals": {"type": "array", "items": DECIMAL},
}


def many(kind: str, count: int) -> bytes:
    """Return the Avro of `count` items, of two bytes at most each."""
    head = avro("long", count)
    if kind == "maps of nothing":
        return head + b"".join(b"\x0a%05x" % number for number in range(count)) + b"\0"
    if kind == "zeros of decimals":
        return head + b"\x02\x01" * count + b"\0"
    return head + b"\0" * count + b"\0"


@pytest.mark.exhaustive(keep=4)
@pytest.mark.parametrize("kind", AVRO)
def test_avro_of_few_bytes_becomes_no_gigabytes(kind: str) -> None:
    codec = codec_of(avro_schema(AVRO[kind]))
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableError, match=TOO_MUCH):
            codec.decode(many(kind, 100_000))
        assert tracemalloc.get_traced_memory()[1] < 400 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", AVRO)
def test_a_little_of_the_same_is_decoded(kind: str) -> None:
    assert codec_of(avro_schema(AVRO[kind])).decode(many(kind, 2))


def test_the_private_name_of_decimals_is_no_name_of_a_schema() -> None:
    """fastavro checks no scale of a type that it does not know."""
    schema = {"type": "bytes", "logicalType": "kbackup-decimal", "precision": 10**6, "scale": -900_000}
    assert codec_of(avro_schema(schema)).decode(b"\x02\x01") == "AQ=="
    assert column_type(avro_schema(schema)) == pa.binary()
    with pytest.raises(UndecodableError, match="scale"):
        codec_of(avro_schema({**schema, "logicalType": "decimal"}))


def test_usual_data_may_grow() -> None:
    schema = record(*((f"is_a_flag_with_a_name_of_usual_length_{number}", "boolean") for number in range(100)))
    assert codec_of(avro_schema({"type": "array", "items": schema})).decode(many("", 1)[:2] + b"\0" * 100)
    names = [each[0] for each in NOUGHTS[:3]]
    data = avro("long", 1) + avro("string", "x" * 3 * MIB) + b"\0"
    value = codec_of(avro_schema({"type": "array", "items": record(("text", "string"), *NOUGHTS[:3])})).decode(data)
    assert value == [{"text": "x" * 3 * MIB, **dict.fromkeys(names)}]


WIDE = "".join(f"int32 f{number} = {number + 1};" for number in range(10_000))
PROTOBUF = {
    "wide messages": proto(f"message R {{ repeated M m = 1; }} message M {{ {WIDE} }}"),
    "long names of fields": proto(f"message R {{ repeated M m = 1; }} message M {{ int32 {'f' * 50_000} = 1; }}"),
    "wide messages within": proto(
        f"message R {{ repeated A m = 1; }} message A {{ B b = 1; }} message B {{ M m = 1; }} message M {{ {WIDE} }}"
    ),
}
EMPTY = {
    "wide messages": b"\x0a\0",
    "long names of fields": b"\x0a\0",
    "wide messages within": b"\x0a\x04\x0a\x02\x0a\0",
}


@pytest.mark.parametrize("kind", PROTOBUF)
def test_protobuf_of_few_bytes_becomes_no_gigabytes(kind: str) -> None:
    codec = codec_of(PROTOBUF[kind])
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableError, match=TOO_MUCH):
            codec.decode(EMPTY[kind] * 10_000)
        assert tracemalloc.get_traced_memory()[1] < 100 * MIB
    finally:
        tracemalloc.stop()
    assert codec.decode(EMPTY[kind] * 2)


def test_long_names_of_enums_are_counted() -> None:
    schema = proto(f"message R {{ repeated E e = 1; }} enum E {{ {'S' * 50_000} = 0; }}")
    codec = codec_of(schema)
    with pytest.raises(UndecodableError, match=TOO_MUCH):
        codec.decode(b"\x0a\x90\x4e" + b"\0" * 10_000)
    assert codec.decode(b"\x0a\x02\0\0") == {"e": ["S" * 50_000] * 2}


@pytest.mark.parametrize("type_first", [True, False])
def test_messages_of_any_type_are_counted(type_first: bool) -> None:
    schema = proto(
        f'import "google/protobuf/any.proto"; message R {{ google.protobuf.Any any = 1; }} '
        f"message L {{ repeated M m = 1; }} message M {{ {WIDE} }}"
    )

    def packed(count: int) -> bytes:
        inner = b"\x0a\0" * count
        url, value = b"\x0a\x05any/L", b"\x12" + varint(len(inner)) + inner
        either = url + value if type_first else value + url
        return b"\x0a" + varint(len(either)) + either

    codec = codec_of(schema)
    with pytest.raises(UndecodableError, match=TOO_MUCH):
        codec.decode(packed(10_000))
    value: Any = codec.decode(packed(2))
    assert len(value["any"]["m"]) == 2


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


NO_MESSAGES = [
    *(b"\x0a\xff", b"\x0b\x0a\0\x0c", b"\x0f", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a"),
    *(b"\xff" * 11, b"\x0b" * 500),
]


def test_what_is_no_message_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is counted."""
    texts = [data + b"\x0a\0" * 100 for data in NO_MESSAGES]
    codec = codec_of(PROTOBUF["wide messages"])
    expected = {data: outcome(codec, data) for data in texts}

    def counted(kind: object) -> MessageGrowth:
        return MessageGrowth(1, 1, is_open=True)

    monkeypatch.setattr(protobuf, "growth_of", counted)
    counting = codec_of(PROTOBUF["wide messages"])
    assert {data: outcome(counting, data) for data in texts} == expected


def outcome(codec: base.Codec, data: bytes) -> object:
    try:
        return codec.decode(data)
    except UndecodableError as error:
        return error.message


def test_large_data_may_grow_less() -> None:
    assert TextBudget(0).most == 32 * MIB
    assert TextBudget(MIB).most == 160 * MIB
    assert TextBudget(64 * MIB).most == TextBudget(10 * MIB).most == 512 * MIB
    assert TextBudget(100 * MIB).most == 800 * MIB


def test_a_batch_of_records_that_grow_is_decoded_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are told from those that could not be decoded, and keep their places."""

    def decoder(data: bytes, headers: base.Headers) -> Made:
        return Decoded("x" * 1000, {"type": "AVRO"})

    monkeypatch.setattr(columns, "MOST_DECODED", 10_000)
    monkeypatch.setattr(columns, "_MOST_OBJECTS", 3_000)
    values = [b"1", None, *[b"1"] * 20]
    batch = pa.RecordBatch.from_pydict({"value": values, "headers": [[]] * 22})
    decoded, why = decoded_columns(batch, {"value": decoder}, {"value": JSON})
    shown = decoded.to_pylist()
    assert shown[1] is None
    assert [text is not None for text in shown] == [True, False, *[True] * 9, *[False] * 11]
    assert [text is not None for text in why.to_pylist()] == [*[False] * 11, *[True] * 11]
    assert "records before it in its batch" in str(why[-1])
