"""Encrypted objects: any range of any size, and nothing that was done to them goes unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.errors import StoreError
from kbackup.store.crypt.frames import ENCRYPTED_FRAME, FRAME, plain_size, stored_size
from kbackup.store.crypt.keyring import KEYS
from tests.support.encrypted_stores import MARKER, SIZES, Stores, data_of


@given(st.integers(0, 1 << 50))
def test_sizes_go_both_ways(size: int) -> None:
    assert plain_size(stored_size(size)) == size


@given(st.integers(0, 5 * ENCRYPTED_FRAME))
def test_any_stored_size_has_a_plain_one(stored: int) -> None:
    assert 0 <= plain_size(stored) <= stored


@given(st.sampled_from(SIZES[1:]), st.data())
def test_ranges(filled: Stores, size: int, data: st.DataObject) -> None:
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
    st.lists(
        st.one_of(st.integers(0, 100), st.integers(FRAME - 2, FRAME + 2), st.integers(0, 4 * FRAME)),
        max_size=6,
    )
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
