"""Bootstrap servers for a producer that has lost every broker.

A broker that stops leaves itself out of its last answers for metadata. Where it is the only one, librdkafka then knows
no broker at all, and asks nobody for one: a producer stood still until its messages and its abort had timed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_SILENCE = 10.0  # s


class Bootstrap:
    """Add the bootstrap servers to a client again while its queue stays as long as it was.

    A client that has brokers removes the added ones with its next metadata."""

    def __init__(self, servers: str, add: Callable[[bytes], object]) -> None:
        self._servers = servers.encode()
        self._add = add
        self._length = -1
        self._since = 0.0

    def watch(self, length: int) -> None:
        """Note how long the queue is. To be called again and again while it is waited for."""
        now = time.monotonic()
        if length != self._length:
            self._length, self._since = length, now
        elif now - self._since >= _SILENCE:
            self._add(self._servers)
            self._since = now
