"""Report the progress of tasks to the driver by datagrams on loopback; lost datagrams do no harm.

Only for local masters: elsewhere executors can't be assumed to reach the driver by other ways than Spark's own.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

_MESSAGE = struct.Struct(">16sqqq")
_EVERY = 0.2  # s


class Address(NamedTuple):
    port: int
    token: bytes


class ProgressSender:
    """Counts in a task, and reports at most five times a second. `address` None: reports nothing."""

    def __init__(self, address: Address | None, task: int) -> None:
        self._address, self._task = address, task
        self._records, self._bytes, self._sent_at = 0, 0, 0.0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if address else None

    def add(self, records: int, size: int) -> None:
        self._records += records
        self._bytes += size
        if time.monotonic() - self._sent_at > _EVERY:
            self.tell()

    def tell(self) -> None:
        if self._socket is None or self._address is None:
            return
        self._sent_at = time.monotonic()
        message = _MESSAGE.pack(self._address.token, self._task, self._records, self._bytes)
        try:
            self._socket.sendto(message, ("127.0.0.1", self._address.port))
        except OSError:
            return  # progress is a courtesy: the result does not depend on it

    def close(self) -> None:
        self.tell()
        if self._socket is not None:
            self._socket.close()


class ProgressReceiver:
    """In the driver, a context manager: calls `show(records, bytes)` with the sum over all tasks as it grows."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._token = secrets.token_bytes(16)
        self._tasks: dict[int, tuple[int, int]] = {}
        self._thread = threading.Thread(target=self._listen, name="kbackup-progress", daemon=True)

    @property
    def address(self) -> Address:
        return Address(self._socket.getsockname()[1], self._token)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while message := self._socket.recv(_MESSAGE.size + 1):
            if len(message) != _MESSAGE.size:
                continue
            token, task, records, size = _MESSAGE.unpack(message)
            if secrets.compare_digest(token, self._token):
                self._tasks[task] = (records, size)
                self._show(sum(r for r, _ in self._tasks.values()), sum(b for _, b in self._tasks.values()))
