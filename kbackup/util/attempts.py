"""Repeat something until it succeeds or its time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """Yield at once, then after each pause in seconds, and end when the time is over. The caller breaks on success."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        time.sleep(pause)
        yield
