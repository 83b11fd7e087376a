"""A stop that is closed while others still use it."""

from __future__ import annotations

import threading

from kbackup.jobs.common import Stop


def test_closing_a_stop_asks_who_waits() -> None:
    """An interrupted command leaves its threads behind: they end without an error."""
    stop, answers = Stop(), list[bool]()
    waiting = threading.Thread(target=lambda: answers.append(stop.wait(60)))
    waiting.start()
    stop.close()
    waiting.join(60)
    assert answers == [True]
    assert stop.wait(60)
    stop.ask()
    assert stop.asked
