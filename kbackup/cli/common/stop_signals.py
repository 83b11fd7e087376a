"""Ending what runs until it is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kbackup.jobs.common.stop import Stop

GRACE = 25.0
"""Seconds for what a stop still has to do. Kubernetes and Docker's defaults are 30 and 10 until they kill."""


@contextmanager
def asked_by_signals(stop: Stop, grace: float = GRACE) -> Iterator[None]:
    """SIGTERM and SIGINT ask `stop`; a second one, and `grace` seconds, interrupt what is under way. Only a main thread
    hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = signal.getsignal(signal.SIGINT)
    enough = threading.Timer(grace, os.kill, (os.getpid(), signal.SIGINT))
    enough.daemon = True

    def heard(number: int, frame: FrameType | None) -> None:
        if not stop.asked:
            stop.ask()
            enough.start()
        else:
            if callable(interrupt):
                interrupt(signal.SIGINT, frame)
            raise KeyboardInterrupt  # where a shell had it ignored, as for jobs in the background

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        enough.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
