"""The stores that every test of the contract runs on, and objects that tests put into them."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from awscrt.checksums import crc64nvme

from kbackup.archive import layout
from kbackup.errors import StoreError
from kbackup.store import S3Options, Store, open_store
from kbackup.store.azure import AzureOptions
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.gcs import GcsOptions
from kbackup.store.wrappers import CachedStore, DiskCache
from scripts.dev.azurite import Azurite
from scripts.dev.gcs import FakeGcs
from scripts.dev.s3 import S3Server
from tests.contract.proxy import Proxy
from tests.support.memory_store import MemoryStore

PART = 5 << 20


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def fill(store: Store, keys: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))


def upload(store: Store, key: str, data: bytes) -> None:
    with store.upload(key) as started:
        started.write(data)
        assert started.commit() == (len(data), crc64nvme(data))


def race(attempt: Callable[[bytes], object], bodies: list[bytes], lost: type[StoreError]) -> int:
    """Start one attempt with each body at the same time, and return how many succeeded."""
    barrier = threading.Barrier(len(bodies))

    def run(body: bytes) -> bool:
        barrier.wait()
        try:
            attempt(body)
        except lost:
            return False
        return True

    with ThreadPoolExecutor(len(bodies)) as pool:
        return sum(pool.map(run, bodies))


@dataclass
class Location:
    """An address at which tests open a store; it is empty at first. `unfinished` are the names of unfinished writes
    that the store still holds, `in_memory` the bytes of objects that this process holds for the store, `refused` the
    awkward keys that it can't keep."""

    url: str
    store: Callable[[], Store]
    unfinished: Callable[[], list[str]]
    in_memory: Callable[[], int] = lambda: 0
    refused: tuple[str, ...] = ()


def file_location(root: Path) -> Location:
    def unfinished() -> list[str]:
        return [path.name for path in (root / ".tmp").glob("*") if path.name != "lock"]

    return Location(f"file://{root}", lambda: open_store(f"file://{root}"), unfinished)


def memory_location() -> Location:
    memory = MemoryStore()
    return Location(
        memory.url, lambda: memory, lambda: memory.unfinished, lambda: sum(info.size for info in memory.list())
    )


def encrypted(inner: Location, folder: Path) -> Location:
    """Return another location, where everything is encrypted."""
    (folder / "key").write_text(generate_key())
    source = f"file:{folder / 'key'}"

    def store() -> Store:
        return CryptStore(inner.store(), Keyring(inner.store(), source), layout.key_class)

    return Location(inner.url, store, inner.unfinished)


def options_of(server: S3Server, **more: Any) -> S3Options:
    return S3Options(**server.options | {"part_size": PART, "max_attempts": 3} | more)


class S3Location(Location):
    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.bucket = f"contract-{secrets.token_hex(8)}"
        server.create_bucket(self.bucket)
        super().__init__(f"s3://{self.bucket}/some/prefix", self.opened, self._unfinished)

    def options(self, **more: Any) -> S3Options:
        return options_of(self.server, **more)

    def opened(self, **more: Any) -> Store:
        return open_store(self.url, {"s3": self.options(**more)})

    def _unfinished(self) -> list[str]:
        uploads = self.server.client().list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [upload["Key"] for upload in uploads]


class GcsLocation(Location):
    """A bucket of fake-gcs-server. Nothing lists unfinished uploads, so none is `unfinished`."""

    def __init__(self, server: FakeGcs) -> None:
        self.server = server
        self.bucket = f"contract-{secrets.token_hex(8)}"
        server.create_bucket(self.bucket)
        super().__init__(f"gs://{self.bucket}/some/prefix", self.opened, list)

    def options(self, **more: Any) -> GcsOptions:
        return GcsOptions(**self.server.options | {"part_size": PART, "max_attempts": 3} | more)

    def opened(self, **more: Any) -> Store:
        return open_store(self.url, {"gcs": self.options(**more)})


class AzureLocation(Location):
    """A container of Azurite. Blocks that nobody made an object of are in no listing, so none is `unfinished`."""

    def __init__(self, server: Azurite) -> None:
        self.server = server
        self.bucket = f"contract-{secrets.token_hex(8)}"
        server.create_container(self.bucket)
        super().__init__(f"az://{server.account}/{self.bucket}/some/prefix", self.opened, list)
        self.refused = ("dots...", "back\\slash")

    def options(self, **more: Any) -> AzureOptions:
        return AzureOptions(**self.server.options | {"part_size": PART, "max_attempts": 3} | more)

    def opened(self, **more: Any) -> Store:
        if "endpoint_url" in more:
            more["endpoint_url"] += f"/{self.server.account}"
        return open_store(self.url, {"azure": self.options(**more)})


_BUCKETS = ["moto", "minio", "versitygw", "azurite", "fakegcs"]


def bucket_location(name: str, request: pytest.FixtureRequest) -> S3Location | AzureLocation | GcsLocation:
    server = request.getfixturevalue(f"{name}_server")
    kinds: dict[str, Any] = {"azurite": AzureLocation, "fakegcs": GcsLocation}
    location: S3Location | AzureLocation | GcsLocation = kinds.get(name, S3Location)(server)
    return location


@pytest.fixture(params=["memory", "file", *_BUCKETS, "encrypted-file", "encrypted-minio", "cached-file"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    wrapper, _, name = request.param.rpartition("-")
    location: Location
    if name == "memory":
        location = memory_location()
    elif name == "file":
        location = file_location(tmp_path / "archive")
    else:
        location = bucket_location(name, request)
    if wrapper == "encrypted":
        return encrypted(location, tmp_path)
    if wrapper == "cached":
        cache = DiskCache(tmp_path / "cache")
        return Location(location.url, lambda: CachedStore(location.store(), cache), location.unfinished)
    return location


@pytest.fixture(params=["moto", "minio", "versitygw"])
def s3_location(request: pytest.FixtureRequest) -> S3Location:
    return S3Location(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def store(location: Location) -> Store:
    return location.store()


@pytest.fixture(params=["memory", "file", "minio", "versitygw", "azurite", "fakegcs"])
def atomic_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store whose conditional writes are atomic; moto's are not: two of them can both win."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "file":
        return open_store(str(tmp_path / "archive"))
    return bucket_location(request.param, request).store()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No store waits before it asks again."""
    for wait in ("reading._FIRST_WAIT", "azure.container._FIRST_WAIT", "gcs.client._FIRST_WAIT"):
        monkeypatch.setattr(f"kbackup.store.{wait}", 0.01)


@pytest.fixture
def proxy(s3_location: S3Location) -> Iterator[Proxy]:
    with Proxy(s3_location.server.endpoint_url) as running:
        yield running
    assert not running.answers_to_lose, "an answer that was to be lost arrived"


@pytest.fixture
def through(s3_location: S3Location, proxy: Proxy) -> Store:
    """A store whose server is behind the proxy."""
    return s3_location.opened(endpoint_url=proxy.url)
