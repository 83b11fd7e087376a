"""The look for secrets that got out, as a part of every test run (a pytest plugin).

Looked through: every file under the session's temporary folder but inputs, what MinIO holds (`conftest.py`), what tests
and the processes that they started wrote to stdout, stderr and logs, whether they read it back or not, and the command
lines of those that still run. Not looked through: the servers' own configuration and logs, which are elsewhere.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.secrets import watch


def pytest_configure() -> None:
    _listen(pytest.CaptureFixture, "readouterr")
    _listen(subprocess.Popen, "communicate")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, text in report.sections:
        watch.look_at(f"{name} of {report.nodeid}", text)
    if report.when == "call" and "/unit/" not in report.nodeid:
        look_at_processes(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    temporary: Any = getattr(session.config, "_tmp_path_factory", None)
    if temporary is not None:
        watch.look_into(temporary.getbasetemp())
    if watch.hits:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    told: dict[str, list[str]] | None = getattr(session.config, "workeroutput", None)
    if told is not None:  # a worker of pytest-xdist, whose exit status nobody asks for
        told["secrets"] = watch.hits


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: what it found, or nothing where it crashed."""
    watch.hits += getattr(node, "workeroutput", {}).get("secrets", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if watch.hits:
        terminalreporter.section("secrets got out", red=True)
        for hit in sorted(set(watch.hits)):
            terminalreporter.line(hit)


def look_at_processes(when: str) -> None:
    """Search the command lines that `ps` shows of this process's descendants."""
    ours = {os.getpid()}
    for number, parent in sorted(_processes()):
        if parent in ours:
            ours.add(number)
            watch.look_at(f"the command line of process {number} at {when}", proc(number, "cmdline"))


def _processes() -> list[tuple[int, int]]:
    """(process, parent) of each."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    stats = {number: proc(number, "stat").rpartition(b") ")[2].split() for number in numbers}
    return [(number, int(stat[1])) for number, stat in stats.items() if stat]


def proc(number: int | str, file: str) -> bytes:
    """Read a file of a process in /proc; empty for a process that has ended or is another user's."""
    try:
        return Path(f"/proc/{number}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _listen(kind: type[Any], method: str) -> None:
    """Look at what `method` returns: (out, err), each text, bytes or None."""
    original: Callable[..., Any] = getattr(kind, method)

    def listening(*args: Any, **kwargs: Any) -> Any:
        said = original(*args, **kwargs)
        for text in said:
            watch.look_at(f"output at {os.environ.get('PYTEST_CURRENT_TEST', '?')}", text)
        return said

    setattr(kind, method, listening)
