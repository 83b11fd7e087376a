"""Heartbeats of a flow, on a clock of their own."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.internal.topics import InternalTopics


class HeartbeatClock:
    """Writes a heartbeat at once and then every `emit.heartbeats.interval.seconds`, in a thread of its own:

        with HeartbeatClock(flow, target) as clock: ...

    Does nothing where the flow emits none. While the target is away, the clock keeps trying.
    """

    def __init__(self, flow: Flow, target: InternalTopics) -> None:
        self._flow, self._target = flow, target

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Raise the error of the newest heartbeat, where it failed."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the thread and wait for its end; idempotent."""
        raise NotImplementedError
