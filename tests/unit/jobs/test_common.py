"""Rounds until stopped, and which errors are tried again."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from kbackup.errors import CorruptError, FencedError, KbackupError, UnreachableError
from kbackup.jobs import common
from kbackup.jobs.common import RETRIED, RoundLoop, Stop


class Script:
    """Rounds that end as they are told to; then it asks to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: KbackupError | None) -> None:
        monkeypatch.setattr(common, "_FIRST_PAUSE", 0.001)
        monkeypatch.setattr(common, "_LAST_PAUSE", 0.003)
        self.outcomes = list(outcomes)
        self.lasts: list[bool] = []
        self.pauses: list[float] = []
        self.stop = Stop()

    def run(self) -> None:
        rounds = RoundLoop(self.stop)
        with closing(self.stop):
            while rounds.begin():
                try:
                    self._run_round(rounds.is_last)
                except RETRIED as error:
                    self.pauses.append(rounds.pause_after(error))

    def _run_round(self, is_last: bool) -> None:
        self.lasts.append(is_last)
        outcome = self.outcomes.pop(0)
        if not self.outcomes and not is_last:
            self.stop.ask()
            self.outcomes.append(None)
        if outcome is not None:
            raise outcome


def test_pauses_grow_and_begin_anew_after_a_round_that_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    away = UnreachableError("away", "")
    script = Script(monkeypatch, away, away, away, None, away, None)
    script.run()
    assert script.pauses == [0.001, 0.002, 0.003, 0.001]
    assert script.lasts == [False] * 6 + [True]


@pytest.mark.parametrize("error", [CorruptError("damaged", ""), FencedError("fenced", "")])
def test_permanent_errors_are_raised_at_once(monkeypatch: pytest.MonkeyPatch, error: KbackupError) -> None:
    script = Script(monkeypatch, None, error, None)
    with pytest.raises(type(error)):
        script.run()
    assert script.pauses == []


def test_errors_of_the_last_round_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, UnreachableError("away", ""))
    script.stop.ask()
    with pytest.raises(UnreachableError):
        script.run()


# A stop that is closed while others still use it.


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
