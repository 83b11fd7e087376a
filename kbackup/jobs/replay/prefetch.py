"""Reading ahead: an iterator's next items are made in a thread while the caller works on the last one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class _End:
    """The end of the iterator, with the error that ended it, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield the same items in the same order; up to `depth` items are made ahead. An error is raised in place of
    its item."""
    waiting: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    room = threading.Semaphore(depth)
    stopped = threading.Event()

    def fill() -> None:
        try:
            made = iter(items)
            while room.acquire() and not stopped.is_set():
                waiting.put(next(made))  # no name refers to it here while the next one is made
        except StopIteration:
            waiting.put(_End(None))
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            waiting.put(_End(error))

    thread = threading.Thread(target=fill, name="kbackup-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        room.release()
        thread.join()
