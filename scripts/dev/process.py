"""A server process that belongs to us: logs to a file, stops on demand, and never outlives its parent."""

from __future__ import annotations

import atexit
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from kbackup.errors import KbackupError

# The shell waits on a pipe whose other end only we hold: the kernel closes it when we end, by SIGKILL too.
# (PR_SET_PDEATHSIG is shorter, but follows the thread that forked, is Linux's alone, and needs preexec_fn.)
_GUARD = 'read -r _; kill -KILL "$0" 2>/dev/null'

_PORTS = range(15_000, 32_768)
_ATTEMPTS = 3


class StartError(KbackupError):
    """A server ended or stayed silent before it was ready."""


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that are free now; another process may still take one before it is used.

    Outgoing connections take theirs from above: a server that is stopped finds its port free when it starts again.
    """
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = random.choice(_PORTS)
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports


def open_on_free_ports(
    begin: Callable[[], None], close: Callable[[], None], taken: str = "Address already in use"
) -> None:
    """Call `begin`, which chooses ports and starts servers; again where a port was `taken` meanwhile, as the server's
    log says. `close` follows each failure."""
    for attempt in range(_ATTEMPTS):
        try:
            begin()
        except StartError as error:
            close()
            if taken not in str(error) or attempt == _ATTEMPTS - 1:
                raise
        except BaseException:
            close()
            raise
        else:
            return


class Process:
    """A started process in a session of its own (a Ctrl-C in our terminal is ours to handle, not its)."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                argv,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self._child.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def wait_ready(self, ready: Callable[[], bool], label: str, seconds: float) -> None:
        """Poll until `ready()`; `StartError` with the log's tail where the process or the time ends first."""
        end = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise StartError(f"{label} ended with exit code {self._child.returncode}:\n{self.tail()}\n")
            if time.monotonic() > end:
                raise StartError(f"{label} is not ready after {seconds:.0f} s:\n{self.tail()}\n")
            time.sleep(0.05)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        if self.running:
            self._child.terminate()

    def stop(self, seconds: float = 15.0) -> None:
        """SIGTERM, then SIGKILL after `seconds`; returns when the process is gone. Idempotent."""
        if self.running:
            self._child.terminate()
            try:
                self._child.wait(seconds)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._release()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. Idempotent."""
        if self.running:
            self._child.kill()
        self._release()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _release(self) -> None:
        self._child.wait()
        # The guard must go before its pipe closes, or it would kill whoever gets the pid next.
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        atexit.unregister(self.kill)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
