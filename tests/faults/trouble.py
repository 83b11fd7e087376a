"""Bad links, seeded: a proxy before an S3 server that fails requests in every way, and one before a broker that drops
connections and dawdles."""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

Fault = Literal["503", "500", "reset", "lost", "cut", "delay"]

S3_FAULTS: tuple[Fault, ...] = ("503", "500", "reset", "lost", "cut", "delay")
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1.1\r\n")
_ERRORS = {"503": ("503 Slow Down", "SlowDown"), "500": ("500 Internal Server Error", "InternalError")}
_DELAY = 0.3  # s, at most


class _Link:
    """Accepts on `port` and forwards both ways; what subclasses say about a chunk is done to it. A context manager."""

    def __init__(self, seed: int, share: float) -> None:
        self.happened: Counter[str] = Counter()
        self._random, self._share = random.Random(seed), share
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def upstream(self) -> tuple[str, int]:
        raise NotImplementedError

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        raise NotImplementedError

    def trouble(self, share: float) -> None:
        """As much of it from now on; 0 for none."""
        self._share = share

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hang_up(self._listener)
        self._listener.close()
        with self._lock:
            for end in self._sockets:
                hang_up(end)
            threads = list(self._threads)
        for thread in threads:
            thread.join(10)
        for end in self._sockets:
            end.close()

    def strikes(self) -> bool:
        with self._lock:
            return self._random.random() < self._share

    def pick(self, faults: tuple[Fault, ...]) -> Fault:
        with self._lock:
            fault = self._random.choice(faults)
            self.happened[fault] += 1
            return fault

    def dawdle(self) -> None:
        with self._lock:
            pause = self._random.random() * _DELAY
        time.sleep(pause)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self.upstream())
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._sockets += [client, server]
                self._spawn(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            self.serve(client, server)
        hang_up(client)
        hang_up(server)


class S3Trouble(_Link):
    """Every request meets a fault with probability `share`: refused with 503 or 500, reset before it arrives, served
    with its answer lost or (GET) cut in the middle, or late."""

    def __init__(self, endpoint_url: str, seed: int, share: float) -> None:
        super().__init__(seed, share)
        found = urlsplit(endpoint_url)
        self._upstream = (found.hostname or "", found.port or 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def upstream(self) -> tuple[str, int]:
        return self._upstream

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        fate: list[Fault | None] = [None]
        self._spawn(self._answer, client, server, fate)
        while data := client.recv(1 << 16):
            if (found := _REQUEST.match(data)) and not self._passes(found[1], client, fate):
                return
            server.sendall(data)

    def _passes(self, method: bytes, client: socket.socket, fate: list[Fault | None]) -> bool:
        fate[0] = None
        if not self.strikes():
            return True
        possible = S3_FAULTS if method == b"GET" else tuple(f for f in S3_FAULTS if f != "cut")
        fault = fate[0] = self.pick(possible)
        if fault == "delay":
            self.dawdle()
        elif fault == "reset":
            reset(client)
            return False
        elif fault in _ERRORS:
            status, code = _ERRORS[fault]
            body = f"<Error><Code>{code}</Code><Message>not now</Message></Error>"
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Connection: close\r\n\r\n{body}".encode())
            return False
        return True

    def _answer(self, client: socket.socket, server: socket.socket, fate: list[Fault | None]) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                starts = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100")
                if starts and fate[0] == "lost":
                    break
                if starts and fate[0] == "cut":
                    client.sendall(data[: len(data) // 2])
                    break
                client.sendall(data)
        hang_up(client)
        hang_up(server)


class KafkaTrouble(_Link):
    """Chunks of a connection to a broker meet a fault with probability `share`: late, or the connection is reset."""

    def __init__(self, seed: int, share: float) -> None:
        super().__init__(seed, share)
        self._server = 0

    def to(self, server: int) -> int:
        """Lead to the port `server`, and return the port of this end."""
        self._server = server
        return self.port

    def upstream(self) -> tuple[str, int]:
        return "127.0.0.1", self._server

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        self._spawn(self._pump, server, client)
        self._pump(client, server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.strikes():
                    if self.pick(("reset", "delay", "delay")) == "reset":
                        reset(source)
                        break
                    self.dawdle()
                sink.sendall(data)
        hang_up(source)
        hang_up(sink)


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def reset(end: socket.socket) -> None:
    """With RST, as a firewall or a dead host's successor would."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    hang_up(end)
