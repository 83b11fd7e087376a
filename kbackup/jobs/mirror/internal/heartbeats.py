"""Heartbeats of a flow, on a clock of their own."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from kbackup.errors import KbackupError
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.internal.topics import InternalTopics
from kbackup.kafka.mirror_records import Heartbeat
from kbackup.kafka.mirror_records.writer import RecordWriter

_TIMEOUT = 10.0  # s; an older heartbeat is of no use


class HeartbeatClock:
    """Writes a heartbeat at once and then every `emit.heartbeats.interval.seconds`, in a thread of its own:

        with HeartbeatClock(flow, target) as clock: ...

    Does nothing where the flow emits none. While the target is away, the clock keeps trying.
    """

    def __init__(self, flow: Flow, target: InternalTopics) -> None:
        self.flow = flow
        self._topic = target.names.heartbeats.name
        self._writer = RecordWriter(*target.properties(target.names.heartbeats), timeout=_TIMEOUT)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"heartbeats {flow.name}", daemon=True)
        self.count = 0
        """Heartbeats that were written."""

    def __enter__(self) -> Self:
        if self.flow.emit_heartbeats.enabled:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Raise the error of the newest heartbeat, where it failed."""
        error = self._error
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop the thread and wait for its end; idempotent."""
        self._stop.set()
        while self._thread.is_alive():
            self._writer.abort()
            self._thread.join(0.1)

    def _run(self) -> None:
        """Write heartbeats until the clock is closed. Each is due an interval after the last one was due; beats that a
        slow one delays are left out."""
        interval = self.flow.emit_heartbeats.seconds
        due = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due + interval, time.monotonic())
                self._beat()
        except Exception as error:  # noqa: BLE001 (`check` raises it in the thread that can act on it)
            self._error = error
        finally:
            self._writer.close()

    def _beat(self) -> None:
        now = int(time.time() * 1000)
        heartbeat = Heartbeat(self.flow.source, self.flow.target, now)
        try:
            self._writer.write(self._topic, [heartbeat], timestamp=now)
        except KbackupError as error:
            self._error = None if self._stop.is_set() else error
        else:
            self._error = None
            self.count += 1
