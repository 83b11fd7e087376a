"""Keeps the status document and the lag of a flow up to date, in rounds and between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.errors import KbackupError
from kbackup.jobs.mirror import metering
from kbackup.jobs.mirror.flow import Clock, Flow
from kbackup.jobs.mirror.halves.alive import signs_of_life
from kbackup.jobs.mirror.halves.timetable import Timetable
from kbackup.jobs.mirror.status import (
    FlowStatus,
    after_error,
    after_round,
    first_status,
    planned,
    read_flow_status,
    round_lag,
    still_alive,
    write_status,
)
from kbackup.jobs.mirror.topics import TopicPlan
from kbackup.store.base import Store

if TYPE_CHECKING:
    from kbackup.jobs.mirror.halves.round import RoundReport

ALIVE = Clock(enabled=True, seconds=60.0)
"""Between signs of life of a flow, in a round and while it has nothing to do."""

SIGN_OF_LIFE = "sign of life"


class StatusKeeper:
    """The status of one flow while its apply half runs. `status` is the document as it was written last.

    The keeper has a view of its own on the archive: what is committed while a round runs counts as behind, and the
    round itself goes on with the catalog that it began with."""

    def __init__(
        self, flow: Flow, state: Store, archive: Archive, timetable: Timetable, warn: Callable[[str], None]
    ) -> None:
        self._flow, self._state, self._timetable, self._warn = flow, state, timetable, warn
        self._archive = Archive(archive.store, archive.info, archive.committed)
        self._write(first_status(flow, archive.info.id, read_flow_status(state, flow.source, flow.target)))
        self.count_lag()

    def alive(self) -> None:
        """Give a sign of life."""
        self._write(still_alive(self.status))
        self.count_lag()

    @contextmanager
    def round(self, plan: TopicPlan) -> Iterator[None]:
        """Write the topics that a round begins with, and give signs of life while it runs."""
        status = planned(self.status, plan.topics)
        if status != self.status:
            self._write(status)
        with signs_of_life(ALIVE.seconds, self.alive, self._unwritten):
            yield

    def applied(self, point: Manifest, plan: TopicPlan, report: RoundReport) -> None:
        self._write(after_round(self.status, point, plan.topics, report.applied, report.refused))
        self.count_lag()

    def failed(self, message: str) -> None:
        """A round failed, or an error ends the process. The flow falls behind meanwhile."""
        try:
            try:
                self._write(after_error(self.status, message))
            finally:
                self.count_lag()
        except KbackupError as error:
            self._unwritten(error)

    def count_lag(self) -> None:
        """Measure how far the flow is behind; where the archive can't be read, by its last known state."""
        try:
            self._archive.reopen()
        finally:
            metering.lag_now(self._flow, round_lag(self._archive.state, self.status))

    def _write(self, status: FlowStatus) -> None:
        write_status(self._state, status)
        self.status = status
        self._timetable.done(SIGN_OF_LIFE)

    def _unwritten(self, error: KbackupError) -> None:
        self._warn(f"flow {self._flow.name}: the status was not written: {error}")
