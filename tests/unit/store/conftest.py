"""Encrypted stores, and a directory below them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.store.file import FileStore
from tests.support.key_files import SIZES, Stores, data_of


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """An object of each of `SIZES`."""
    made = Stores(tmp_path_factory.mktemp("filled"))
    for size in SIZES:
        made.store.put(f"of/{size}", data_of(size))
    return made


@pytest.fixture
def inner(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "archive")
