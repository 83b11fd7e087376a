"""Schemas of many imports, invalid schemas, and schemas in files."""

from __future__ import annotations

import base64
import io
import json
import shutil
import struct
import tempfile
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.base import Json, Schema
from kbackup.schemas.decoder import codec_of, file_codec
from kbackup.schemas.protobuf import compiled, protobuf_codec

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "money.proto";
message Cart { string owner = 1; message Line { string what = 1; } }
message Order {
  int64 id = 1; google.protobuf.Timestamp placed_at = 2; Money price = 3; bytes blob = 4;
  repeated uint64 parts = 5; State state = 6; optional string note = 7;
  enum State { NEW = 0; PAID = 1; }
}
"""

MONEY = 'syntax = "proto3"; package shop; message Money { string currency = 1; double amount = 2; }'


def described(name: str, *imports: str) -> str:
    file = FileDescriptorProto(name=name, dependency=imports)
    file.message_type.add(name=f"M{name.removesuffix('.proto').strip('_')}")
    return base64.b64encode(file.SerializeToString()).decode()


AVRO_CHAIN = [(f"A{n}", json.dumps({"type": "array", "items": f"A{n + 1}" if n < 999 else "int"})) for n in range(1000)]


def test_protobuf_of_many_imports() -> None:
    """1,500 files, each the next one's import."""
    chain = tuple((f"a{n}.proto", described(f"a{n}.proto", f"a{n + 1}.proto")) for n in range(1500))
    last = (("a1500.proto", described("a1500.proto")),)
    assert codec_of(Schema("PROTOBUF", described("m", "a0.proto"), chain + last)).decode(b"") == {}


def test_protobuf_of_types_that_are_not_googles() -> None:
    own = 'syntax = "proto3"; package google.protobuf; message Timestamp { string said = 1; }'
    main = 'syntax = "proto3"; import "own.proto"; message A { google.protobuf.Timestamp at = 1; }'
    codec = codec_of(Schema("PROTOBUF", main, (("own.proto", own),)))
    with pytest.raises(UndecodableError, match="not PROTOBUF by its schema"):
        codec.decode(b"\x0a\x04\x0a\x02hi")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Schema("AVRO", "{"), "no Avro schema"),
        (Schema("AVRO", '{"type": "record"}'), "no Avro schema"),
        (Schema("AVRO", '["null", "shop.Money"]'), "no Avro schema: .*shop.Money"),
        (Schema("AVRO", '"A0"', tuple(AVRO_CHAIN)), "no Avro schema: RecursionError"),
        (Schema("JSON", "nothing"), "no JSON Schema"),
        (Schema("JSON", "5"), "no JSON Schema"),
        (Schema("JSON", "null"), "no JSON Schema"),
        (Schema("JSON", '{"not": ' * 5000 + "true" + "}" * 5000), "no JSON Schema: RecursionError"),
        (Schema("PROTOBUF", "message"), "can't be compiled"),
        (Schema("PROTOBUF", PROTO), r"can't be compiled: .*money\.proto"),
        (Schema("PROTOBUF", PROTO, (("../money.proto", MONEY),)), "leads out of its folder"),
        (Schema("PROTOBUF", PROTO, (("/tmp/money.proto", MONEY),)), "leads out of its folder"),
        (Schema("PROTOBUF", PROTO, (("a\0b", MONEY),)), "can't be compiled: embedded null"),
        (Schema("PROTOBUF", PROTO, (("a" * 300, MONEY),)), "can't be compiled: .*too long"),
        (Schema("PROTOBUF", PROTO, (("money.proto", "\udcff"),)), "can't be compiled: "),
        (Schema("PROTOBUF", "CgVhYmM="), "no Protobuf schema|can't be compiled"),
        (Schema("PROTOBUF", described("__main__.proto", "a.proto")), "no Protobuf schema: KeyError: 'a.proto'"),
        (
            Schema(
                "PROTOBUF",
                described("m", "a.proto"),
                (("a.proto", described("a", "b.proto")), ("b.proto", described("b", "a.proto"))),
            ),
            "no Protobuf schema: CycleError",
        ),
    ],
)
def test_schemas_that_are_none(schema: Schema, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        codec_of(schema)


def test_a_schema_in_a_file_finds_the_others_beside_it(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text('{"type": "array", "items": "shop.Money"}')
    (tmp_path / "shop.Money.avsc").write_text(
        '{"type": "record", "name": "shop.Money", "fields": [{"name": "amount", "type": "int"}]}'
    )
    assert file_codec(tmp_path / "order.avsc").decode(b"\x02\x06\x00") == [{"amount": 3}]
    (tmp_path / "shop.proto").write_text(PROTO)
    (tmp_path / "money.proto").write_text(MONEY)
    for name in ("Order", "shop.Order"):
        assert file_codec(tmp_path / "shop.proto", name).decode(b"\x08\x05") == {
            "id": 5,
            "blob": "",
            "parts": [],
            "state": "NEW",
        }
    assert file_codec(tmp_path / "shop.proto", "Cart.Line").decode(b"\x0a\x02it") == {"what": "it"}
    with pytest.raises(UsageError, match=r"no message Other in shop\.proto; name one of its messages: shop\.Cart"):
        file_codec(tmp_path / "shop.proto", "Other")


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("a.txt", b"", None, "no schema by its name"),
        ("a.avsc", b"\xff", None, "is not UTF-8"),
        ("a.avsc", b"{", None, "no Avro schema"),
        ("a.avsc", b'"string"', "M", "name a message only with a Protobuf file"),
        ("a.proto", b"message", None, "can't be compiled"),
        ("a.pb", b"\xff", None, "no set of file descriptors"),
        ("a.desc", b"", None, "no set of file descriptors"),
        ("a.json", b"null", None, "no JSON Schema"),
        ("gone.avsc", None, None, "no such file"),
        ("gone.proto", None, None, "no such file"),
    ],
)
def test_files_that_can_not_be_used(
    tmp_path: Path, name: str, text: bytes | None, message: str | None, hint: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(UsageError, match=hint):
        file_codec(tmp_path / name, message)


# Decode Avro by its schema, of any bytes and any depth.


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


NOON, LOCAL = datetime(2026, 1, 31, 12, 0, tzinfo=UTC), datetime(2026, 1, 31, 12, 0, 0, 5000)
TRACE = "12345678-1234-5678-1234-567812345678"
WEIGHTS = {"a": float("nan"), "b": float("-inf"), "c": 0.1}
FIELDS: list[tuple[str, Any, Any, Any]] = [
    ("id", "long", 2**62 + 1, 2**62 + 1),
    ("price", logical("bytes", "decimal", precision=12, scale=2), Decimal("-1234567.80"), "-1234567.80"),
    ("at", logical("long", "timestamp-millis"), NOON, "2026-01-31T12:00:00.000Z"),
    ("exactly", logical("long", "timestamp-micros"), NOON.replace(microsecond=123_456), "2026-01-31T12:00:00.123456Z"),
    ("local", logical("long", "local-timestamp-millis"), LOCAL, "2026-01-31T12:00:00.005"),
    ("day", logical("int", "date"), date(2026, 1, 31), "2026-01-31"),
    ("clock", logical("int", "time-millis"), time(23, 59, 59, 7000), "23:59:59.007"),
    ("trace", logical("string", "uuid"), UUID(TRACE), TRACE),
    ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "PAID", "PAID"),
    ("blob", ["null", "bytes"], b"\x00\xff", "AP8="),
    ("weights", {"type": "map", "values": "double"}, WEIGHTS, {"a": "NaN", "b": "-Infinity", "c": 0.1}),
]
"""Of a record: the name, the type, a value, and how it is shown."""

ORDER: dict[str, Any] = {
    **{"type": "record", "name": "Order", "namespace": "shop"},
    "fields": [{"name": name, "type": kind} for name, kind, _, _ in FIELDS],
}


def avro(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_avro_with_its_logical_types() -> None:
    data = avro(ORDER, {name: value for name, _, value, _ in FIELDS})
    codec = codec_of(Schema("AVRO", json.dumps(ORDER)))
    assert codec.decode(data) == {name: shown for name, _, _, shown in FIELDS}
    for cut in (data[:-1], data + b"\0", b""):
        with pytest.raises(UndecodableError, match="not AVRO by its schema"):
            codec.decode(cut)


@given(st.binary(max_size=60))
def test_avro_of_any_bytes(data: bytes) -> None:
    """Damaged input is decoded to JSON or reported; no other error comes out of it."""
    codec = codec_of(Schema("AVRO", json.dumps(ORDER)))
    with suppress(UndecodableError):
        json.dumps(codec.decode(data), allow_nan=False)


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ('"string"', "é", "é"),
        ("long", -5, -5),
        ('["null", "shop.Money"]', {"amount": 3}, {"amount": 3}),
        ('{"type": "array", "items": "shop.Money"}', [{"amount": 3}], [{"amount": 3}]),
    ],
)
def test_avro_references(schema: str, value: object, shown: object) -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "amount", "type": "int"}]}
    whole = schema.replace('"shop.Money"', json.dumps(money))
    data = avro(json.loads(whole) if whole[0] in '"{[' else whole, value)
    assert codec_of(Schema("AVRO", schema, (("shop.Money", json.dumps(money)),))).decode(data) == shown


def test_avro_bytes_are_as_they_are() -> None:
    """Serializers of registries write no length in front of them."""
    assert codec_of(Schema("AVRO", '"bytes"')).decode(b"\xff\0") == "/wA="


def test_avro_that_goes_deep() -> None:
    """Thousands of records within each other are told; they don't end the process."""
    link = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    codec = codec_of(Schema("AVRO", json.dumps({"type": "map", "values": link})))
    assert codec.decode(b"\x02\x02a\x02\x02\x00\x00") == {"a": {"next": {"next": {"next": None}}}}
    with pytest.raises(UndecodableError, match="not AVRO by its schema"):
        codec.decode(b"\x02\x02a" + b"\x02" * 200_000 + b"\x00\x00")


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "R", "fields": []},
        {"type": "error", "name": "E", "fields": [{"name": "a", "type": "null"}]},
        "shop.Nothing",
    ],
)
def test_avro_arrays_of_nothing(items: object) -> None:
    """Ten bytes would make 2^62 of them."""
    with pytest.raises(UndecodableError, match="an array of items that take no bytes"):
        codec_of(Schema("AVRO", json.dumps([NOTHING, {"type": "array", "items": items}])))


NOTHING: dict[str, Any] = {
    "type": "record",
    "name": "shop.Nothing",
    "fields": [{"name": "a", "type": {"type": "fixed", "name": "Empty", "size": 0}}, {"name": "b", "type": "Empty"}],
}


def test_avro_records_of_nothing() -> None:
    """Each has two of the one before: without a byte of data 40 of them are 2^40 values. Few are read."""
    chain = [NOTHING]
    for n in range(40):
        last = chain[-1]["name"]
        fields = [{"name": "a", "type": last}, {"name": "b", "type": last}]
        chain.append({"type": "record", "name": f"shop.N{n}", "fields": fields})
    nothing = {"a": "", "b": ""}
    assert codec_of(Schema("AVRO", json.dumps(chain[:3]))).decode(b"\x02") == {"a": nothing, "b": nothing}
    with pytest.raises(UndecodableError, match=r"a record of 1,\d\d\d values that take no bytes"):
        codec_of(Schema("AVRO", json.dumps(chain)))


@pytest.mark.exhaustive
def test_avro_records_that_are_deep_by_their_names() -> None:
    """20,000 records, each within the next one: told, where the compiled reader would end the process."""
    chain: list[dict[str, Any]] = [{"type": "record", "name": "A0", "fields": [{"name": "a", "type": "int"}]}]
    for n in range(1, 20_000):
        chain.append({"type": "record", "name": f"A{n}", "fields": [{"name": "a", "type": f"A{n - 1}"}]})
    any_of_them = {"type": "record", "name": "Any", "fields": [{"name": "a", "type": chain}]}
    codec = codec_of(Schema("AVRO", json.dumps(any_of_them)))
    assert codec.decode(b"\x02\x06") == {"a": {"a": {"a": 3}}}
    with pytest.raises(UndecodableError, match="not AVRO by its schema: maximum recursion depth"):
        codec.decode(b"\xbe\xb8\x02\x06")


def test_avro_decimals_of_any_scale() -> None:
    """A scale of 19,000,000 does not make 19 MB of two bytes; no digit is lost."""
    for scale, shown in ((3, "0.005"), (1000, "0." + "0" * 999 + "5"), (19_000_000, "5E-19000000")):
        kind = {"type": "bytes", "logicalType": "decimal", "precision": 19_000_000, "scale": scale}
        record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
        codec = codec_of(Schema("AVRO", json.dumps(record)))
        assert codec.decode(b"\x02\x05") == {"a": shown}
        zero = codec.decode(b"\x02\x00")
        assert isinstance(zero, dict)
        assert Decimal(str(zero["a"])).as_tuple() == Decimal(f"0E-{scale}").as_tuple()
        assert len(str(zero["a"])) < 1010


@pytest.mark.parametrize("precision", [38, 1_000_000_000])
def test_a_decimal_of_a_mebibyte_is_not_made_a_number(precision: int) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}
    schema: Any = {"type": "record", "name": "r", "fields": [{"name": "d", "type": kind}]}
    codec = codec_of(Schema("AVRO", json.dumps(schema)))
    began = monotonic()
    with pytest.raises(UndecodableError, match=r"bytes for a decimal of \d+ digits"):
        codec.decode(b"\x80\x80\x80\x01" + b"\x7f" * (1 << 20))
    assert monotonic() - began < 60, "the number was made, which takes minutes"


# Decode Protobuf by the text of a schema and by a descriptor.


def test_protobuf_by_text_and_by_descriptor() -> None:
    codec = protobuf_codec(Schema("PROTOBUF", PROTO, (("money.proto", MONEY),)))
    order = (b"\x08\x2a\x12\x06\x08\x80\xbe\xf7\xcb\x06\x1a\x0e\x0a\x03EUR\x11" + struct.pack("<d", 1.5))[:-1]
    with pytest.raises(UndecodableError, match="not PROTOBUF by its schema"):
        codec.decode(order, (1,))
    order = b"\x08\x2a\x12\x06\x08\x80\xbe\xf7\xcb\x06\x1a\x0e\x0a\x03EUR\x11" + struct.pack("<d", 1.5)
    found = codec.decode(order + b"\x22\x02\x00\xff\x2a\x02\x01\x02\x30\x01", (1,))
    assert found == {
        "id": 42,
        "placed_at": "2026-01-31T10:52:48Z",
        "price": {"currency": "EUR", "amount": 1.5},
        "blob": "AP8=",
        "parts": [1, 2],
        "state": "PAID",
    }
    assert codec.decode(b"", (1,)) == {"id": 0, "blob": "", "parts": [], "state": "NEW"}
    assert codec.decode(b"\x0a\x02me") == {"owner": "me"}
    assert codec.decode(b"\x0a\x02it", (0, 0)) == {"what": "it"}
    with pytest.raises(UndecodableError, match=r"its schema has no message 0\.1"):
        codec.decode(b"", (0, 1))


def test_protobuf_runs_nothing_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would take modules from the current directory first."""
    (tmp_path / "grpc_tools").mkdir()
    for name in ("grpc_tools/__init__.py", "grpc_tools/protoc.py", "sitecustomize.py", "google.py"):
        (tmp_path / name).write_text("open('was-run', 'w').close(); raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert codec_of(Schema("PROTOBUF", MONEY)).decode(b"") == {"currency": "", "amount": 0.0}
    assert not (tmp_path / "was-run").exists()


def test_protobuf_by_a_compiler_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(UndecodableError, match=r"the schema can't be compiled: protoc ended with 1; "):
        codec_of(Schema("PROTOBUF", MONEY))


def test_protobuf_of_text_and_descriptors_together() -> None:
    """Whichever of a schema and what it refers to is text, and whichever is described."""
    files = {
        file.name: base64.b64encode(file.SerializeToString()).decode()
        for file in PARSED_SET.file
        if not file.name.startswith("google/")
    }
    for main in (PROTO, files["shop.proto"]):
        for money in (MONEY, files["money.proto"]):
            codec = protobuf_codec(Schema("PROTOBUF", main, (("money.proto", money),)))
            found = codec.decode(b"\x1a\x05\x0a\x03EUR", (1,))
            assert isinstance(found, dict)
            assert found["price"] == {"currency": "EUR", "amount": 0.0}


@given(st.binary(max_size=40))
def test_protobuf_of_any_bytes(data: bytes) -> None:
    with suppress(UndecodableError):
        json.dumps(PARSED.decode(data, (1,)), allow_nan=False)


def _described() -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shop.proto").write_text(PROTO)
        Path(folder, "money.proto").write_text(MONEY)
        return compiled(Path(folder), "shop.proto", "shop.proto")


PARSED_SET = _described()
PARSED = protobuf_codec(Schema("PROTOBUF", PROTO, (("money.proto", MONEY),)))


# JSON is shown as it is, whatever its schema.


EVIL = "^(([a-z])+.)+[A-Z]([a-z])+$"
DOUBLING = {f"l{n}": {"allOf": [{"$ref": f"#/definitions/l{n + 1}"}] * 2} for n in range(40)}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"$ref": "http://127.0.0.1:9/other.json"},
        {"pattern": EVIL},
        {"definitions": DOUBLING, "$ref": "#/definitions/l0"},
    ],
    ids=["another type", "elsewhere", "an expression that would not end", "parts that double"],
)
def test_json_is_not_held_against_its_schema(schema: dict[str, Json]) -> None:
    codec = codec_of(Schema("JSON", json.dumps(schema)))
    assert codec.decode(b'{"id": 9007199254740993, "price": 1.5}') == {"id": 2**53 + 1, "price": 1.5}
    assert codec.decode(json.dumps("a" * 60).encode()) == "a" * 60


@pytest.mark.parametrize("data", [b"{", b"\xff", b"", b"[" * 100_000], ids=["cut", "no text", "empty", "deep"])
def test_data_that_is_no_json(data: bytes) -> None:
    with pytest.raises(UndecodableError, match="not JSON by its schema"):
        codec_of(Schema("JSON", "true")).decode(data)
