"""Columns of Arrow of what schemas describe: their types, and decoded values in them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format, message_factory

from kbackup.archive.segments.rows import to_export_batch
from kbackup.errors import UndecodableError
from kbackup.schemas.base import Schema
from kbackup.schemas.columns import JSON, column_type, decoded_columns, merged_types
from kbackup.schemas.decoder import ByRegistry, codec_of
from tests.support.plain_records import Plain, block_of
from tests.support.schema_archive import avro, framed

TIME = pa.timestamp("us", "UTC")


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


AVRO: dict[str, tuple[Any, object, pa.DataType, object]] = {
    "int": ("int", 5, pa.int32(), 5),
    "float": ("float", 0.5, pa.float32(), 0.5),
    "not a number": ("double", float("inf"), pa.float64(), float("inf")),
    "bytes": (logical("bytes", "unknown"), b"\0\xff", pa.binary(), b"\0\xff"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    "array": ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.int32()), [1, 2]),
    "map": ({"type": "map", "values": "string"}, {"a": "b"}, pa.map_(pa.string(), pa.string()), [("a", "b")]),
    "nullable": (["null", "long"], None, pa.int64(), None),
    "union": (["null", "long", "string"], "x", JSON, '"x"'),
    "decimal": (
        logical("bytes", "decimal", precision=9, scale=2),
        Decimal("1.20"),
        pa.decimal128(9, 2),
        Decimal("1.20"),
    ),
    "big decimal": (logical("bytes", "big-decimal"), b"\x01", pa.binary(), b"\x01"),
    "decimal without digits": (logical("bytes", "decimal"), b"\x01", pa.binary(), b"\x01"),
    "wide decimal": (logical("bytes", "decimal", precision=50, scale=2), Decimal("1.20"), JSON, '"1.20"'),
    "date": (logical("int", "date"), date(2026, 1, 31), pa.date32(), date(2026, 1, 31)),
    "time": (logical("int", "time-millis"), datetime(2026, 1, 31, 12, 5).time(), pa.string(), "12:05:00.000"),
    "timestamp": (
        logical("long", "timestamp-micros"),
        datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
        TIME,
        datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    ),
    "local timestamp": (
        logical("long", "local-timestamp-millis"),
        datetime(2026, 1, 31, 12),
        pa.string(),
        "2026-01-31T12:00:00.000",
    ),
    "uuid": (logical("string", "uuid"), "6b1c0f0e-0000-4000-8000-000000000001", pa.string(), None),
    "record": (
        record(("a", "int"), ("inner", record(("b", ["null", "string"]), name="I"))),
        {"a": 1, "inner": {"b": None}},
        pa.struct([("a", pa.int32()), ("inner", pa.struct([("b", pa.string())]))]),
        {"a": 1, "inner": {"b": None}},
    ),
    "recursion": (
        record(("n", "int"), ("next", ["null", "R"])),
        {"n": 1, "next": {"n": 2, "next": None}},
        pa.struct([("n", pa.int32()), ("next", JSON)]),
        {"n": 1, "next": '{"n":2,"next":null}'},
    ),
    "names alike": (record(("a", "int"), ("A", "int")), {"a": 1, "A": 2}, JSON, '{"a":1,"A":2}'),
    "no field": (record(), {}, JSON, "{}"),
}


def column(schema: Schema, data: bytes, kind: pa.DataType) -> tuple[object, object]:
    """Return the value of a column and the error."""

    class One:
        def schema(self, schema_id: int | str) -> Schema:
            return schema

    batch = to_export_batch(block_of([Plain(None, framed(1, data))]), "t", 0, "s", 1, 1, 1)
    values, errors = decoded_columns(batch, {"value": ByRegistry(One(), b"h")}, {"value": kind})
    return values[0].as_py(), errors[0].as_py()


@pytest.mark.parametrize(("schema", "value", "kind", "shown"), AVRO.values(), ids=AVRO.keys())
def test_an_avro_schema_gives_a_column_its_type_and_values(
    schema: Any, value: object, kind: pa.DataType, shown: object
) -> None:
    described = Schema("AVRO", json.dumps(schema))
    assert column_type(described) == kind
    expected = value if shown is None else shown
    assert column(described, avro(schema, value), kind) == (expected, None)


PROTO = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum State { NEW = 0; PAID = 1; }
message Money { string currency = 1; uint64 cents = 2; }
message Order {
  message Line { string item = 1; int64 count = 2; }
  repeated Line lines = 1; map<string, Money> prices = 2; State state = 3; bytes raw = 4; optional int32 some = 5;
  google.protobuf.Timestamp at = 6; google.protobuf.Int64Value maybe = 7; google.protobuf.Struct any = 8;
  Order parent = 9; oneof way { bool fast = 10; double slow = 11; } fixed32 small = 12; float part = 13;
}"""
ORDER = {
    "lines": [{"item": "pen", "count": str(2**60)}],
    "prices": {"eu": {"currency": "EUR", "cents": str(2**64 - 1)}},
    "state": "PAID",
    "raw": "AP8=",
    "at": "2026-01-31T12:00:00.123456789Z",
    "maybe": "7",
    "any": {"x": [1, None]},
    "parent": {"state": "NEW"},
    "slow": 0.5,
    "small": 4_000_000_000,
    "part": 0.25,
}


def test_a_protobuf_message_becomes_a_struct_of_its_fields() -> None:
    schema = Schema("PROTOBUF", PROTO)
    codec: Any = codec_of(schema)
    message = json_format.ParseDict(ORDER, message_factory.GetMessageClass(codec.file.message_types_by_name["Order"])())
    money = pa.struct([("currency", pa.string()), ("cents", pa.decimal128(20, 0))])
    fields: dict[str, pa.DataType] = {
        "lines": pa.list_(pa.struct([("item", pa.string()), ("count", pa.int64())])),
        "prices": pa.map_(pa.string(), money),
        **{"state": pa.string(), "raw": pa.binary(), "some": pa.int32(), "at": pa.string(), "maybe": pa.int64()},
        **{"any": JSON, "parent": JSON, "fast": pa.bool_(), "slow": pa.float64(), "small": pa.int64()},
        "part": pa.float32(),
    }
    kind = pa.struct(list(fields.items()))
    assert column_type(schema) == kind, "of Order alone: Money is a field of it"
    value, error = column(schema, b"\x02\x02" + message.SerializeToString(), kind)
    assert error is None
    assert isinstance(value, dict)
    parent = json.loads(value.pop("parent"))
    assert parent["state"] == "NEW"
    assert value == {
        "lines": [{"item": "pen", "count": 2**60}],
        "prices": [("eu", {"currency": "EUR", "cents": Decimal(2**64 - 1)})],
        **{"state": "PAID", "raw": b"\0\xff", "some": None, "at": ORDER["at"], "maybe": 7},
        **{"any": '{"x":[1.0,null]}', "fast": None, "slow": 0.5, "small": 4_000_000_000, "part": 0.25},
    }
    _, error = column(schema, b"\0" + b"\x0a\x03EUR", kind)
    assert error == "value: it does not fit the column: it has no field cents", "a record that is Money alone"


JSONS: list[tuple[Any, object, pa.DataType, object, str | None]] = [
    (
        {"properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}, "c": {"type": "number"}}},
        {"a": 2**40, "b": None, "c": 0.5, "more": 1},
        pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())]),
        {"a": 2**40, "b": None, "c": 0.5},
        None,
    ),
    (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "boolean"}}},
        {"a": True},
        pa.struct([("a", pa.bool_())]),
        {"a": True},
        None,
    ),
    (
        {"$ref": "#/d/N", "d": {"N": {"type": "object", "properties": {"next": {"$ref": "#/d/N"}}}}},
        {"next": {"next": None}},
        pa.struct([("next", JSON)]),
        {"next": '{"next":null}'},
        None,
    ),
    (
        {"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}]},
        [1],
        pa.list_(pa.int64()),
        [1],
        None,
    ),
    (
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"a": "b"},
        pa.map_(pa.string(), pa.string()),
        [("a", "b")],
        None,
    ),
    ({"type": "object"}, {"a": 1}, JSON, '{"a":1}', None),
    ({"allOf": [{"properties": {}}]}, [1], JSON, "[1]", None),
    ({"properties": {"a b": {}}}, {"a b": 1}, JSON, '{"a b":1}', None),
    (True, None, JSON, None, None),
    ({"$ref": "other.json"}, 1, JSON, "1", None),
    ({"type": "integer"}, 1.5, pa.int64(), None, "1.5 is no integer"),
    ({"type": "integer"}, "017", pa.int64(), None, "017 is no integer"),
    ({"type": "integer"}, True, pa.int64(), None, "True is no integer"),
    ({"type": "integer"}, 2.0, pa.int64(), 2, None),
    ({"type": "array", "items": {"type": "string"}}, "abc", pa.list_(pa.string()), None, "it is no array"),
    ({"properties": {"a": {"type": "integer"}}}, [1], pa.struct([("a", pa.int64())]), None, "it does not fit"),
    ({"type": "integer"}, 2**70, pa.int64(), None, "it does not fit"),
]


@pytest.mark.parametrize(("schema", "value", "kind", "shown", "error"), JSONS)
def test_a_json_schema_gives_a_column_its_type_and_values(
    schema: object, value: object, kind: pa.DataType, shown: object, error: str | None
) -> None:
    described = Schema("JSON", json.dumps(schema))
    assert column_type(described) == kind
    found, why = column(described, json.dumps(value).encode(), kind)
    assert found == shown
    assert (why is None) == (error is None)
    assert (error or "") in str(why)


A, B = pa.struct([("a", pa.int32()), ("s", pa.string())]), pa.struct([("b", pa.int64()), ("a", pa.int32())])


@pytest.mark.parametrize(
    ("held", "more", "fresh", "kept"),
    [
        (A, B, pa.struct([*A, *pa.struct([("b", pa.int64())])]), None),
        (pa.int32(), pa.int64(), JSON, pa.int32()),
        (pa.string(), JSON, JSON, JSON),
        (JSON, pa.int64(), JSON, None),
        (pa.list_(A), pa.list_(pa.struct([("a", pa.string())])), pa.list_(pa.struct([("a", JSON), A[1]])), pa.list_(A)),
        (A, pa.struct([("A", pa.int32())]), JSON, A),
        (pa.map_(pa.string(), A), A, JSON, pa.map_(pa.string(), A)),
    ],
)
def test_columns_of_two_versions(
    held: pa.DataType, more: pa.DataType, fresh: pa.DataType, kept: pa.DataType | None
) -> None:
    """A table that is there keeps its columns; without one, what differs is JSON."""
    assert merged_types(held, more) == fresh
    assert merged_types(held, more, keep=True) == (fresh if kept is None else kept)


def test_hostile_schemas_are_json() -> None:
    wide: Any = record(("x", "int"), name="R0")
    for n in range(1, 30):
        wide = record(("a", wide), ("b", f"R{n - 1}"), name=f"R{n}")
    deep: Any = {"type": "integer"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    circle = {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}
    assert column_type(Schema("AVRO", json.dumps(wide))) == JSON
    assert column_type(Schema("JSON", json.dumps(circle))) == JSON
    column_type(Schema("JSON", json.dumps(deep)))
    with pytest.raises(UndecodableError):
        column_type(Schema("AVRO", '{"type": "record"}'))
