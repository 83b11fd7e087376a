"""Digests of keys against a reference that goes byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.formats import key_digests
from kbackup.formats.key_digests import keys_of
from tests.support.plain_records import Plain, block_of

WORD = (1 << 64) - 1


def mixed(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & WORD
    return number ^ (number >> 31)


def digest(key: bytes) -> int:
    total = mixed(len(key))
    for place, byte in enumerate(key, 1):
        total += mixed(place << 8 | byte)
    return mixed(total & WORD)


def rows(keys: Sequence[bytes | None], value: bytes | None = b"v") -> list[tuple[int, int, bool]]:
    found = keys_of(block_of([Plain(key, value) for key in keys]))
    return [(int(row["digest"]), int(row["offset"]), bool(row["has_value"])) for row in found]


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20))
def test_each_key_has_the_digest_of_its_bytes_and_records_without_a_key_have_none(keys: list[bytes | None]) -> None:
    expected = [(digest(key), offset, True) for offset, key in enumerate(keys) if key is not None]
    assert rows(keys) == expected


def test_keys_that_are_read_in_several_chunks_have_the_same_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"", b"a", b"b" * 50, b"c" * 9, b"", b"d"]
    whole = rows(keys)
    monkeypatch.setattr(key_digests, "_AT_ONCE", 10)
    assert rows(keys) == whole


def test_a_deletion_has_no_value_and_an_empty_value_is_one() -> None:
    ((_, _, deletion_has_value),) = rows([b"k"], None)
    ((_, _, empty_has_value),) = rows([b"k"], b"")
    assert not deletion_has_value
    assert empty_has_value


def test_anagrams_and_neighbours_have_different_digests() -> None:
    keys = [b"ab", b"ba", b"a", b"b", b"", b"\0", b"\0\0", b"key-1", b"key-2", b"1-key"]
    assert len({digest for digest, _, _ in rows(keys)}) == len(keys)
