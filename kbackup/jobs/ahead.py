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
    """The same items in the same order, at most `depth` of them waiting. An error comes out where it belongs."""
    waiting: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: T | _End) -> None:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def fill() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
            put(_End(None))
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            put(_End(error))

    thread = threading.Thread(target=fill, name="kbackup-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        thread.join()
