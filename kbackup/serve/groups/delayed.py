"""An answer that a group gives later: when the other members have joined, or the leader has assigned partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kbackup.serve.groups.errors import GroupRequestError

Answer = TypeVar("Answer")


class DelayedAnswer(Generic[Answer]):
    """Holds an answer, or the error that stands for it, as soon as there is one. It is given once."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._error: GroupRequestError | None = None
        self._is_given = False
        self._notify: Callable[[], None] | None = None

    @property
    def is_given(self) -> bool:
        return self._is_given

    def give(self, answer: Answer) -> None:
        self._answer = answer
        self._finish()

    def refuse(self, error: GroupRequestError) -> None:
        self._error = error
        self._finish()

    def result(self) -> Answer:
        """Return the answer. Raise the error that was given instead."""
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise RuntimeError("the answer is not given yet")
        return self._answer

    def when_given(self, notify: Callable[[], None]) -> None:
        """Call `notify` when the answer is given: at once if it is there already."""
        if self._is_given:
            notify()
        else:
            self._notify = notify

    def _finish(self) -> None:
        if self._is_given:
            raise RuntimeError("the answer is given already")
        self._is_given = True
        if self._notify is not None:
            self._notify()
