"""The moment at which a call ends, whatever brokers do."""

from __future__ import annotations

import socket
import time


class Deadline:
    """A moment until which something may take; it is handed down to whatever waits."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds that are left, 0 when the moment has passed."""
        return max(0.0, self._until - time.monotonic())

    def limit(self, stream: socket.socket) -> None:
        """Let the next operation of `stream` take no longer. Raise `TimeoutError` when the moment has passed."""
        remaining = self.remaining()
        if not remaining:
            raise TimeoutError("no answer came in time")
        stream.settimeout(remaining)

    def within(self, seconds: float) -> Deadline:
        """Return the earlier one of this moment and `seconds` from now."""
        return Deadline(min(seconds, self.remaining()))
