"""Stop long-running commands at SIGTERM and SIGINT."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kbackup.jobs.common.stop import Stop

GRACE = 25.0
"""Seconds for the work after a stop. By default Kubernetes kills after 30 s and Docker after 10 s."""


@contextmanager
def stop_at_signals(stop: Stop, grace: float = GRACE) -> Iterator[None]:
    """Ask `stop` at SIGTERM and SIGINT. A second signal, or the end of `grace` seconds, interrupts the work.

    Only a main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = signal.getsignal(signal.SIGINT)
    grace_timer = threading.Timer(grace, os.kill, (os.getpid(), signal.SIGINT))
    grace_timer.daemon = True

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not stop.asked:
            stop.ask()
            grace_timer.start()
        else:
            if callable(interrupt):
                interrupt(signal.SIGINT, frame)
            raise KeyboardInterrupt  # a shell ignores SIGINT for jobs in the background

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        grace_timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
