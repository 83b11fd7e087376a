"""Keys as JSON: what equals what, and what can't be compared."""

from __future__ import annotations

import sys

import pytest

from kbackup.errors import UsageError
from kbackup.jobs.key_matching import JsonKeyMatch, KeyMatch
from kbackup.schemas.base import Headers, Json
from kbackup.schemas.decoder import Decoded, Made, Undecoded
from kbackup.types import TopicPartition
from tests.support.plain_records import Plain, block_of

ORDERS = TopicPartition("orders", 0)
KEY = b"\0\0\0\0\7..."
"""A key in the frame of schema 7."""


def selected(match: JsonKeyMatch, *records: Plain) -> list[bool]:
    mask: list[bool] = match(ORDERS, block_of(list(records))).tolist()
    return mask


def matching(*values: str, made: Made = None, as_bytes: tuple[bytes, ...] = ()) -> JsonKeyMatch:
    """A match in which a schema decodes each key to `made`; without it, no schema decodes any."""

    def decode(data: bytes, headers: Headers) -> Made:
        return made

    return JsonKeyMatch(values, lambda topic, part: decode if made else None, KeyMatch(as_bytes))


@pytest.mark.parametrize(
    ("given", "key", "is_equal"),
    [
        ("17", 17, True),
        ("17.0", 17, True),
        ("1.7e1", 17, True),
        ("17", 17.0, True),
        ("0.1", 0.1, True),
        ("17", "17", False),
        ('"17"', "17", True),
        ("1", True, False),
        ("true", True, True),
        ("9007199254740993", 9007199254740993, True),
        ("9007199254740992", 9007199254740993, False),
        ("12345678901234567890123", 12345678901234567890123, True),
        ('{"b": [1, 2.0], "a": null}', {"a": None, "b": [1, 2]}, True),
        ('{"a": 1}', {"a": 1, "b": None}, False),
        ("[1, 2]", [2, 1], False),
        ('"é"', "é", True),
        ('"\\u00e9"', "é", True),
        ("null", None, True),
    ],
)
def test_decoded_keys_are_compared_as_json_values(given: str, key: Json, is_equal: bool) -> None:
    match = matching(given, made=Decoded(key, {}))
    assert selected(match, Plain(KEY, b"")) == [is_equal]
    assert match.failed == 0


@pytest.mark.parametrize(
    ("given", "key", "is_equal"),
    [
        ('"4711"', b"4711", True),
        ("4711", b"4711", True),
        ('"4711"', b'"4711"', True),
        ('{"id": 7, "shop": "a"}', b'{"shop":"a", "id":7.0}', True),
        ('{"id": 7}', b'{"id": 8}', False),
        ('"NaN"', b"NaN", True),
        ('"1e999"', b"1e999", True),
        ('""', b"", True),
    ],
)
def test_keys_without_a_schema_are_compared_as_text_and_as_json(given: str, key: bytes, is_equal: bool) -> None:
    match = matching(given)
    assert selected(match, Plain(key, b"")) == [is_equal]
    assert match.failed == 0


def test_a_text_of_many_brackets_is_text() -> None:
    brackets = b"[" * (2 * sys.getrecursionlimit())
    assert selected(matching('"a"'), Plain(brackets, b"")) == [False]


@pytest.mark.parametrize(
    ("key", "headers", "made", "reason"),
    [
        (KEY, (), None, "no schema 7 of its topic is archived"),
        (KEY, (), Undecoded("not AVRO by its schema"), "not AVRO by its schema"),
        (b"4711", ((b"__key_schema_id", KEY[:5]),), None, "no schema 7 of its topic is archived"),
        (b"4711", ((b"__key_schema_id", b"?"),), None, "header __key_schema_id names no schema"),
        ((4711).to_bytes(8), (), None, "it names no schema, and is no text"),
        (b"\xff\xfe", (), None, "it names no schema, and is no text"),
    ],
    ids=str,
)
def test_a_key_that_cannot_be_compared_is_counted(
    key: bytes, headers: tuple[tuple[bytes, bytes | None], ...], made: Made, reason: str
) -> None:
    match = matching("4711", '"4711"', made=made)
    assert selected(match, Plain(key, b"", headers=headers)) == [False]
    assert (match.failed, match.first) == (1, f"orders:0:0: {reason}")


def test_the_first_key_that_cannot_be_compared_is_named() -> None:
    match = matching("1")
    selected(match, Plain(b"text", b""), Plain(b"\xff", b""), Plain(b"\xfe", b""))
    assert (match.failed, match.first) == (2, "orders:0:1: it names no schema, and is no text")


def test_a_record_without_a_key_is_never_selected() -> None:
    match = matching("null", made=Decoded(None, {}))
    assert selected(match, Plain(None, b"")) == [False]
    assert match.failed == 0


def test_keys_as_bytes_stand_beside_json_and_are_not_decoded() -> None:
    match = matching("17", '"b"', as_bytes=(b"\xff", b"a"))
    assert selected(match, *(Plain(key, b"") for key in (b"\xff", b"a", b"b", b"c"))) == [True, True, True, False]
    assert match.failed == 0


@pytest.mark.parametrize("text", ["", "{", "abc", "NaN", "-Infinity", "1e999", "'a'", "1 2"])
def test_a_value_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no JSON"):
        matching(text)
