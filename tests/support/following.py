"""`backup --follow` in a thread of this process, with all that it tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError
from kbackup.jobs.backup.follow import Follower, FollowReport
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import Silent
from kbackup.metrics.server import Health
from kbackup.store.base import Store
from scripts.dev.process import HANG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scripts.dev.kafka import Broker


class Following:
    """A context manager; leaving it asks the follower to stop, waits, and raises what it raised."""

    def __init__(self, options: Backup, rhythm: Follow, broker: Broker, store: Store, spark: SparkSession) -> None:
        self.commits: list[BackupReport] = []
        self.rounds = 0
        self.errors: list[KbackupError] = []
        self.health = Health(rhythm.stale_after_seconds)
        self.report: FollowReport | None = None
        self._later = 0.0
        self._stop = Stop()
        self._raised: list[BaseException] = []
        self._follower = Follower(
            options,
            rhythm,
            {"bootstrap.servers": broker.bootstrap},
            store,
            lambda: spark,
            Silent(),
            self._stop,
            clock=lambda: time.monotonic() + self._later,
        )
        self._thread = threading.Thread(target=self._run, name="follower")

    def committed(self, report: BackupReport) -> None:
        self.commits.append(report)

    def record_success(self) -> None:
        self.rounds += 1
        self.health.record_success()

    def failed(self, error: KbackupError, pause: float) -> None:
        self.errors.append(error)
        self.health.failed(error.message)

    def _run(self) -> None:
        try:
            self.report = self._follower.follow_until_stopped(self)
        except BaseException as raised:  # noqa: BLE001 (raised again in the test)
            self._raised.append(raised)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.ask()
        self._thread.join(HANG)
        assert not self._thread.is_alive(), "it does not end"
        self._stop.close()
        if self._raised and error is None:
            raise self._raised[0]

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the follower alone."""
        self._later += seconds

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + HANG
        while not true():
            if self._raised:
                raise self._raised[0]
            assert time.monotonic() < end, f"{self.rounds} rounds, {len(self.commits)} commits, {self.errors}"
            time.sleep(0.05)

    def ended_by(self) -> BaseException:
        """Waits until it ends, not having been asked to."""
        self._thread.join(HANG)
        return self._raised.pop()

    def another_round(self, count: int = 1) -> None:
        """Until `count` rounds have begun after this moment and ended."""
        wanted = self.rounds + count + 1
        self.until(lambda: self.rounds >= wanted)
