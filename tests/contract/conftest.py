"""The stores that the contract holds for: each test runs on every one."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from kbackup.store import S3Options, Store, open_store
from kbackup.store.cached import CachedStore, Shelf
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from scripts.dev.s3 import S3Server
from tests.support.memory_store import MemoryStore

PART = 5 << 20


class Place(ABC):
    """Somewhere to open a store; every `Place` is empty at first."""

    url: str

    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def unfinished(self) -> list[str]:
        """What writes that did not end left behind."""

    def in_memory(self) -> int:
        """Bytes of objects that this process holds for the store."""
        return 0


class FilePlace(Place):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def store(self) -> Store:
        return open_store(self.url)

    def unfinished(self) -> list[str]:
        return [path.name for path in (self.root / ".tmp").glob("*") if path.name != "lock"]


class MemoryPlace(Place):
    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.url = self.memory.url

    def store(self) -> Store:
        return self.memory

    def unfinished(self) -> list[str]:
        return self.memory.unfinished

    def in_memory(self) -> int:
        return sum(info.size for info in self.memory.list())


class S3Place(Place):
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
        found = self.server.client().list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [upload["Key"] for upload in found]


class EncryptedPlace(Place):
    """Another place, where everything is encrypted."""

    def __init__(self, inner: Place, folder: Path) -> None:
        self.inner = inner
        self.url = inner.url
        self.key = folder / "key"
        self.key.write_text(generate_key())

    def store(self) -> Store:
        return CryptStore(self.inner.store(), Keyring(self.inner.store(), f"file:{self.key}"))

    def unfinished(self) -> list[str]:
        return self.inner.unfinished()


class CachedPlace(Place):
    """Another place, of which is kept on this machine what was listed."""

    def __init__(self, inner: Place, folder: Path) -> None:
        self.inner = inner
        self.url = inner.url
        self.folder = folder / "cache"

    def store(self) -> Store:
        return CachedStore(self.inner.store(), Shelf(self.folder))

    def unfinished(self) -> list[str]:
        return self.inner.unfinished()


@pytest.fixture(
    params=["memory", "file", "moto", "minio", "encrypted-file", "encrypted-minio", "cached-file"]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        return MemoryPlace()
    if request.param == "cached-file":
        return CachedPlace(FilePlace(tmp_path / "archive"), tmp_path)
    name = request.param.removeprefix("encrypted-")
    place: Place = (
        FilePlace(tmp_path / "archive")
        if name == "file"
        else S3Place(request.getfixturevalue(f"{name}_server"))
    )
    return EncryptedPlace(place, tmp_path) if name != request.param else place


@pytest.fixture(params=["moto", "minio"])
def s3_place(request: pytest.FixtureRequest) -> S3Place:
    return S3Place(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def store(place: Place) -> Store:
    return place.store()


@pytest.fixture(params=["memory", "file", "minio"])
def atomic_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Without moto, which looks and then writes: two of its conditional writes can both win."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "file":
        return FilePlace(tmp_path / "archive").store()
    return S3Place(request.getfixturevalue("minio_server")).store()
