from __future__ import annotations

import pytest

from tests.support.memory_store import MemoryStore
from tests.unit.archive.faulty import FaultyStore


@pytest.fixture
def store() -> FaultyStore:
    """Without faults as yet."""
    return FaultyStore(MemoryStore())
