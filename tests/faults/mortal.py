"""Jobs of this process that die at a chosen moment, as those of `dying` do: nothing they still do takes effect.

From that moment on every operation of their store raises, in this process and in Spark's. The session goes on to the
next job, so that a death takes as long as what was done until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.metrics.registry import Phases
from kbackup.store.base import Store
from tests.faults.dying import When, Wish, count, watched_step
from tests.support.faulty_store import Crash, FaultyStore, Operation

LONG = 600
"""A lease that needs no renewal until its holder dies, in seconds."""

_WRITES = ("put", "put_new", "replace", "commit")


@dataclass(frozen=True)
class Life:
    """`folder` tells all processes of a job whether it is dead, and how often the moment was reached."""

    wish: Wish
    folder: Path

    @property
    def over(self) -> bool:
        return (self.folder / "dead").exists()

    def reached(self, when: When, event: str) -> None:
        if self.over:
            raise Crash
        wish = self.wish
        if when == wish.when and fnmatchcase(event, wish.event) and count(self.folder / "moments") == wish.nth:
            (self.folder / "dead").touch()
            raise Crash


class MortalStore(FaultyStore):
    """`inner` as a job has it that dies."""

    def __init__(self, inner: Store, life: Life) -> None:
        super().__init__(inner)
        self.life = life

    def _before(self, operation: Operation, key: str) -> None:
        self.life.reached("before", f"{'write' if operation in _WRITES else operation} {key}")
        super()._before(operation, key)

    def _after(self, operation: Operation, key: str) -> None:
        self.life.reached("after", f"{'write' if operation in _WRITES else operation} {key}")
        super()._after(operation, key)


def die(store: Store, wish: Wish, folder: Path, work: Callable[[Store], object]) -> None:
    """Do `work` until the moment of `wish`. Nobody holds the lease afterwards; the dead would until it ran out."""
    folder.mkdir()
    life = Life(wish, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phases, "step", watched_step(life.reached))
        try:
            work(MortalStore(store, life))
        except (Crash, Exception):  # Spark tells of a task's death in its own words
            if not life.over:
                raise
    assert life.over, f"{wish.name} was never reached"
    store.delete([layout.LOCK])
