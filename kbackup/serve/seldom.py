"""Lines of a log that others can cause as often as they like: one now and then, with the count of the rest."""

from __future__ import annotations

import time
from collections import OrderedDict

MOST_NAMES = 1000
"""Names for which lines are written within the time. Of still others nothing is, until it has passed."""


class Seldom:
    """Says when to write a line about a name: once in so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: OrderedDict[str, float] = OrderedDict()
        """When the last line about a name was written, the oldest first."""
        self._unlogged: dict[str, int] = {}

    def due(self, name: str) -> int | None:
        """Return how many times there was no line since the last one, or None if there is to be none now."""
        now = time.monotonic()
        last = self._since.get(name)
        if last is not None and now < last + self._seconds:
            self._unlogged[name] = self._unlogged.get(name, 0) + 1
            return None
        if last is None and not self._has_room(now):
            return None
        self._since[name] = now
        self._since.move_to_end(name)
        return self._unlogged.pop(name, 0)

    def _has_room(self, now: float) -> bool:
        """Return whether one more name can be kept; the oldest is forgotten when its time has passed."""
        if len(self._since) < MOST_NAMES:
            return True
        oldest, since = next(iter(self._since.items()))
        if now < since + self._seconds:
            return False
        del self._since[oldest]
        self._unlogged.pop(oldest, None)
        return True
