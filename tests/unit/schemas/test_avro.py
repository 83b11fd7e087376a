"""Decode Avro by its schema, of any bytes and any depth."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from time import monotonic
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Schema
from kbackup.schemas.decoder import codec_of

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exactly", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "trace", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "blob", "type": ["null", "bytes"]},
        {"name": "weights", "type": {"type": "map", "values": "double"}},
    ],
}

AN_ORDER = {
    "id": 2**62 + 1,
    "price": Decimal("-1234567.80"),
    "at": datetime(2026, 1, 31, 12, 0, tzinfo=UTC),
    "exactly": datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 12, 0, 0, 5000),
    "day": date(2026, 1, 31),
    "clock": time(23, 59, 59, 7000),
    "trace": UUID("12345678-1234-5678-1234-567812345678"),
    "state": "PAID",
    "blob": b"\x00\xff",
    "weights": {"a": float("nan"), "b": float("-inf"), "c": 0.1},
}

IN_JSON = {
    "id": 2**62 + 1,
    "price": "-1234567.80",
    "at": "2026-01-31T12:00:00.000Z",
    "exactly": "2026-01-31T12:00:00.123456Z",
    "local": "2026-01-31T12:00:00.005",
    "day": "2026-01-31",
    "clock": "23:59:59.007",
    "trace": "12345678-1234-5678-1234-567812345678",
    "state": "PAID",
    "blob": "AP8=",
    "weights": {"a": "NaN", "b": "-Infinity", "c": 0.1},
}


def avro(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_avro_with_its_logical_types() -> None:
    data = avro(ORDER, AN_ORDER)
    codec = codec_of(Schema("AVRO", json.dumps(ORDER)))
    assert codec.decode(data) == IN_JSON
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
    assert monotonic() - began < 2, "the number was made"
