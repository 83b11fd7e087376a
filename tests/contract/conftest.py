"""The stores that every test of the contract runs on."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.store import S3Options, Store, open_store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.wrappers import CachedStore, Shelf
from scripts.dev.s3 import S3Server
from tests.contract.proxy import Proxy
from tests.support.memory_store import MemoryStore

PART = 5 << 20


class Location(ABC):
    """An address at which tests open a store; it is empty at first."""

    url: str

    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def unfinished(self) -> list[str]:
        """Return the names of unfinished writes that the store still holds."""

    def in_memory(self) -> int:
        """Return the bytes of objects that this process holds for the store."""
        return 0


class FileLocation(Location):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def store(self) -> Store:
        return open_store(self.url)

    def unfinished(self) -> list[str]:
        return [path.name for path in (self.root / ".tmp").glob("*") if path.name != "lock"]


class MemoryLocation(Location):
    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.url = self.memory.url

    def store(self) -> Store:
        return self.memory

    def unfinished(self) -> list[str]:
        return self.memory.unfinished

    def in_memory(self) -> int:
        return sum(info.size for info in self.memory.list())


class S3Location(Location):
    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.bucket = f"contract-{secrets.token_hex(8)}"
        self.url = f"s3://{self.bucket}/some/prefix"
        server.create_bucket(self.bucket)

    def options(self, endpoint_url: str = "", secret_key: str = "", max_attempts: int = 3) -> S3Options:
        return S3Options(
            endpoint_url=endpoint_url or self.server.endpoint_url,
            access_key_id=self.server.access_key,
            secret_access_key=secret_key or self.server.secret_key,
            region=self.server.region,
            part_size=PART,
            max_attempts=max_attempts,
        )

    def store(self) -> Store:
        return open_store(self.url, self.options())

    def unfinished(self) -> list[str]:
        uploads = self.server.client().list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [upload["Key"] for upload in uploads]


class EncryptedLocation(Location):
    """Another location, where everything is encrypted."""

    def __init__(self, inner: Location, folder: Path) -> None:
        self.inner = inner
        self.url = inner.url
        self.key = folder / "key"
        self.key.write_text(generate_key())

    def store(self) -> Store:
        return CryptStore(self.inner.store(), Keyring(self.inner.store(), f"file:{self.key}"), layout.key_class)

    def unfinished(self) -> list[str]:
        return self.inner.unfinished()


class CachedLocation(Location):
    """Another location, with a cache on this machine."""

    def __init__(self, inner: Location, folder: Path) -> None:
        self.inner = inner
        self.url = inner.url
        self.folder = folder / "cache"

    def store(self) -> Store:
        return CachedStore(self.inner.store(), Shelf(self.folder))

    def unfinished(self) -> list[str]:
        return self.inner.unfinished()


@pytest.fixture(params=["memory", "file", "moto", "minio", "encrypted-file", "encrypted-minio", "cached-file"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "memory":
        return MemoryLocation()
    if request.param == "cached-file":
        return CachedLocation(FileLocation(tmp_path / "archive"), tmp_path)
    name = request.param.removeprefix("encrypted-")
    location: Location = (
        FileLocation(tmp_path / "archive") if name == "file" else S3Location(request.getfixturevalue(f"{name}_server"))
    )
    return EncryptedLocation(location, tmp_path) if name != request.param else location


@pytest.fixture(params=["moto", "minio"])
def s3_location(request: pytest.FixtureRequest) -> S3Location:
    return S3Location(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def store(location: Location) -> Store:
    return location.store()


@pytest.fixture(params=["memory", "file", "minio"])
def atomic_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store whose conditional writes are atomic; moto's are not: two of them can both win."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "file":
        return FileLocation(tmp_path / "archive").store()
    return S3Location(request.getfixturevalue("minio_server")).store()


@pytest.fixture
def proxy(s3_location: S3Location) -> Iterator[Proxy]:
    with Proxy(s3_location.server.endpoint_url) as running:
        yield running
    assert not running.answers_to_lose, "an answer that was to be lost arrived"


@pytest.fixture
def through(s3_location: S3Location, proxy: Proxy) -> Store:
    """A store whose server is behind the proxy."""
    return open_store(s3_location.url, s3_location.options(proxy.url))
