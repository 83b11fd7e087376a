"""JSON is shown as it is, whatever its schema."""

from __future__ import annotations

import json

import pytest

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Schema
from kbackup.schemas.decoder import codec_of

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
