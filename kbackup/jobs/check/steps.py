"""Steps of a check: each is tried, told and remembered, and a failed one does not end the check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kbackup.errors import EXIT_OK, KbackupError

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Step:
    """`exit_code` is that of the error's class where it failed, else 0."""

    name: str
    status: Status
    detail: str
    hint: str = ""
    exit_code: int = EXIT_OK


@dataclass
class Trying:
    """A step under way: the body sets `detail`, or warns."""

    detail: str = ""
    hint: str = ""
    status: Status = "ok"

    def warn(self, detail: str, hint: str) -> None:
        self.status, self.detail, self.hint = "warning", detail, hint


@dataclass
class Steps:
    """`show` is called with each step as it ends."""

    show: Callable[[Step], None]
    done: list[Step] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code of the first failed step; 0 where none failed."""
        return next((step.exit_code for step in self.done if step.status == "failed"), EXIT_OK)

    @contextmanager
    def trying(self, name: str) -> Iterator[Trying]:
        """A step; an error of kbackup's tree in the block ends the block and is the step's failure."""
        step = Trying()
        try:
            yield step
        except KbackupError as error:
            step.status = "failed"
            self.fail(name, error)
        else:
            self._end(Step(name, step.status, step.detail, step.hint))

    def fail(self, name: str, error: KbackupError) -> None:
        """End a step that failed."""
        self._end(Step(name, "failed", error.message, error.hint, error.exit_code))

    def skip(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            self._end(Step(name, "skipped", why))

    def _end(self, step: Step) -> None:
        self.done.append(step)
        self.show(step)
