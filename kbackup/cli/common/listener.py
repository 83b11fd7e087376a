"""Show a job's progress on stderr (`kbackup.metrics.events.Listener`)."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from kbackup.cli.common.output import Reporter
from kbackup.cli.common.progress import Progress


class ShownProgress:
    """A job's listener: one progress for each phase, from its first count on.

    Use it as a context manager: the end removes the bar."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._name = ""
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def phase(self, name: str) -> None:
        self._end()
        self._name = name

    def progress(self, records: int, size: int, expected: int) -> None:
        if self._progress is None:
            self._progress = self._reporter.progress(self._name).__enter__()
        self._progress.reach(records, size, expected)

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None
