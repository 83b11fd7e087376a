"""The connections of a producer: its first one, and those of a producer that has lost every broker.

A broker that stops leaves itself out of its last answers for metadata. Where it is the only one, librdkafka then knows
no broker at all, and asks nobody for one: a producer stood still until its messages and its abort had timed out.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from kbackup.kafka.groups.binding import lib

_SILENCE = 10.0  # s
_CONNECTION = 10.0  # s


def await_connection(client: int, timeout: float) -> None:
    """Wait until a broker answers, for up to 10 s or `timeout` (s).

    A transactional producer looks for its coordinator at once, and without a connection half a second later again.
    """
    metadata = ctypes.c_void_p()
    ms = int(min(timeout, _CONNECTION) * 1000)
    if not lib.rd_kafka_metadata(client, False, None, ctypes.byref(metadata), ms):
        lib.rd_kafka_metadata_destroy(metadata)


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
