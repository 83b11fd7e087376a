"""Run the commands of the guide, each as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from kbackup.cli.common.command_context import signal_handler


def run_kbackup(words: Sequence[str]) -> int:
    """Run a command of kbackup to its end, and return its exit code."""
    # Else the command's output could come before what was printed here.
    sys.stdout.flush()
    return run_to_end([sys.executable, "-m", "kbackup", *words])


def run_to_end(command: Sequence[str]) -> int:
    """Run a process and wait until it has ended, also over Ctrl-C. Return its exit code.

    A terminal sends Ctrl-C to the process as well, which says what it has done and which command goes on.
    `subprocess.run` would kill it before it has done so."""
    with subprocess.Popen(command) as process:  # noqa: S603 (kbackup itself, with checked answers)

        def wait_on(number: int, frame: FrameType | None) -> None:
            """Let the process end by its own handler."""

        def pass_on(number: int, frame: FrameType | None) -> None:
            # Who sends SIGTERM sends it to the guide alone.
            process.terminate()

        with signal_handler(wait_on, signal.SIGINT), signal_handler(pass_on, signal.SIGTERM):
            return process.wait()
