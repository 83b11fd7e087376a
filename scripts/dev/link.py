"""A bad network between clients and servers of this machine: a TCP proxy with delay, bandwidth and blackouts."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Self

_CHUNK = 16 << 10
_MOST_CHUNKS = (4 << 20) // _CHUNK
_QUEUE = 0.05  # s of the link's bandwidth that wait before it
_BACKLOG = 100


class Link:
    """Ports that lead to servers of this machine, with `delay` in seconds for a round trip, and `rate` in bytes/s each
    way that all connections share (0: no limit). `passed` counts the bytes to the servers, and from them. A context
    manager.

    It has TCP's own limits too: a connection takes a round trip, begins with 16 KiB on its way, doubles that each
    round trip, and has 4 MiB at most, as Linux sends by default.
    """

    def __init__(self, delay: float = 0.0, rate: float = 0.0) -> None:
        self.delay, self.rate = delay, rate
        self.passed = [0, 0]
        self._free = [0.0, 0.0]
        self._loop = asyncio.new_event_loop()
        self._up = asyncio.Event()
        self._up.set()
        self._listening: list[socket.socket] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        async def stop() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for each in self._listening:
            each.close()

    def open(self, port: int) -> int:
        """Return a new port that leads to `port`."""
        listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        listening.setblocking(False)
        self._listening.append(listening)
        asyncio.run_coroutine_threadsafe(self._accept(listening, port), self._loop)
        return int(listening.getsockname()[1])

    @contextmanager
    def blackout(self) -> Iterator[None]:
        """Nothing passes, and nobody is told. Who connects gets no answer: the queue of connections is full."""
        self._loop.call_soon_threadsafe(self._up.clear)
        fillers = [(socket.socket(), listening) for listening in self._listening for _ in range(3)]
        for filler, listening in fillers:
            listening.listen(0)
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
            time.sleep(0.02)  # the first one may be accepted
        try:
            yield
        finally:
            for filler, listening in fillers:
                filler.close()
                listening.listen(_BACKLOG)
            self._loop.call_soon_threadsafe(self._up.set)

    async def _accept(self, listening: socket.socket, port: int) -> None:
        serving = set()
        while True:
            client, _ = await self._loop.sock_accept(listening)
            await self._up.wait()
            serving.add(task := asyncio.create_task(self._serve(client, port)))
            task.add_done_callback(serving.discard)

    async def _serve(self, client: socket.socket, port: int) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=_CHUNK)
        await asyncio.sleep(self.delay)
        with closing(writer), suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK)
            with closing(far_writer):
                await asyncio.gather(self._pump(reader, far_writer, 0), self._pump(far_reader, writer, 1))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        """Carry the bytes of one connection one way, until its end."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        window, most = asyncio.Semaphore(1), _MOST_CHUNKS

        async def send() -> None:
            data = b"first"
            while data:
                await window.acquire()
                with suppress(ConnectionError):
                    data = b""
                    data = await reader.read(_CHUNK)
                self._free[way] = max(self._loop.time(), self._free[way]) + len(data) / (self.rate or 1e12)
                on_the_way.put_nowait((self._free[way] + self.delay / 2, data))
                await asyncio.sleep(self._free[way] - self._loop.time() - _QUEUE)

        sending = asyncio.create_task(send())
        try:
            while True:
                due, data = await on_the_way.get()
                await asyncio.sleep(due - self._loop.time())
                await self._up.wait()
                if not data:
                    break
                self.passed[way] += len(data)
                writer.write(data)
                await writer.drain()
                for _ in range(2 if most > 1 else 1):
                    self._loop.call_later(self.delay / 2, window.release)
                most -= most > 1
            writer.write_eof()
        finally:
            sending.cancel()
