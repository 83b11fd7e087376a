"""Answers that clients have yet to take, within a bound of their bytes."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger(__name__)


class UnsentAnswers:
    """Knows how much waits to be sent on each connection. If it is more than `most` bytes together, connections are
    closed: first the one whose client has taken nothing for longest. Belongs to one event loop.

    A client that reads takes an answer within milliseconds. What waits longer is for clients that are slow, or that
    ask and never read: these would fill the memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[asyncio.WriteTransport, int] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes that wait, as far as they were noted."""
        return self._bytes

    def note(self, transport: asyncio.WriteTransport) -> None:
        """Note how much waits on a connection, after something was written or sent."""
        self.forget(transport)
        size = transport.get_write_buffer_size()
        if not size:
            return
        if self._bytes + size > self._most:
            self._note_progress()
        # Behind all others, so that it is not the one that is closed.
        self._sizes[transport] = size
        self._bytes += size
        while self._bytes > self._most and len(self._sizes) > 1:
            slowest = next(iter(self._sizes))
            self.forget(slowest)
            slowest.abort()
            peer = slowest.get_extra_info("peername")
            log.info(
                "closed the connection of %s: answers that are not taken fill the memory", peer[0] if peer else "?"
            )

    def forget(self, transport: asyncio.WriteTransport) -> None:
        """Forget a connection that has ended."""
        self._bytes -= self._sizes.pop(transport, 0)

    def _note_progress(self) -> None:
        """Put the connections whose clients have taken something behind those whose clients have not."""
        for transport, before in list(self._sizes.items()):
            size = transport.get_write_buffer_size()
            if size == before:
                continue
            self.forget(transport)
            if size:
                self._sizes[transport] = size
                self._bytes += size
