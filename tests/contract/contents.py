"""Objects that the tests of the contract put into stores."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kbackup.errors import StoreError
from kbackup.store import Store


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def fill(store: Store, keys: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))


def race(attempt: Callable[[bytes], object], bodies: list[bytes], lost: type[StoreError]) -> int:
    """Start one attempt with each body at the same time, and return how many succeeded."""
    barrier = threading.Barrier(len(bodies))

    def run(body: bytes) -> bool:
        barrier.wait()
        try:
            attempt(body)
        except lost:
            return False
        return True

    with ThreadPoolExecutor(len(bodies)) as pool:
        return sum(pool.map(run, bodies))
