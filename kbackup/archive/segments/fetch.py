"""Ranges of an object read ahead by a few threads, into buffers that are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np
from awscrt.checksums import crc64nvme

from kbackup.store.base import Store
from kbackup.types import Bytes
from kbackup.util.buffers import BufferPool

SPAN = 16 << 20
"""Bytes of a usual range: a request of the SDK takes up to 3 ms of CPU, a tenth of what these bytes take to check."""
_AHEAD = 2
_SMALL = 1 << 20
_POOL = BufferPool(SPAN, keep=3)

Span = tuple[int, int]
"""Start and end of a range, in bytes."""


class Fetched(NamedTuple):
    """The bytes of a range and their CRC-64/NVME."""

    data: Bytes
    crc: int


def fetched(store: Store, key: str, spans: Sequence[Span]) -> Iterator[Fetched]:
    """Yield each of `spans`, in order. At most `_AHEAD` spans are fetched in advance.

    The bytes have memory of their own as long as anything refers to it. The object is written once, so that all spans
    are of one version.
    """
    if len(spans) < 2:
        for span in spans:
            yield _fetch(store, key, span)
        return
    remaining = iter(spans)
    waiting: deque[Future[Fetched]] = deque()
    with ThreadPoolExecutor(_AHEAD, "fetch") as threads:
        try:
            while True:
                for wanted in islice(remaining, _AHEAD - len(waiting)):
                    waiting.append(threads.submit(_fetch, store, key, wanted))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def even(size: int) -> list[Span]:
    """Divide an object of `size` bytes into spans of `SPAN`."""
    return [(start, min(start + SPAN, size)) for start in range(0, size, SPAN)]


def _fetch(store: Store, key: str, span: Span) -> Fetched:
    start, length = span[0], span[1] - span[0]
    data = _POOL.take()[:length] if _SMALL < length <= SPAN else np.empty(length, np.uint8)
    crc = 0
    for piece in store.fill(key, start, data.data):
        crc = crc64nvme(piece, crc)  # here, where it is in the processor's cache: four times as fast
    return Fetched(data, crc)
