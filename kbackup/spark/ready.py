"""A Python daemon that has imported everything by the time Spark wants one.

Spark starts its daemon for the first task. All processes of a run would then wait for a second, until the daemon has
imported what tasks need. So a local session starts a process of its own beside the JVM. This process imports and then
waits at a socket. The process that Spark starts later hands its streams, its environment and its import path over to
the ready process, and stays for as long as that one lives. Where no ready process answers, it becomes the daemon
itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from kbackup.util.system import close_process

VARIABLE = "_KBACKUP_READY_DAEMON"
"""Names the socket of the ready process to the process that Spark starts."""

FLAG = "--ready"
"""Tells `kbackup.spark.daemon` that it was started in advance; the number of its listening socket follows."""

_SET_AT_START = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}
"""Variables that Spark sets for its daemon, and that count when a process starts: they can't be handed over."""

_LENGTH_BYTES = 8


class ReadyDaemon:
    """A daemon process that waits for Spark at the socket `path`. It ends with this process, or with Spark's JVM once
    it was handed over. `close` it when the session has stopped. `OSError` if it can't be started."""

    def __init__(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            self._process = subprocess.Popen(  # noqa: S603 (our own Python)
                [sys.executable, "-P", "-m", "kbackup.spark.daemon", FLAG, str(listener.fileno())],
                # The process ends when this pipe closes, also where the driver was killed.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                # If an import fails, it fails in the process that Spark starts as well, which reports it.
                stderr=subprocess.DEVNULL,
                env=_SET_AT_START | dict(os.environ),
                pass_fds=[listener.fileno()],
                # Ctrl-C at the terminal is for the driver.
                process_group=0,
            )

    def close(self) -> None:
        """Wait until the process has ended."""
        close_process(self._process)


def hand_over() -> bool:
    """In the process that Spark starts: make the ready process the daemon. Return True when the daemon has ended, False
    if there is no ready process."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return False
    state = json.dumps([dict(os.environ), sys.path, sys.argv]).encode()
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
            socket.send_fds(line, [len(state).to_bytes(_LENGTH_BYTES, "big")], [0, 1, 2])
            line.sendall(state)
            has_taken_over = line.recv(1) != b""
        except OSError:
            # The ready process had ended before, or ended while it imported.
            return False
        if has_taken_over:
            # Nothing ever comes: the call returns when the daemon has ended, also if it was killed. Spark must not get
            # a second daemon on the same streams then.
            with suppress(OSError):
                line.recv(1)
        return has_taken_over


def take_over(listener: socket.socket) -> bool:
    """In the ready process: wait for the process that Spark starts, and take its place. Return False if the driver has
    ended before that."""
    # Spark starts its daemon so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    readable, _, _ = select.select([listener, sys.stdin], [], [])
    if sys.stdin in readable:
        return False
    line, _ = listener.accept()
    listener.close()
    length, streams, _, _ = socket.recv_fds(line, _LENGTH_BYTES, 3)
    with line.makefile("rb") as reader:
        state = reader.read(int.from_bytes(length, "big"))
    environment, sys.path[:], sys.argv[:] = json.loads(state)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    line.sendall(b"1")
    # The line stays open for as long as this process lives.
    line.detach()
    return True
