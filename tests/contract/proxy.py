"""A TCP proxy before an HTTP server that loses and cuts answers on demand."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1.1\r\n")


class Proxy:
    """Forward connections to `upstream_url`, with rules for the next answers; `url` is the proxy's own address."""

    def __init__(self, upstream_url: str) -> None:
        upstream = urlsplit(upstream_url)
        self._upstream = (upstream.hostname or "", upstream.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._then_refuse = False
        self._cuts: tuple[re.Pattern[bytes], list[int]] = (re.compile(rb"(?!)"), [])
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self.dropped = re.compile(rb"(?!)()")
        """What the proxy takes out of requests, except for the first group."""
        self.requests: list[str] = []
        self.answers: list[bytes] = []
        """The headers of each answer, as the server sent them."""
        self.answered: list[str] = []
        """The requests of `answers`."""
        self._instead: tuple[re.Pattern[bytes], bytes, list[bool]] = (re.compile(rb"(?!)"), b"", [])

    def lose_answers(self, request: str, times: int, *, then_refuse: bool = False) -> None:
        """Lose the answers of the next requests whose first line matches; the server still handles the requests.

        With `then_refuse`, the proxy accepts no connection afterwards."""
        self._then_refuse = then_refuse
        self.cut_answers(request, *[0] * times)

    @property
    def answers_to_cut(self) -> int:
        """The number of answers that the proxy will still cut."""
        return len(self._cuts[1])

    @property
    def answers_to_replace(self) -> int:
        return len(self._instead[2])

    @property
    def answers_to_lose(self) -> int:
        return self._cuts[1].count(0)

    def cut_bodies(self, *after: int) -> None:
        """Cut the next answers to GET requests after so many bytes, headers included."""
        self.cut_answers("^GET", *after)

    def cut_answers(self, request: str, *after: int) -> None:
        """Cut the next answers to requests whose first line matches after so many bytes, headers included."""
        self._cuts = (re.compile(request.encode()), list(after))

    def answer_instead(self, request: str, status: int, text: str = "", *, handled: tuple[bool, ...]) -> None:
        """Answer the next requests whose first line matches with `status`, one for each value of `handled`: whether
        the server has handled it."""
        answer = (
            f"HTTP/1.1 {status} Canned\r\nDate: x\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}"
        )
        self._instead = (re.compile(request.encode()), answer.encode(), [*handled])

    def own_answer(self, request: bytes) -> bytes | None:
        """Return the answer to a request that the server is not to see."""
        pattern, answer, handled = self._instead
        with self._lock:
            if handled and not handled[0] and pattern.search(request.partition(b"\r\n")[0]):
                handled.pop(0)
                return answer
        return None

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_listening()
        with self._lock:
            for end in self._sockets:
                _hang_up(end)
            threads = list(self._threads)
        for thread in threads:
            thread.join(10)
        for end in self._sockets:
            end.close()

    def _stop_listening(self) -> None:
        _hang_up(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                pair = threading.Thread(target=self._serve, args=(client, server))
                with self._lock:
                    self._sockets += [client, server]
                    self._threads.append(pair)
                pair.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        current: list[bytes] = [b""]
        up = threading.Thread(target=self._forward, args=(client, server, current))
        up.start()
        self._answer(server, client, current)
        _hang_up(client)
        _hang_up(server)
        up.join()

    def _forward(self, client: socket.socket, server: socket.socket, current: list[bytes]) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                data = self.dropped.sub(rb"\1", data)
                if request := _REQUEST.match(data):
                    current[0] = request.group()
                    with self._lock:
                        self.requests.append(request.group().decode().rpartition(" ")[0])
                    if (own := self.own_answer(data)) is not None:
                        client.sendall(own)
                        while client.recv(1 << 16):
                            pass  # the rest of the request, until the client hangs up
                        break
                server.sendall(data)
        _hang_up(server)

    def _answer(self, server: socket.socket, client: socket.socket, current: list[bytes]) -> None:
        remaining: int | None = None
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
                    with self._lock:
                        self.answers.append(data.partition(b"\r\n\r\n")[0] + b"\r\n")
                        self.answered.append(current[0].decode())
                        instead, answer, handled = self._instead
                        if handled and handled[0] and instead.search(current[0]):
                            handled.pop(0)
                            client.sendall(answer)
                            return
                        pattern, cuts = self._cuts
                        remaining = cuts.pop(0) if cuts and pattern.search(current[0]) else None
                    if remaining == 0 and self._then_refuse:
                        self._stop_listening()
                if remaining is not None:
                    data, remaining = data[:remaining], remaining - len(data)
                client.sendall(data)
                if remaining is not None and remaining <= 0:
                    return


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
