"""Counters of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbackup.metrics.registry import counted


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    counted.begin("backup")
    yield
    counted.begin("")
