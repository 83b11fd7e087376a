from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from kbackup.store.base import Store
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.rich_archive import make_rich


@pytest.fixture(scope="session", autouse=True)
def _one_event_loop() -> Iterator[None]:
    """Requests share an event loop; by itself a client starts a thread with a loop for each of them."""
    with pytest.MonkeyPatch.context() as patch, start_blocking_portal() as portal:
        patch.setattr(TestClient, "portal", portal)
        yield


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
