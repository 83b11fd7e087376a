"""A test that hangs fails, and what failed is told at once (a pytest plugin).

Without it a command that waits forever takes the whole run with it, and a run that is ended from outside has told
nothing but letters.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Generator
from types import FrameType

import pytest

SECONDS = 1200
"""The longest test takes a twentieth of this on an idle machine, and a third of it on one that is very busy."""

SHOWN = 1500
"""Characters of an error's message that are printed at once, of its beginning and as many of its end."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ToldAtOnce(config), "told at once")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test, with its fixtures, that takes longer than `SECONDS`."""

    def end(number: int, frame: FrameType | None) -> None:
        stacks = [f"{item.nodeid} took more than {SECONDS} s. What its threads were doing:"]
        for thread, top in sys._current_frames().items():
            stacks.append(f"thread {thread}:\n{''.join(traceback.format_stack(top))}")
        # No `Exception`: nothing of what is tested must take it for an error of its own.
        pytest.fail("\n".join(stacks), pytrace=False)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class ToldAtOnce:
    """Prints a line for each failure when it comes. The whole report follows at the end, if the run gets there."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED in its {report.when}: {report.nodeid}: {_reason(report)}")


def _reason(report: pytest.TestReport) -> str:
    """Return the error's message, up to its end, where a process that did not start has put what it said last."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = report.longreprtext if crash is None else f"{crash.path}:{crash.lineno}: {crash.message}"
    if len(message) <= 2 * SHOWN:
        return message.strip()
    return f"{message[:SHOWN].strip()}\n...\n{message[-SHOWN:].strip()}"
