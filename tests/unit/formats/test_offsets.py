from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import CorruptError, UsageError
from kbackup.formats.index import decode_group_offsets, encode_group_offsets

GROUPS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(GROUPS, st.integers(-1, 2**63 - 1)))
def test_round_trip_without_groups_that_never_committed(offsets: dict[str, int]) -> None:
    data = encode_group_offsets(offsets)
    there = {group: offset for group, offset in offsets.items() if offset != -1}
    assert json.loads(data) == there
    found = decode_group_offsets(data, "groups")
    assert list(found.items()) == list(there.items())


def test_group_files_are_compact_utf8() -> None:
    assert encode_group_offsets({"grün": 1, "b": -1, "c": 0}) == '{"grün":1,"c":0}'.encode()
    assert encode_group_offsets({}) == b"{}"


@pytest.mark.parametrize("offset", [-2, 2**63])
def test_impossible_offsets_are_not_written(offset: int) -> None:
    with pytest.raises(UsageError, match="group g: offset"):
        encode_group_offsets({"g": offset})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
        (b'{"a":1}x', "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON"),
        (b'{"\xff":1}', "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b'{"a":1,"a":1}', "stands there twice"),
        (b'{"a":-1}', "no offset"),
        (b'{"a":1.0}', "no offset"),
        (b'{"a":true}', "no offset"),
        (b'{"a":null}', "no offset"),
        (b'{"a":"1"}', "no offset"),
        (b'{"a":{}}', "no offset"),
        (b'{"a":9223372036854775808}', "no offset"),
        (b'{"\\ud800":1}', "not Unicode"),
    ],
)
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=f"groups: .*{message}") as caught:
        decode_group_offsets(data, "groups")
    assert caught.value.hint


@given(st.binary(max_size=60) | GROUPS.map(str.encode))
def test_arbitrary_bytes_give_offsets_or_a_refusal(data: bytes) -> None:
    try:
        found = decode_group_offsets(data, "groups")
    except CorruptError:
        return
    assert json.loads(data) == found
