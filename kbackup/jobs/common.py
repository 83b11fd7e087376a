"""What jobs share: a listing of an archive's documents, a request to stop, and rounds until then."""

from __future__ import annotations

import select
import socket

from kbackup.archive import layout
from kbackup.archive.lease import LeaseRanOutError
from kbackup.errors import ClusterError, FencedError, KbackupError, StoreError, UnreachableError
from kbackup.spark.tasks import TaskError
from kbackup.store.base import Store


def sizes_outside_topics(store: Store) -> dict[str, int]:
    """Return the size of every object that is not under topics/, by key. The objects under topics/ are most of an
    archive: they are listed later, beside the segments that they belong to."""
    sizes: dict[str, int] = {}
    for entry in store.list():
        if entry.key >= layout.TOPICS:
            break
        sizes[entry.key] = entry.size
    for entry in store.list(start_after=f"{layout.TOPICS}~"):
        sizes[entry.key] = entry.size
    return sizes


class Stop:
    """A request to stop. `ask` may be called in a signal handler: it takes no lock that the interrupted thread could
    hold. A socket wakes those who wait."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self.asked = False

    def ask(self) -> None:
        if not self.asked:
            self.asked = True
            self._writer.send(b"!")

    def wait(self, seconds: float) -> bool:
        """Return whether a stop was requested, by now or within `seconds`."""
        if self.asked:
            return True
        try:
            readable, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        except (OSError, ValueError):  # it was closed meanwhile
            return True
        return bool(readable)

    def close(self) -> None:
        """Request a stop, for threads that outlive an interrupted command, and close the sockets."""
        self.ask()
        self._reader.close()
        self._writer.close()


# Run rounds until a stop is requested; a round that fails by a passing error is repeated.


RETRIED = (UnreachableError, StoreError, ClusterError, TaskError, LeaseRanOutError)
"""Errors that may pass. A lease that was taken over, damage, wrong settings and a fenced producer do not pass."""

_FIRST_PAUSE = 1.0  # s
_LAST_PAUSE = 60.0  # s


class RoundLoop:
    """Counts the rounds of a job that follows something, until a stop is requested:

        rounds = RoundLoop(stop)
        while rounds.begin():
            try:
                run_round(is_last=rounds.is_last)
            except RETRIED as error:
                pause = rounds.pause_after(error)
                ...
                stop.wait(pause)

    The last round begins after the stop was requested. A round that waits for the next one must return when a stop is
    requested."""

    def __init__(self, stop: Stop) -> None:
        self.is_last = False
        self._stop = stop
        self._pause = 0.0
        self._has_failed = False

    def begin(self) -> bool:
        """Begin the next round. Return False if the last one has ended."""
        if self.is_last:
            return False
        # asked for now, not at the end of the round before: a stop during that one leaves a last round to be done
        self.is_last = self._stop.asked
        if not self._has_failed:
            self._pause = 0.0
        self._has_failed = False
        return True

    def pause_after(self, error: KbackupError) -> float:
        """Return the seconds to wait after a round that failed: twice the last pause, until a round goes well.

        Raise the `error` if no other round may mend it: the error of the last round, and the error of a process that
        was fenced off."""
        if self.is_last or isinstance(error, FencedError):
            raise error
        self._has_failed = True
        self._pause = min(max(_FIRST_PAUSE, 2 * self._pause), _LAST_PAUSE)
        return self._pause
