"""Round after round until asked to stop; a round that fails by what may be over in a while is tried again."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive.lease.hold import LeaseRanOutError
from kbackup.errors import ClusterError, FencedError, KbackupError, StoreError, UnreachableError
from kbackup.jobs.common.stop import Stop
from kbackup.spark.tasks import TaskError

RETRIED = (UnreachableError, StoreError, ClusterError, TaskError, LeaseRanOutError)
"""What may be over in a while. A lease that was taken over, damage and wrong settings are not; nor is a producer that
was fenced."""

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0  # s


def run_rounds(
    stop: Stop, attempt: Callable[[bool], None], failed: Callable[[KbackupError, float], None]
) -> None:
    """Call `attempt` again and again. Its argument says that it was asked to stop: this round is the last.

    A round that waits for the next one must return when it is asked to stop. `failed` gets the error of a round, and
    the seconds after which the next one begins. Errors of the last round are raised."""
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
