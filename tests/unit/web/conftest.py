from __future__ import annotations

import pytest

from kbackup.store.base import Store
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.rich_archive import make_rich


@pytest.fixture(scope="session")
def rich() -> Store:
    store = MemoryStore()
    make_rich(store, nights=9, services=1, each=20)
    return store


@pytest.fixture
def store() -> Store:
    """Two restore points, for tests that change something."""
    store = MemoryStore()
    make_archive(store)
    return store
