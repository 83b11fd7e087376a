"""Encrypted objects: any range of any size, and nothing that was done to them goes unnoticed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.errors import CorruptError, KbackupError, NotFoundError, StoreError, WrongKeyError
from kbackup.store import open_store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import ENCRYPTED_FRAME, FRAME, HEADER, TAG, plain_size, stored_size
from kbackup.store.crypt.keyring import KEYS, Keyring
from tests.support.key_files import MARKER, SIZES, Stores, data_of


@given(st.integers(0, 1 << 50))
def test_sizes_go_both_ways(size: int) -> None:
    assert plain_size(stored_size(size)) == size


@given(st.integers(0, 5 * ENCRYPTED_FRAME))
def test_any_stored_size_has_a_plain_one(stored: int) -> None:
    assert 0 <= plain_size(stored) <= stored


@given(st.sampled_from(SIZES[1:]), st.data())
def test_a_range_of_an_encrypted_object_is_read_as_it_was_written(
    filled: Stores, size: int, data: st.DataObject
) -> None:
    near = st.one_of(st.integers(0, size), st.sampled_from([at for at in SIZES if at <= size]))
    start, end = sorted((data.draw(near), data.draw(near)))
    expected = data_of(size)[start:end]
    key = f"of/{size}"
    assert filled.store.get_range(key, start, end - start) == expected
    into = bytearray(end - start + 2)
    pieces = list(filled.store.fill(key, start, memoryview(into)[1:-1]))
    assert into == b"\0" + expected + b"\0"
    assert b"".join(pieces) == expected


@given(
    st.lists(st.one_of(st.integers(0, 100), st.integers(FRAME - 2, FRAME + 2), st.integers(0, 4 * FRAME)), max_size=6)
)
def test_uploads_in_any_pieces(filled: Stores, sizes: list[int]) -> None:
    data = data_of(sum(sizes))
    at = 0
    with filled.store.upload("uploaded") as upload:
        for size in sizes:
            piece = bytearray(data[at : at + size])
            upload.write(piece)
            piece[:] = bytes(size)  # it has taken a copy
            at += size
        assert upload.commit() == (len(data), crc64nvme(data))
    assert filled.store.get("uploaded") == data
    assert filled.inner.stat("uploaded").size == stored_size(len(data))
    assert filled.store.stat("uploaded").size == len(data)
    assert filled.store.delete(["uploaded"]) == []


def test_nothing_is_stored_in_the_clear(stores: Stores, tmp_path: Path) -> None:
    stores.store.put("put", MARKER * 5000)
    with stores.store.upload("uploaded") as upload:
        upload.write(MARKER)
        upload.commit()
    etag = stores.store.put_new("new", MARKER)
    stores.store.replace("new", MARKER + b"2", etag)
    files = [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    assert len([path for path in files if ".tmp" not in path.parts]) == 4  # the data key is one
    assert not any(MARKER in path.read_bytes() for path in files)


def test_plain_objects_are_not_encrypted(stores: Stores) -> None:
    assert layout.KEYS == KEYS
    for key in (layout.ARCHIVE, layout.LOCK, layout.SCRATCH + "some/probe"):
        etag = stores.store.put_new(key, MARKER)
        assert stores.inner.get_with_etag(key) == (MARKER, etag)
        assert stores.store.get_range(key, 1, 4) == MARKER[1:5]
        assert stores.store.stat(key) == stores.inner.stat(key)
    assert list(stores.inner.list(KEYS)) == []  # and takes no data key


def test_keys_are_no_objects(stores: Stores) -> None:
    stores.store.put("a/b", b"")
    assert [info.key for info in stores.store.list()] == ["a/b"]
    assert list(stores.store.list_dirs()) == ["a"]
    assert not any(stores.store.list("keys/"))
    assert not any(stores.store.list_dirs("keys/"))
    (file,) = [info.key for info in stores.inner.list(KEYS)]
    asks: list[Callable[[], object]] = [
        lambda: stores.store.get(file),
        lambda: stores.store.put(file, b""),
        lambda: stores.store.stat(file),
        lambda: stores.store.upload(file),
        lambda: stores.store.get_range(file, 0, 1),
    ]
    for ask in asks:
        with pytest.raises(StoreError, match="can't be used"):
            ask()
    assert [failed.key for failed in stores.store.delete([file])] == [file]
    assert stores.inner.stat(file).size > 0


# Encrypted stores are pickled, and opened by address and key.


def test_a_pickled_store_needs_the_key_no_more(stores: Stores, tmp_path: Path) -> None:
    """Executors get the data keys of the archive, and not what wraps them."""
    stores.opened().put("by/another/run", b"1")
    stores.store.put("by/this/run", b"2")
    kek = (tmp_path / "key").read_text()
    pickled = pickle.dumps(stores.store)
    assert kek.encode() not in pickled
    (tmp_path / "key").unlink()
    other: CryptStore = pickle.loads(pickled)
    assert (other.get("by/another/run"), other.get("by/this/run")) == (b"1", b"2")
    other.put("by/a/task", b"3")
    assert len(list(stores.inner.list(KEYS))) == 2  # under this run's data key


def test_a_store_is_pickled_whatever_it_can_not_read(stores: Stores, tmp_path: Path) -> None:
    stores.store.put("key", b"data")
    stores.inner.put(KEYS + "damaged.json", b"{")
    other: CryptStore = pickle.loads(pickle.dumps(stores.opened()))
    assert other.get("key") == b"data"
    (tmp_path / "key").unlink()
    other = pickle.loads(pickle.dumps(stores.opened()))
    with pytest.raises(WrongKeyError, match="can't read the key file"):
        other.get("key")


def test_a_store_is_opened_by_address_and_key(stores: Stores, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"), None, stores.key, key_class=layout.key_class)
    store.put("key", MARKER)
    assert stores.opened().get("key") == MARKER
    assert MARKER not in stores.inner.get("key")
    assert store.url == str(tmp_path / "archive")


@pytest.mark.parametrize("source", ["", "AAAA", "hush", "/path", "vault:x", "file:", "env: "])
def test_invalid_key_sources_are_refused(source: str, stores: Stores) -> None:
    with pytest.raises(KbackupError, match="not named by the place where it is") as caught:
        Keyring(stores.inner, source)
    assert caught.value.exit_code == 2
    assert not source.strip() or source not in caught.value.message


# Encrypted objects that were flipped, cut, moved or replaced are refused.


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
def test_a_flipped_bit_of_an_encrypted_object_is_found(filled: Stores, size: int, data: st.DataObject) -> None:
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
    "cut", [0, 5, 7, 8, 30, HEADER, HEADER + TAG - 1, HEADER + 100, HEADER + ENCRYPTED_FRAME, -1, -TAG, -77 - TAG]
)
def test_a_cut_encrypted_object_is_refused(stores: Stores, cut: int) -> None:
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
