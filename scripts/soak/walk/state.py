"""The state of a walk, and the operations that its steps share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kbackup.store.base import Store
from scripts.soak.walk.cluster import Cluster
from scripts.soak.walk.commands import Commands, Outcome
from scripts.soak.walk.model import Life, Log
from scripts.soak.walk.sites import Site, must, reconcile

DAY = 86_400_000  # ms


@dataclass
class WalkState:
    """A cluster and archives with their books.

    `root` is the address below which archives are made, `open_store` opens one. One random number generator makes all
    choices: the same seed makes the same walk, but for the moment at which a killed process ends.
    """

    cluster: Cluster
    commands: Commands
    root: str
    open_store: Callable[[str], Store]
    seed: int
    lives: dict[str, Life] = field(default_factory=dict)
    copies: list[Site] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _main: Site = field(init=False)
    _clock: int = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._clock = int(time.time() * 1000) - 400 * DAY
        self._main = self._new_site()

    def _repair(self, site: Site, *options: str) -> Outcome:
        """No undo reaches back behind a repair that commits. A repair lists every restore point that is whole."""
        outcome = must(self.commands("repair", site.url, "--confirm", *options), 0, 3)
        if outcome.code or outcome.document["mended"]:
            site.book.expirations, site.shaken = [], True
        if outcome.document["restored"]:
            reconcile(self.commands, site)
        return outcome

    def _any_main_or_copy(self, copies: float) -> Site:
        return (
            self._random.choice(self.copies) if self.copies and self._random.random() < copies else self._main
        )

    def _logs(self) -> Mapping[Life, Log]:
        return {life: self.cluster.log(name) for name, life in self.lives.items()}

    def _new_site(self) -> Site:
        url = f"{self.root}/archive-{self._next()}"
        return Site(url, self.open_store(url))

    def _next(self) -> int:
        self._count += 1
        return self._count
