"""Run rounds until a stop is requested; a round that fails by a passing error is repeated."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive.lease.hold import LeaseRanOutError
from kbackup.errors import ClusterError, FencedError, KbackupError, StoreError, UnreachableError
from kbackup.jobs.common.stop import Stop
from kbackup.spark.tasks import TaskError

RETRIED = (UnreachableError, StoreError, ClusterError, TaskError, LeaseRanOutError)
"""Errors that may pass. A lease that was taken over, damage, wrong settings and a fenced producer do not pass."""

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0  # s


def run_rounds(
    stop: Stop, attempt: Callable[[bool], None], failed: Callable[[KbackupError, float], None]
) -> None:
    """Call `attempt` repeatedly; its argument is True in the last round, after a stop was requested.

    A round that waits for the next one must return when a stop is requested. `failed` gets the error of a round, and
    the seconds after which the next one begins. Errors of the last round are raised.
    """
    pause = 0.0
    while True:
        last = stop.asked
        try:
            attempt(last)
        except RETRIED as error:
            if last or isinstance(error, FencedError):
                raise
            pause = min(max(_FIRST_PAUSE, 2 * pause), _LAST_PAUSE)
            failed(error, pause)
            stop.wait(pause)
        else:
            pause = 0.0
            if last:
                return
