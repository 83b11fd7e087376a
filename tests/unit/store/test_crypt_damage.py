"""Encrypted objects that were flipped, cut, moved or replaced are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import ENCRYPTED_FRAME, FRAME, HEADER, TAG
from tests.support.encrypted_stores import Stores, data_of


def reads(store: CryptStore, key: str, size: int) -> list[Callable[[], object]]:
    """Every way to read a whole object of `size` plain bytes."""
    return [
        partial(store.get, key),
        partial(store.get_with_etag, key),
        partial(store.get_range, key, 0, size),
        lambda: list(store.fill(key, 0, memoryview(bytearray(size)))),
    ]


def must_refuse(stores: Stores, key: str, size: int) -> None:
    for read in reads(stores.opened(), key, size):
        with pytest.raises(CorruptError, match=key):
            read()


@given(st.sampled_from([1, 1000, FRAME + 1]), st.data())
def test_a_flipped_bit(filled: Stores, size: int, data: st.DataObject) -> None:
    stored = bytearray(filled.inner.get(f"of/{size}"))
    at = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[at // 8] ^= 1 << at % 8
    name = f"of/{size}"
    whole = filled.inner.get(name)
    try:
        filled.inner.put(name, stored)
        must_refuse(filled, name, size)
    finally:
        filled.inner.put(name, whole)


@pytest.mark.parametrize(
    "cut",
    [0, 5, 7, 8, 30, HEADER, HEADER + TAG - 1, HEADER + 100, HEADER + ENCRYPTED_FRAME, -1, -TAG, -77 - TAG],
)
def test_a_cut_object(stores: Stores, cut: int) -> None:
    size = 3 * FRAME + 77
    stores.store.put("key", data_of(size))
    stores.inner.put("key", stores.inner.get("key")[:cut])
    must_refuse(stores, "key", size)
    assert stores.store.stat("key").size < size


def moved(stored: bytes, order: list[int]) -> bytes:
    frames = [stored[at : at + ENCRYPTED_FRAME] for at in range(HEADER, len(stored), ENCRYPTED_FRAME)]
    return stored[:HEADER] + b"".join(frames[n] for n in order)


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 2], [0, 1], [0, 1, 1, 2], [0, 0, 2], [2], [0, 1, 2, 2], []])
def test_frames_in_another_order(stores: Stores, order: list[int]) -> None:
    size = 2 * FRAME + 77
    stores.store.put("key", data_of(size))
    stores.inner.put("key", moved(stores.inner.get("key"), order))
    must_refuse(stores, "key", size)


@pytest.mark.parametrize("size", [0, 77, FRAME, FRAME + 5])
def test_an_object_under_another_name(stores: Stores, size: int) -> None:
    stores.store.put("one", data_of(size))
    stores.store.put("other", data_of(size))
    stores.inner.put("other", stores.inner.get("one"))
    with pytest.raises(CorruptError, match="other"):
        stores.opened().get("other")
    assert stores.store.get("one") == data_of(size)


def test_a_frame_of_another_object_or_version(stores: Stores) -> None:
    stores.store.put("key", data_of(2 * FRAME))
    before = stores.inner.get("key")
    stores.store.put("key", data_of(2 * FRAME))
    after = stores.inner.get("key")
    mixed = after[: HEADER + ENCRYPTED_FRAME] + before[HEADER + ENCRYPTED_FRAME :]
    assert len(mixed) == len(after)
    stores.inner.put("key", mixed)
    must_refuse(stores, "key", 2 * FRAME)


def test_an_older_version_is_genuine(stores: Stores) -> None:
    """Encryption alone can't tell: manifests do (formats/encryption.md)."""
    stores.store.put("key", b"older")
    before = stores.inner.get("key")
    stores.store.put("key", b"newer")
    stores.inner.put("key", before)
    assert stores.opened().get("key") == b"older"


def test_an_object_that_was_not_encrypted(stores: Stores) -> None:
    stores.inner.put("key", b"as it is" * 100)
    must_refuse(stores, "key", 100)
    stores.inner.put("key", b"KBCRYPT\x03" + bytes(200))
    with pytest.raises(CorruptError, match=r"key at byte 7: encrypted in version 3, known is 2"):
        stores.store.get("key")


@pytest.mark.parametrize("size", [10, 3 * FRAME])
def test_an_object_that_is_replaced_between_two_reads(stores: Stores, size: int) -> None:
    stores.store.put("key", data_of(size))
    assert stores.store.get_range("key", 0, 5) == data_of(size)[:5]
    stores.opened().put("key", b"x" * 2 * size)
    assert stores.store.get_range("key", size, 5) == b"xxxxx"
    assert b"".join(stores.store.fill("key", 0, memoryview(bytearray(5)))) == b"xxxxx"
    stores.opened().put("key", b"yz")
    with pytest.raises(CorruptError, match="has 2 bytes"):
        stores.store.get_range("key", size, 5)
    assert stores.store.get_range("key", 0, 2) == b"yz"
    stores.inner.delete(["key"])
    with pytest.raises(NotFoundError):
        stores.store.get_range("key", 0, 1)
