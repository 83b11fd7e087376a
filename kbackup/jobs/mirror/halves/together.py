"""Halves side by side, each in a thread of its own. The first one that fails ends the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kbackup.jobs.common.stop import Stop

T = TypeVar("T")

_LOOK = 0.2  # s; signal handlers run between two looks


def run_together(
    takes: Mapping[str, Callable[[], T]], stop: Stop, applies: Mapping[str, Callable[[], T]], last: Stop
) -> dict[str, T]:
    """Run each half until it ends, and return what they returned by name.

    `takes` must end when `stop` is asked, `applies` when `last` is: once all of `takes` have ended. Without
    `takes` somebody else asks. The error of the first half that fails is raised once all have ended. An interrupt is
    not kept waiting: the threads end with the process."""
    reports: dict[str, T] = {}
    errors: list[BaseException] = []

    def run(name: str, half: Callable[[], T]) -> None:
        try:
            reports[name] = half()
        except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
            errors.append(error)
            stop.ask()
            last.ask()

    taking, applying = (
        [threading.Thread(target=run, args=each, name=f"kbackup {each[0]}", daemon=True) for each in group]
        for group in (takes.items(), applies.items())
    )
    for thread in (*taking, *applying):
        thread.start()
    _join(taking)
    if taking:
        last.ask()
    _join(applying)
    if errors:
        raise errors[0]
    return reports


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK)
