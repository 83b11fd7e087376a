from __future__ import annotations

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore


@pytest.fixture
def store() -> FaultyStore:
    """Without faults as yet."""
    return FaultyStore(MemoryStore())
