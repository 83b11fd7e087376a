"""Request a stop from a signal handler or another thread, and wait for it."""

from __future__ import annotations

import select
import socket


class Stop:
    """`ask` may be called in a signal handler: it takes no lock that the interrupted thread could hold."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self.asked = False

    def ask(self) -> None:
        if not self.asked:
            self.asked = True
            self._writer.send(b"!")

    def wait(self, seconds: float) -> bool:
        """Return whether a stop was requested, by now or within `seconds`."""
        if self.asked:
            return True
        try:
            return bool(select.select([self._reader], [], [], max(0.0, seconds))[0])
        except (OSError, ValueError):  # it was closed meanwhile
            return True

    def close(self) -> None:
        """Request a stop, for threads that outlive an interrupted command, and close the sockets."""
        self.ask()
        self._reader.close()
        self._writer.close()
