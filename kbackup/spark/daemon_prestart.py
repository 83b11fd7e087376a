"""Python's daemon for Spark's workers, started before Spark asks for it: its imports run beside the JVM's start.

`Ready` starts it with the command, listening on a socket in a folder of its own. Spark sets `KBACKUP_DAEMON` to the
socket's path for the Python processes that it starts (`conf`); the driver's own environment stays as it is. Spark
starts its daemon as ever (`kbackup.spark.daemon`): that one hands its standard streams, environment and import path
over, and stays as long as the other lives, which Spark takes for it. Whatever fails on the way, it becomes the
daemon itself. A ready process ends with the driver's end of its standard input, and from the hand-over on with
Spark's.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from kbackup.util.processes import close_process

VARIABLE = "KBACKUP_DAEMON"
FLAG = "--ready"

# As Spark starts its own: what is read at a process's start can't be handed over.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}


class Ready:
    """A daemon under way. `close` it when Spark is stopped, or was never started. `OSError` where there is no place for
    its socket."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="kbackup-")
        self.path = str(Path(self._folder, "daemon"))
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(self.path)
            except OSError:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
            listener.listen(1)
            self._process = subprocess.Popen(  # noqa: S603 (our own Python)
                [sys.executable, "-P", "-m", "kbackup.spark.daemon", FLAG, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what it fails of, the one that Spark starts fails of too
                env=_ENVIRONMENT | os.environ,
                pass_fds=[listener.fileno()],
                process_group=0,  # an interrupt at the terminal is not for it
            )

    @property
    def conf(self) -> dict[str, str]:
        """The setting by which Spark's daemon finds this one."""
        return {f"spark.executorEnv.{VARIABLE}": self.path}

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        close_process(self._process)


def hand_over() -> bool:
    """Hand over to a ready process, in the process that Spark started; return whether a ready one took its place, which
    by now has ended."""
    with suppress(OSError, KeyError), socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ[VARIABLE])
        told = json.dumps([dict(os.environ), sys.path]).encode()
        socket.send_fds(line, [len(told).to_bytes(8, "big")], [0, 1, 2])
        line.sendall(told)
        if line.recv(1):
            line.recv(1)  # nothing ever comes: it has ended
            return True
    return False


def take_over(listener: socket.socket) -> bool:
    """Wait in the ready process for Spark's daemon; return whether it handed over. False: no daemon will."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as what Spark starts has it
    wanted, _, _ = select.select([listener, sys.stdin], [], [])
    if sys.stdin in wanted:
        shutil.rmtree(
            Path(listener.getsockname()).parent, ignore_errors=True
        )  # the driver may have been killed
        return False
    line, _ = listener.accept()
    shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
    listener.close()
    size, streams, _, _ = socket.recv_fds(line, 8, 3)
    with line.makefile("rb") as reader:
        environment, path = json.loads(reader.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    line.sendall(b"1")
    line.detach()  # open as long as this process is
    return True
