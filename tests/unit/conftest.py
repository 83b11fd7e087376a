"""Fixtures of all unit tests: directories that need not outlive a power loss, and addresses of stores in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import kbackup.store
from kbackup.store.options import KeyClasses
from tests.support.memory_store import open_memory


@pytest.fixture(scope="module", autouse=True)
def _unsynced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Archives of tests whose subject is no store are not synced to the disk, which takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        if "unit/store" not in request.path.as_posix():
            patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def addressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process open a `MemoryStore` by its address."""
    plain = kbackup.store._plain_store

    def open_plain(url: str, options: kbackup.store.S3Options | None, key_class: KeyClasses) -> kbackup.store.Store:
        return open_memory(url) if url.startswith("memory://") else plain(url, options, key_class)

    monkeypatch.setattr(kbackup.store, "_plain_store", open_plain)
