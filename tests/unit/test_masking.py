"""Masks of keys and values: what they replace, what they leave, and what they don't let through."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError, UsageError
from kbackup.masking import fixed, hashed, nulled
from tests.support.record_blocks import plain
from tests.unit.formats.reference import to_batch

SECRET = "0123456789abcdef"


def batch_of(*values: bytes | None, key: bytes | None = b"4711") -> pa.RecordBatch:
    return to_batch([plain(number, key=key, value=value) for number, value in enumerate(values)])


def values_of(batch: pa.RecordBatch) -> list[Any]:
    return batch.column("value").to_pylist()


def digest(data: bytes) -> str:
    return hmac.new(SECRET.encode(), data, hashlib.sha256).hexdigest()


def test_a_member_is_replaced_by_its_digest_and_its_neighbours_keep_their_text() -> None:
    batch = batch_of(b'{"price": 1.10, "name": "J\\u00f6rg", "id": 12345678901234567890.123, "tags": [ 1, 2 ]}')
    (masked,) = values_of(hashed(batch, "value.name", SECRET))
    name = digest("Jörg".encode())
    expected = f'{{"price":1.10,"name":"{name}","id":12345678901234567890.123,"tags":[ 1, 2 ]}}'
    assert masked == expected.encode()


def test_the_same_text_has_one_digest_as_key_text_and_number() -> None:
    batch = batch_of(b'{"as_text": "4711", "as_number": 4711}')
    masked = hashed(batch, ["key", "value.as_text", "value.as_number"], SECRET)
    (value,) = values_of(masked)
    expected = digest(b"4711")
    assert masked.column("key").to_pylist() == [expected.encode()]
    assert msgspec.json.decode(value) == {"as_text": expected, "as_number": expected}


def test_another_secret_gives_another_digest() -> None:
    batch = batch_of(b'{"name": "x"}')
    assert values_of(hashed(batch, "value.name", SECRET)) != values_of(hashed(batch, "value.name", SECRET[::-1]))


def test_lists_are_gone_into_on_the_way_and_at_the_end() -> None:
    batch = batch_of(b'{"people": [{"mail": "a"}, {"mail": ["b", null]}, {}, null]}')
    (masked,) = values_of(hashed(batch, "value.people.mail", SECRET))
    assert msgspec.json.decode(masked) == {"people": [{"mail": digest(b"a")}, {"mail": [digest(b"b"), None]}, {}, None]}
    (without,) = values_of(nulled(batch, "value.people.mail"))
    assert msgspec.json.decode(without) == {"people": [{"mail": None}, {"mail": [None, None]}, {}, None]}


def test_the_digest_of_an_object_does_not_depend_on_the_order_of_its_members() -> None:
    one, other = values_of(hashed(batch_of(b'{"o":{"a":1,"b":2}}', b'{"o": {"b": 2, "a": 1}}'), "value.o", SECRET))
    assert one == other


def test_what_is_not_there_is_left_as_it_is() -> None:
    batch = batch_of(b'{"a":{"c":1}}', b"null", None, b'{"a":null}')
    masked = hashed(batch, "value.a.b", SECRET)
    assert values_of(masked) == [b'{"a":{"c":1}}', b"null", None, b'{"a":null}']
    assert masked.schema == batch.schema


@pytest.mark.parametrize("value", [b"no JSON", b"", b'{"a":', b"\x00\x00\x00", b'{"a":1}x', b"nul", b'"open'])
def test_a_value_that_is_no_json_is_never_let_through(value: bytes) -> None:
    with pytest.raises(UndecodableError, match="the value at offset 1 is no JSON"):
        hashed(batch_of(b"{}", value), "value.a.b", SECRET)


@pytest.mark.parametrize("value", [b'{"a":"Jane"}', b'"Jane"', b"5", b'[["Jane"]]', b"true"])
def test_a_text_where_a_path_goes_on_is_never_let_through(value: bytes) -> None:
    with pytest.raises(UndecodableError, match="at offset 0 is no object, though a path goes on in it"):
        nulled(batch_of(value), "value.a.b")


def test_a_whole_key_or_value_may_be_any_bytes() -> None:
    batch = batch_of(b"\xff\x00", None, key=b"\x00\x01")
    assert values_of(hashed(batch, "value", SECRET)) == [digest(b"\xff\x00").encode(), None]
    assert values_of(nulled(batch, ["value"])) == [None, None]
    assert fixed(batch, "key", "someone").column("key").to_pylist() == [b"someone"] * 2
    assert values_of(fixed(batch, "value", b"\x01")) == [b"\x01", None]
    assert values_of(fixed(batch, "value", 5)) == [b"5", None]


def test_a_fixed_member_stands_where_null_was_too() -> None:
    batch = batch_of(b'{"name":"Jane","age":null}')
    assert values_of(fixed(batch, ["value.name", "value.age"], 7)) == [b'{"name":7,"age":7}']
    with pytest.raises(UsageError, match="JSON has no bytes"):
        fixed(batch, "value.name", b"x")


def test_what_names_the_schema_of_json_stays_before_it() -> None:
    by_id, by_guid = b"\x00\x00\x00\x00\x07", b"\x01" + bytes(range(16))
    masked = values_of(nulled(batch_of(by_id + b'{"a":1}', by_guid + b'{"a":1}'), "value.a"))
    assert masked == [by_id + b'{"a":null}', by_guid + b'{"a":null}']


def test_a_short_path_covers_those_below_it() -> None:
    batch = batch_of(b'{"a":{"b":1}}')
    assert values_of(nulled(batch, ["value.a.b", "value.a"])) == [b'{"a":null}']
    assert values_of(nulled(batch, ["value.a", "value"])) == [None]


def test_names_with_dots_are_given_as_tuples() -> None:
    assert values_of(nulled(batch_of(b'{"a.b":1}'), [("value", "a.b")])) == [b'{"a.b":null}']


@pytest.mark.parametrize("path", ["", "name", "headers.x", "value.", "value..a", "key.a."])
def test_paths_begin_with_a_column(path: str) -> None:
    with pytest.raises(UsageError, match="is no path"):
        nulled(batch_of(b"{}"), [path])


@pytest.mark.parametrize("secret", ["", "short", b"0123456789abcde"])
def test_a_secret_that_can_be_guessed_is_refused(secret: str | bytes) -> None:
    with pytest.raises(UsageError, match="the secret of hashed has"):
        hashed(batch_of(b"{}"), "value.a", secret)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def plainly_nulled(value: Any, path: list[str]) -> Any:
    """Return a value with what is at a path replaced by null, as plainly as possible; None where a path can't go on."""
    if isinstance(value, list):
        return [plainly_nulled(element, path) for element in value]
    if not path:
        return None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError
    name, *rest = path
    return {each: plainly_nulled(content, rest) if each == name else content for each, content in value.items()}


@given(value=_JSON, path=st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
def test_members_are_found_as_a_plain_walk_finds_them(value: Any, path: list[str]) -> None:
    batch = batch_of(msgspec.json.encode(value))
    try:
        expected = plainly_nulled(value, path)
    except TypeError:
        with pytest.raises(UndecodableError):
            nulled(batch, [("value", *path)])
        return
    (masked,) = values_of(nulled(batch, [("value", *path)]))
    assert msgspec.json.decode(masked) == expected
