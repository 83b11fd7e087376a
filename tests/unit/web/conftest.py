from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.support.archives import make_archive
from tests.support.rich_archive import make_rich


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = FileStore(tmp_path_factory.mktemp("rich") / "archive")
    make_rich(store, nights=9, services=1, each=20)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two restore points, for tests that change something."""
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    return store
