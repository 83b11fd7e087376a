"""The archive that retention is tested with."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.expirations import build
from tests.support.memory_store import MemoryStore


@pytest.fixture(scope="module")
def built() -> MemoryStore:
    """`build`; tests take copies."""
    store = MemoryStore()
    build(store)
    return store


@pytest.fixture(params=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    plain = MemoryStore()
    if request.param == "plain":
        return plain
    (tmp_path / "key").write_text(generate_key())
    return CryptStore(plain, Keyring(plain, f"file:{tmp_path / 'key'}"), layout.key_class)
