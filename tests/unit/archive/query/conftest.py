"""The archive that is browsed."""

from __future__ import annotations

import pytest

from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store
