"""Check the promises of `kbackup.store.base` for uploads, on every store."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from typing import Any, cast

import pytest
from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, StoreError
from kbackup.store import Store
from kbackup.store.base import Upload
from kbackup.util.system import BufferPool
from tests.contract.conftest import PART, Location
from tests.contract.contents import data_of, race


def test_one_of_two_uploads_wins(atomic_store: Store) -> None:
    def upload(key: str, data: bytes) -> None:
        with atomic_store.upload(key) as upload:
            upload.write(data)
            upload.commit()

    for n, size in enumerate([10, 10, 10, PART + 1, PART + 1, PART + 1]):
        bodies = [b"a" * size, b"b" * size]
        assert race(partial(upload, f"key{n}"), bodies, AlreadyExistsError) == 1
        assert atomic_store.get(f"key{n}") in bodies


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 7 * PART // 2])
def test_upload_of_unknown_size(location: Location, store: Store, size: int) -> None:
    data = data_of(size)
    with store.upload("deep/down/key") as upload:
        for at in range(0, size, 1_000_003):
            upload.write(bytearray(data[at : at + 1_000_003]))
        assert list(store.list()) == []
        assert upload.commit() == (size, crc64nvme(data))
    assert store.get("deep/down/key") == data
    assert store.stat("deep/down/key").size == size
    assert location.unfinished() == []


@pytest.mark.parametrize("size", [3, PART + 3])
def test_commit_to_a_taken_key(location: Location, store: Store, size: int) -> None:
    store.put("key", b"first")
    with store.upload("key") as upload:
        upload.write(bytes(size))
        with pytest.raises(AlreadyExistsError, match="key"):
            upload.commit()
    assert store.get("key") == b"first"
    assert location.unfinished() == []


@pytest.mark.parametrize("size", [0, 3, 2 * PART + 3])
def test_abort_leaves_nothing(location: Location, store: Store, size: int) -> None:
    upload = store.upload("key")
    upload.write(bytes(size))
    upload.abort()
    upload.abort()
    assert list(store.list()) == []
    assert location.unfinished() == []


@pytest.mark.parametrize("size", [0, 3, 2 * PART + 3])
def test_leaving_without_commit_leaves_nothing(location: Location, store: Store, size: int) -> None:
    with store.upload("quiet") as upload:
        upload.write(bytes(size))

    def fail() -> None:
        with store.upload("loud") as upload:
            upload.write(bytes(size))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(store.list()) == []
    assert location.unfinished() == []


def test_an_upload_ends(store: Store) -> None:
    def check(upload: Upload) -> None:
        with pytest.raises(StoreError, match=r"key.*ended"):
            upload.write(b"more")
        with pytest.raises(StoreError, match=r"key.*ended"):
            upload.commit()
        upload.abort()

    with store.upload("key") as upload:
        upload.write(b"all")
        upload.commit()
        check(upload)
    with store.upload("key2") as upload:
        upload.abort()
        check(upload)
    assert [info.key for info in store.list()] == ["key"]
    assert store.get("key") == b"all"


def test_upload_memory_is_bounded(location: Location, store: Store) -> None:
    block = data_of(1 << 20)
    store.put("warm", b"")  # what the first request loads for good is not counted
    tracemalloc.start()
    try:
        with store.upload("key") as upload:
            for _ in range(12 * PART >> 20):
                upload.write(block)
            upload.commit()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - location.in_memory() < 3.2 * PART  # two parts on their way, one being filled, and the SDK
    assert store.stat("key").size == 12 * PART


def test_an_upload_takes_data_over_and_lets_it_go(store: Store) -> None:
    pool = BufferPool(PART + 12_345)
    crc = 0
    gc.disable()  # reference counting is enough
    try:
        with store.upload("key") as upload:
            for n in range(9):
                lease = pool.take()
                lease[:] = n
                crc = crc64nvme(memoryview(cast(Any, lease)), crc)
                upload.write(lease[: n * 1000])  # small ones are copied, large ones are not
                upload.write(lease[n * 1000 :])
                del lease
            assert upload.commit() == (9 * pool.size, crc)
        assert pool.allocated <= 4  # two on their way, one being filled, one that has just been given up
    finally:
        gc.enable()
    assert store.get("key") == b"".join(bytes([n]) * pool.size for n in range(9))


@pytest.mark.parametrize("sizes", [[100] * 3000, [70_000] * 200, [PART - 1, 1, 3 * PART, 5, PART // 2, 2 * PART]])
def test_writes_of_any_size_make_an_upload(location: Location, store: Store, sizes: list[int]) -> None:
    data = data_of(sum(sizes))
    at = 0
    with store.upload("key") as upload:
        for size in sizes:
            upload.write(memoryview(data)[at : at + size])
            at += size
        assert upload.commit() == (len(data), crc64nvme(data))
    assert store.get("key") == data
    assert store.checksum("key") in {None, crc64nvme(data)}
    assert location.unfinished() == []
