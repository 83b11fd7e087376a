"""Server processes that belong to us: they log to a file, stop on demand, and never outlive their parent."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

from kbackup.errors import KbackupError

# The shell waits on a pipe whose other end only we hold: the kernel closes it when we end, by SIGKILL too.
# (PR_SET_PDEATHSIG is shorter, but follows the thread that forked, is Linux's alone, and needs preexec_fn.)
_GUARD = 'read -r _; kill -KILL "$0" 2>/dev/null'

_PORTS = range(15_000, 32_768)
_ATTEMPTS = 3

HANG = 600.0
"""Seconds to wait for what takes a few on an idle machine: on a busy one it takes as long as it takes, and only a hang
reaches this bound."""


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

    def stop(self, seconds: float = 120.0) -> None:
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


def listening(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


class Server(ABC):
    """Numbered processes with a temporary folder, as a context manager: both are gone at its end.

    A subclass says what it starts on which ports. Folder and ports stay when a process is stopped and started again.
    """

    name: ClassVar[str]
    host: ClassVar[str] = "127.0.0.1"
    """The address of this machine that it listens on."""
    taken: ClassVar[str] = "Address already in use"
    """What its log says if another process took one of the ports meanwhile; all is started again then."""

    def __init__(self) -> None:
        self.folder = Path()
        self._processes: dict[int, Process] = {}

    @abstractmethod
    def _open(self) -> None:
        """Choose free ports, and start everything in the empty folder."""

    def __enter__(self) -> Self:
        attempts = _ATTEMPTS
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=f"kbackup-{self.name}-"))
            try:
                self._open()
            except BaseException as error:
                self.close()
                attempts -= 1
                if not (isinstance(error, StartError) and self.taken in str(error) and attempts):
                    raise
            else:
                return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop and remove everything; idempotent. The data goes, so nobody waits for an orderly shutdown."""
        self.kill()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def pid(self, number: int = 0) -> int:
        return self._processes[number].pid

    def running(self, number: int) -> bool:
        return number in self._processes and self._processes[number].running

    def wait(self, number: int, ready: Callable[[], bool], label: str, seconds: float = HANG) -> None:
        self._processes[number].wait_ready(ready, label, seconds)

    def stop(self, *numbers: int) -> None:
        """An orderly shutdown (SIGTERM) of some processes, or of all; those that don't run are left alone."""
        going = self._take(numbers)
        for process in going:  # all at once: the last one would wait for a quorum that is gone
            process.terminate()
        for process in going:
            process.stop()

    def kill(self, *numbers: int) -> None:
        """SIGKILL, as a power loss would; of some processes, or of all."""
        for process in self._take(numbers):
            process.kill()

    def _take(self, numbers: Sequence[int]) -> list[Process]:
        return [self._processes.pop(each) for each in numbers or list(self._processes) if each in self._processes]


class HttpServer(Server):
    """One process that answers HTTP. After `stop` or `kill` it can `start` again, with its port."""

    health: ClassVar[str] = ""
    """A path that answers with 200 as soon as requests are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._port = 0

    @abstractmethod
    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and what it needs in its environment."""

    def _open(self) -> None:
        (self._port,) = free_ports(1)
        self.start()

    @property
    def data(self) -> Path:
        """The folder of the server's data, for those that keep them on disk."""
        return self.folder / "data"

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.host}:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        argv, env = self._command(self._port, self.data)
        self._processes[0] = Process(argv, self.folder / "log", env)
        self.wait(0, self._healthy, self.name)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url + self.health, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:  # HTTP errors are OSErrors too
            return False
