"""Check JSON by its schema; a schema fetches nothing, and its regular expressions end."""

from __future__ import annotations

import json
from contextlib import suppress
from time import monotonic

import jsonschema
import pytest

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Schema
from kbackup.schemas.decoder import codec_of


def test_json_by_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "price": {"$ref": "money.json"}},
        "required": ["id"],
    }
    codec = codec_of(Schema("JSON", json.dumps(schema), (("money.json", '{"type": "number"}'),)))
    assert codec.decode(b'{"id": 9007199254740993, "price": 1.5}') == {"id": 2**53 + 1, "price": 1.5}
    for data, why in (
        (b'{"id": "x"}', r"\$\.id: 'x' is not of type 'integer'"),
        (b"{", "not JSON by its schema"),
        (b"\xff", "not JSON by its schema"),
        (b"[" * 100_000, "not JSON by its schema"),
    ):
        with pytest.raises(UndecodableError, match=why):
            codec.decode(data)


def test_a_schema_fetches_nothing() -> None:
    codec = codec_of(Schema("JSON", '{"$ref": "http://127.0.0.1:9/other.json"}'))
    with pytest.raises(UndecodableError, match="not JSON by its schema"):
        codec.decode(b"{}")


@pytest.mark.parametrize(
    ("subschema", "data"),
    [
        ({"pattern": "("}, b'"x"'),
        ({"type": "foo"}, b'"x"'),
        ({"multipleOf": 0}, b"5"),
        ({"multipleOf": 0.5}, b"1" + b"0" * 400),
    ],
)
def test_json_by_what_is_no_schema(subschema: Json, data: bytes) -> None:
    """A `$ref` may lead anywhere in a schema, also to where no schema of schemas looks."""
    codec = codec_of(Schema("JSON", json.dumps({"$ref": "#/somewhere", "somewhere": subschema})))
    with pytest.raises(UndecodableError, match="not JSON by its schema"):
        codec.decode(data)


EVIL = "^(([a-z])+.)+[A-Z]([a-z])+$"
DRAFT4, DRAFT7 = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#")
DRAFT2019, DRAFT2020 = (f"https://json-schema.org/draft/{n}/schema" for n in ("2019-09", "2020-12"))


@pytest.mark.exhaustive(keep=6)
@pytest.mark.parametrize("draft", [DRAFT4, DRAFT7, DRAFT2019, DRAFT2020])
@pytest.mark.parametrize(
    "rule",
    [
        {"propertyNames": {"pattern": EVIL}, "patternProperties": {EVIL: {}}},
        {"patternProperties": {EVIL: {"type": "null"}}},
        {"patternProperties": {EVIL: {}}, "additionalProperties": {"type": "string"}},
        {"patternProperties": {EVIL: {}}, "unevaluatedProperties": {"type": "string"}},
        {"additionalProperties": {"pattern": EVIL}},
        {"additionalProperties": {"$schema": DRAFT7, "pattern": EVIL}},
    ],
)
def test_a_regular_expression_that_would_not_end(draft: str, rule: dict[str, Json]) -> None:
    """Python's takes twice the time for each letter more: for 60 of them, longer than the universe is old."""
    codec = codec_of(Schema("JSON", json.dumps({"$schema": draft, **rule})))
    text = "a" * 60
    began = monotonic()
    with suppress(UndecodableError):
        codec.decode(json.dumps({text: text}).encode())
    assert monotonic() - began < 5


def test_regular_expressions_of_a_schema() -> None:
    codec = codec_of(Schema("JSON", '{"pattern": "^[a-z]+[0-9]{2}$"}'))
    assert codec.decode(b'"abc12"') == "abc12"
    with pytest.raises(UndecodableError, match="does not match"):
        codec.decode(b'"abc"')
    codec = codec_of(Schema("JSON", '{"pattern": "(?=a)a"}'))
    with pytest.raises(UndecodableError, match="can't be run in linear time"):
        codec.decode(b'"a"')
    jsonschema.validate("a", {"pattern": "(?=a)a"})  # what else uses jsonschema keeps Python's


def test_parts_that_double_with_each_level_end() -> None:
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/definitions/l{n + 1}"}] * 2} for n in range(40)}
    schema = {"definitions": {**levels, "l40": {}}, "$ref": "#/definitions/l0"}
    codec = codec_of(Schema("JSON", json.dumps(schema)))
    began = monotonic()
    with pytest.raises(UndecodableError, match=r"more than 200,000 parts"):
        codec.decode(b"1")
    assert monotonic() - began < 120, "the schema was held against a value for minutes"
