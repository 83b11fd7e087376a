"""Threads for reading, which keep nobody waiting at the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class ReadingThreads:
    """A few daemon threads that run functions for an event loop.

    The threads of Python's own pool are waited for when the process ends: a read of a store that does not answer would
    hold up Ctrl-C until it gives up."""

    def __init__(self, count: int, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        for number in range(count):
            thread = threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            thread.start()

    def run(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a function; belongs to the event loop of the caller."""
        future: Future[Result] = Future()
        self._waiting.put((future, function))
        return asyncio.wrap_future(future)

    def close(self) -> None:
        """Run nothing more. What runs is left alone."""
        while not self._waiting.empty():
            taken = self._waiting.get()
            if taken is not None:
                taken[0].cancel()
        for _ in range(self._count):
            self._waiting.put(None)

    def _work(self) -> None:
        while True:
            taken = self._waiting.get()
            if taken is None:
                return
            future, function = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 (raised where the result is waited for)
                future.set_exception(error)
            else:
                future.set_result(result)
