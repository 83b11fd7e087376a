"""When the duties of a flow are due: each has a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kbackup.mirror.flow import Clock


@dataclass
class Timetable:
    """By duty, when it was done last. `now` is in seconds. A duty that failed was not done, and stays due."""

    now: Callable[[], float] = time.monotonic
    _done: dict[str, float] = field(default_factory=dict)

    def is_due(self, duty: str, clock: Clock, *, once: bool = False) -> bool:
        """Return whether a duty is due. `once`: a duty whose clock is not enabled is due the first time."""
        # What was never done is due at once: a process that starts brings its target up to date first.
        if duty not in self._done:
            return clock.enabled or once
        return clock.enabled and self.now() >= self._done[duty] + clock.seconds

    def done(self, duty: str) -> None:
        self._done[duty] = self.now()

    def forget(self, *duties: str) -> None:
        """Mark duties as never done: each is due at once."""
        for duty in duties:
            self._done.pop(duty, None)

    def seconds_idle(self, clocks: Mapping[str, Clock], most: float) -> float:
        """Return how long none of the duties is due, `most` at most."""
        idle = most
        for duty, clock in clocks.items():
            if clock.enabled:
                due_at = self._done.get(duty, 0.0) + clock.seconds
                idle = min(idle, due_at - self.now())
        return max(0.0, idle)
