"""Check the promises of `kbackup.store.base` for ranges of objects, on every store."""

from __future__ import annotations

import pytest

from kbackup.errors import CorruptError
from kbackup.store import Store
from kbackup.store.base import CHUNK
from tests.contract.contents import data_of


def test_ranges(store: Store) -> None:
    data = data_of(3 * CHUNK + 17)
    store.put("key", data)
    for start, length in [
        (0, 1), (0, len(data)), (5, 0), (len(data) - 1, 1), (1, CHUNK), (CHUNK - 1, 2), (7, 2 * CHUNK + 5),
    ]:  # fmt: skip
        assert store.get_range("key", start, length) == data[start : start + length]
        chunks = list(store.open_range("key", start, length))
        assert b"".join(chunks) == data[start : start + length]
        assert all(0 < len(chunk) <= CHUNK for chunk in chunks)
        into = bytearray(length + 2)
        pieces = [len(piece) for piece in store.fill("key", start, memoryview(into)[1:-1])]
        assert into == b"\0" + data[start : start + length] + b"\0"
        assert sum(pieces) == length
        assert all(0 < size <= CHUNK for size in pieces)


def test_a_range_that_is_left_early(store: Store) -> None:
    store.put("key", data_of(4 * CHUNK))
    for _ in range(40):  # more than a client has connections
        chunks = store.open_range("key", 0, 4 * CHUNK)
        next(chunks)
        del chunks
        pieces = store.fill("key", 0, memoryview(bytearray(4 * CHUNK)))
        next(pieces)
        del pieces
    for _ in range(40):
        assert len(list(store.fill("key", 0, memoryview(bytearray(10))))) == 1
    assert store.get_range("key", 1, 2) == data_of(4 * CHUNK)[1:3]


@pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (1000, 5)])
def test_a_range_past_the_end(store: Store, start: int, length: int) -> None:
    store.put("key", b"0123456789")
    with pytest.raises(CorruptError, match="key"):
        store.get_range("key", start, length)
    with pytest.raises(CorruptError, match="key"):
        list(store.open_range("key", start, length))
    with pytest.raises(CorruptError, match="key"):
        list(store.fill("key", start, memoryview(bytearray(length))))
