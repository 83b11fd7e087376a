"""The archive that requests share: what changes while one of them opens it, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kbackup.archive import layout
from kbackup.store.base import Store
from kbackup.web.held import Held
from tests.unit.archive.faulty import FaultyStore

SOON = 20.0
"""Seconds after which somebody is taken to wait for ever."""


class Slow(FaultyStore):
    """Opening stands still while `go_on` is not set."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.opened = 0

    def get(self, key: str) -> bytes:
        if key == layout.ARCHIVE:
            self.opened += 1
            self.reached.set()
            assert self.go_on.wait(SOON)
        return super().get(key)


@pytest.fixture
def slow(store: Store) -> Iterator[Slow]:
    made = Slow(store)
    yield made
    made.go_on.set()


def test_a_doubt_waits_for_no_request_that_opens(slow: Slow) -> None:
    """It is told on the event loop: nobody would be answered meanwhile. What is doubted while the archive is opened
    is doubted of what was just read."""
    held = Held(slow, lambda: 0.0)
    held.doubt()
    slow.reached.clear()
    slow.go_on.clear()
    opening = threading.Thread(target=held.points, daemon=True)
    opening.start()
    assert slow.reached.wait(SOON)
    doubting = threading.Thread(target=held.doubt, daemon=True)
    doubting.start()
    doubting.join(SOON / 4)
    waits = doubting.is_alive()
    slow.go_on.set()
    opening.join(SOON)
    assert not waits
    assert slow.opened == 2
    held.points()
    assert slow.opened == 3
    held.points()
    assert slow.opened == 3
