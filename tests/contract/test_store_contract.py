"""Check the promises of `kbackup.store.base` for objects, keys and conditional writes, on every store."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, NotFoundError, PreconditionError, StoreError
from kbackup.store import Store
from kbackup.store.base import Buffer, view_of
from kbackup.store.probe import check_conditional_writes
from tests.contract.conftest import PART, Location
from tests.contract.contents import data_of, fill, race


def test_get_returns_the_bytes_and_etag_of_put(store: Store) -> None:
    etag = store.put("dir/key", b"one")
    assert store.get("dir/key") == b"one"
    assert store.get_with_etag("dir/key") == (b"one", etag)
    other = store.put("dir/key", b"another")
    assert other != etag
    assert store.get_with_etag("dir/key") == (b"another", other)


@pytest.mark.parametrize(
    "data", [b"", bytearray(b"ab"), memoryview(b"xabc")[1:], np.arange(200, dtype=np.uint8), np.empty(0, np.uint8)]
)
def test_any_buffer_can_be_put(store: Store, data: Buffer) -> None:
    store.put("a", data)
    store.put_new("b", data)
    with store.upload("c") as upload:
        upload.write(data)
        upload.commit()
    assert store.get("a") == store.get("b") == store.get("c") == view_of(data).tobytes()


def test_a_reader_never_sees_a_part(store: Store) -> None:
    versions = [bytes([n]) * 300_000 for n in range(8)]
    store.put("key", versions[0])
    done = threading.Event()

    def write() -> None:
        for version in versions:
            store.put("key", version)
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not done.is_set() and not writing.done():
            assert store.get("key") in versions
        writing.result()


def test_put_new_creates_once(store: Store) -> None:
    etag = store.put_new("key", b"first")
    with pytest.raises(AlreadyExistsError, match="key"):
        store.put_new("key", b"second")
    assert store.get_with_etag("key") == (b"first", etag)


def test_replace_needs_the_version(store: Store) -> None:
    first = store.put_new("lock", b"1")
    second = store.replace("lock", b"2", first)
    with pytest.raises(PreconditionError, match="lock"):
        store.replace("lock", b"3", first)
    assert store.get_with_etag("lock") == (b"2", second)
    assert store.stat("lock").etag == second
    assert [info.etag for info in store.list()] == [second]
    store.replace("lock", b"3", second)
    assert store.get("lock") == b"3"


def test_replace_of_nothing(store: Store) -> None:
    etag = store.put("lock", b"1")
    store.delete(["lock"])
    with pytest.raises(NotFoundError, match="lock"):
        store.replace("lock", b"2", etag)
    assert list(store.list()) == []


def test_one_of_two_replaces_wins(atomic_store: Store) -> None:
    etag = atomic_store.put_new("lock", b"start")
    for n in range(25):
        bodies = [b"a%d" % n, b"b%d" % n]
        assert race(partial(atomic_store.replace, "lock", etag=etag), bodies, PreconditionError) == 1
        found, etag = atomic_store.get_with_etag("lock")
        assert found in bodies


def test_one_of_two_creates_wins(atomic_store: Store) -> None:
    for n in range(25):
        bodies = [b"a", b"b"]
        assert race(partial(atomic_store.put_new, f"key{n}"), bodies, AlreadyExistsError) == 1
        assert atomic_store.get(f"key{n}") in bodies


def test_missing_objects(store: Store) -> None:
    store.put("a/b", b"")
    for key in ("nothing", "a", "a/b/c", "a/nothing"):
        for ask in (store.get, store.get_with_etag, store.stat):
            with pytest.raises(NotFoundError, match=key):
                ask(key)
        with pytest.raises(NotFoundError, match=key):
            store.get_range(key, 0, 1)
        with pytest.raises(NotFoundError, match=key):
            list(store.fill(key, 0, memoryview(bytearray(1))))


def test_an_empty_store(store: Store) -> None:
    assert list(store.list()) == list(store.list("some/prefix")) == []
    assert list(store.list_dirs()) == []
    assert store.delete(["key", "dir/key"]) == []
    with pytest.raises(NotFoundError):
        store.get("key")


def test_stat(store: Store) -> None:
    etag = store.put("dir/key", b"12345")
    info = store.stat("dir/key")
    assert (info.key, info.size, info.etag) == ("dir/key", 5, etag)
    assert info.modified > 1_700_000_000
    (listed,) = store.list()
    assert (listed.key, listed.size, listed.etag) == ("dir/key", 5, etag)
    assert abs(listed.modified - info.modified) < 2


def test_delete(store: Store) -> None:
    keys = [f"d{n % 7}/{n}" for n in range(1100)]
    fill(store, keys[:300])
    store.put("kept", b"")
    assert store.delete(iter(keys)) == []
    assert [info.key for info in store.list()] == ["kept"]


def test_delete_reports_each_failure(store: Store) -> None:
    fill(store, ["a", "b"])
    failed = store.delete(["a", "../b", "", "b"])
    assert [failure.key for failure in failed] == ["../b", ""]
    assert all(isinstance(failure.error, StoreError) for failure in failed)
    assert list(store.list()) == []


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b", "\ud800", "k" * 1025]
)
def test_keys_that_can_not_be(store: Store, key: str) -> None:
    asks: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.stat(key),
        lambda: store.put(key, b""),
        lambda: store.put_new(key, b""),
        lambda: store.replace(key, b"", "etag"),
        lambda: store.upload(key),
    ]
    for ask in asks:
        with pytest.raises(StoreError, match="can't be used"):
            ask()


def test_a_pickled_store_is_the_same_store(location: Location, store: Store) -> None:
    store.put("key", b"data")
    other: Store = pickle.loads(pickle.dumps(store))
    assert other.url == store.url == location.url
    assert other.get("key") == b"data"
    assert other.get_with_etag("key") == store.get_with_etag("key")


def test_many_threads(store: Store) -> None:
    def work(n: int) -> None:
        data = data_of(PART + 1000 * n) if n < 3 else data_of(100 * n)
        with store.upload(f"dir{n % 3}/key{n}") as upload:
            upload.write(data)
            upload.commit()
        assert store.get(f"dir{n % 3}/key{n}") == data
        if n >= 6:
            assert store.delete([f"dir{n % 3}/key{n}"]) == []

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    assert {info.key for info in store.list()} == {f"dir{n % 3}/key{n}" for n in range(6)}


def test_the_probe_passes(store: Store) -> None:
    check_conditional_writes(store, "probes")
    assert list(store.list()) == []


@pytest.mark.parametrize("size", [0, 1000, 2 * PART + 1])
def test_a_kept_checksum_is_that_of_the_bytes(store: Store, size: int, request: pytest.FixtureRequest) -> None:
    data = data_of(size)
    store.put("whole", data)
    with store.upload("streamed") as upload:
        upload.write(data)
        upload.commit()
    kept = {store.checksum("whole"), store.checksum("streamed")}
    assert kept <= {None, crc64nvme(data)}
    if request.node.callspec.params["location"] == "minio":  # moto forgets it
        assert kept == {crc64nvme(data)}


def test_no_checksum_of_what_is_not_there(store: Store) -> None:
    with pytest.raises(NotFoundError):
        store.checksum("missing")
