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
    """Run a process, pass signals on to it, and wait until it has ended, also over Ctrl-C. Return its exit code.

    The process says at a signal what it has done and which command goes on. `subprocess.run` would kill it before it
    has done so."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    with signal_handler(pass_on, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # In a process group of its own, the process gets no Ctrl-C from the terminal: else it would get that and the
        # signal that is passed on, and the second one stops what the first one has it finish. A terminal halts such a
        # process when it reads from it, and none of the commands reads.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603 (kbackup itself)
        for number in early:
            process.send_signal(number)
        return process.wait()
