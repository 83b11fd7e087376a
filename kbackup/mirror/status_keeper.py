"""The status document of a flow while its writer runs: by it others see that the flow is alive, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event
from typing import Protocol

import msgspec

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.errors import KbackupError
from kbackup.mirror import metering
from kbackup.mirror.flow import Clock, Flow, FlowStatus, RemoteTopic, read_flow_status, write_status
from kbackup.mirror.round import RoundReport
from kbackup.mirror.status import after_error, after_round, first_status, news_of, planned, round_lag
from kbackup.mirror.timetable import Timetable
from kbackup.store.base import Store
from kbackup.util.times import now

ALIVE = Clock(enabled=True, seconds=60.0)
"""Between signs of life of a flow, in a round and while it has nothing to do."""

SIGN_OF_LIFE = "sign of life"

_PROGRESS = Clock(enabled=True, seconds=5.0)  # between documents that tell of nothing but progress


class WarningReporter(Protocol):
    def warned(self, text: str) -> None: ...


class StatusKeeper:
    """The status of one flow while its writer runs. `status` is the present one, and `settle` writes it.

    The keeper has a view of its own on the archive: what is committed while a round runs counts as behind, and the
    round itself goes on with the catalog that it began with."""

    def __init__(
        self, flow: Flow, state: Store, archive: Archive, timetable: Timetable, reporter: WarningReporter
    ) -> None:
        self._flow, self._state, self._timetable, self._reporter = flow, state, timetable, reporter
        self._archive = Archive(archive.store, archive.info, archive.committed)
        # The last process's status stays in force until records are applied: holds on restore points hang on it.
        before = read_flow_status(state, flow.source, flow.target)
        self.status = first_status(flow, archive.info.id, before)
        self._write(self.status)
        self.count_lag()

    @property
    def held_back(self) -> list[str]:
        """Return the remote topics whose records wait."""
        return [topic.remote for topic in self.status.topics if topic.held_back]

    def give_sign_of_life(self) -> None:
        self._write(msgspec.structs.replace(self.status, written_at=now()))
        self.count_lag()

    def is_sign_of_life_due(self) -> bool:
        return self._timetable.is_due(SIGN_OF_LIFE, ALIVE)

    def begin_round(self, topics: Sequence[RemoteTopic]) -> None:
        """Write the topics that a round begins with, so that `expire` retains the records that are not applied yet."""
        status = planned(self.status, topics)
        if status != self.status:
            self._write(status)

    @contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Give signs of life while a round runs, from a thread. A sign that can't be written is repeated at the next
        time; the last error is a warning at the end, an internal error is raised there."""
        # A first round may take days, and `expire` keeps the records of a flow only as long as its signs are fresh.
        is_over = Event()
        with ThreadPoolExecutor(1, "sign-of-life") as pool:
            # In a copy of this thread's context: its metrics count for the same archive.
            signs = pool.submit(copy_context().run, self._give_signs_until, is_over)
            try:
                yield
            finally:
                is_over.set()
                error = signs.result()
                if error is not None:
                    self._warn_unwritten(error)

    def _give_signs_until(self, is_over: Event) -> KbackupError | None:
        """Return the error of the last sign that could not be written, None if all were."""
        unwritten: KbackupError | None = None
        while not is_over.wait(ALIVE.seconds):
            try:
                self.give_sign_of_life()
            except KbackupError as error:
                unwritten = error
        return unwritten

    def end_round(self, point: Manifest, topics: Sequence[RemoteTopic], report: RoundReport) -> None:
        """Take over what a round applied. News is written at once, mere progress not in each round."""
        before = self.status
        self.status = after_round(before, point, topics, report.applied, report.refused)
        # Rounds follow each other within tenths of a second: a document each would be more requests than the records.
        self._pending = True
        self.settle(at_once=news_of(before) != news_of(self.status))

    def settle(self, *, at_once: bool = False) -> None:
        """Write the status of the last rounds, unless that is done or the last one was written just now."""
        if self._pending and (at_once or self._timetable.is_due(SIGN_OF_LIFE, _PROGRESS)):
            self._write(self.status)
            self.count_lag()

    def note_error(self, message: str) -> None:
        """Write that a round failed, or that an error ends the process. The flow falls behind meanwhile."""
        try:
            try:
                self._write(after_error(self.status, message))
            finally:
                self.count_lag()
        except KbackupError as error:
            self._warn_unwritten(error)

    def count_lag(self) -> None:
        """Measure how far the flow is behind; if the archive can't be read, by its last known state."""
        try:
            self._archive.reopen()
        finally:
            metering.lag_now(self._flow, round_lag(self._archive.state, self.status))

    def _write(self, status: FlowStatus) -> None:
        write_status(self._state, status)
        self.status = status
        self._pending = False
        self._timetable.done(SIGN_OF_LIFE)

    def _warn_unwritten(self, error: KbackupError) -> None:
        self._reporter.warned(f"flow {self._flow.name}: the status was not written: {error}")
