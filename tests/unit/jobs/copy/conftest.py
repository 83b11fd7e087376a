"""Stores by name, and stores in the clear and encrypted."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.copies import Open, StoreNamed
from tests.support.memory_store import MemoryStore


@pytest.fixture
def store_named() -> StoreNamed:
    return defaultdict[str, MemoryStore](MemoryStore).__getitem__


@pytest.fixture(params=["plain", "encrypted"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "plain":
        return lambda store: store
    (tmp_path / "key").write_text(generate_key())
    return lambda store: CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"), layout.key_class)
