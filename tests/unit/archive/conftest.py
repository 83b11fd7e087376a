from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.store.file import FileStore
from tests.unit.archive.faulty import FaultyStore


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    """A directory, without faults as yet."""
    return FaultyStore(FileStore(tmp_path / "archive"))
