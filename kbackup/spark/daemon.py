"""Spark's Python daemon, warm: what tasks need is imported once, and every worker that is forked from it shares that.

Spark runs this module where `spark.python.daemon.module` names it. For a local session `ReadyDaemon` starts it with the
command, so that its imports run beside the JVM's start. The process that Spark starts then hands its streams,
environment and import path over to the ready one, and stays as long as that one lives. Where there is none, it becomes
the daemon itself.

Nothing that is imported here may start a thread or open a client: neither would be whole in a forked process.
(pyarrow's allocator has a thread, and looks after forks itself.)
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path

from kbackup.errors import KbackupError
from kbackup.util.system import close_process, reuse_freed_memory

_VARIABLE = "KBACKUP_DAEMON"
_FLAG = "--ready"

# As Spark starts its own: what is read at a process's start can't be handed over.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}


class ReadyDaemon:
    """A daemon that waits on a socket in a folder of its own, and ends when the driver's end of its stdin closes.

    `close` it when Spark is stopped, or was never started. `OSError` where there is no place for its socket."""

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
                [sys.executable, "-P", "-m", "kbackup.spark.daemon", _FLAG, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # where it fails, the one that Spark starts fails too
                env=_ENVIRONMENT | os.environ,
                pass_fds=[listener.fileno()],
                process_group=0,  # an interrupt at the terminal is not for it
            )

    @property
    def conf(self) -> dict[str, str]:
        """The setting by which the process that Spark starts finds this one."""
        return {f"spark.executorEnv.{_VARIABLE}": self.path}

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        close_process(self._process)


def main() -> None:
    # a SIGTERM to all processes of a service is for the driver: this one and its workers end with their stdin
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if _FLAG in sys.argv:
        preload()
        if not _take_over(socket.socket(fileno=int(sys.argv[-1]))):
            return
    elif _hand_over():
        return
    reuse_freed_memory()
    sys.path[:] = without_zips(sys.path)
    sys.path_importer_cache.clear()  # of zips too
    preload()  # a ready one has done so
    # Python 3.12 and later warn at each fork, of the thread of pyarrow's allocator
    text = r"This process \(pid=\d+\) is multi-threaded, use of fork"
    warnings.filterwarnings("ignore", text, DeprecationWarning)
    runpy.run_module("pyspark.daemon", run_name="__main__")


def _hand_over() -> bool:
    """Hand over to a ready process; return whether it became the daemon, which by now has ended."""
    with suppress(OSError, KeyError), socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ[_VARIABLE])
        state = json.dumps([dict(os.environ), sys.path]).encode()
        socket.send_fds(line, [len(state).to_bytes(8, "big")], [0, 1, 2])
        line.sendall(state)
        if line.recv(1):
            line.recv(1)  # nothing ever comes: it has ended
            return True
    return False


def _take_over(listener: socket.socket) -> bool:
    """Wait for the process that Spark starts, and take its place. Return False where the driver ended before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as what Spark starts has it
    readable, _, _ = select.select([listener, sys.stdin], [], [])
    is_asked = sys.stdin not in readable
    line = listener.accept()[0] if is_asked else None
    shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)  # the driver may have been killed
    listener.close()
    if line is None:
        return False
    size, streams, _, _ = socket.recv_fds(line, 8, 3)
    with line.makefile("rb") as reader:
        environment, sys.path[:] = json.loads(reader.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    line.sendall(b"1")
    line.detach()  # open as long as this process is
    return True


# What is imported, and from where.

NEEDED = (
    "pandas",  # pyarrow imports it at the first value that it converts
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "kbackup.spark.tasks",
    "kbackup.jobs.backup.task",
    "kbackup.jobs.restore.task",
    "kbackup.jobs.mirror.apply.slots",
    "kbackup.jobs.verify.job",
    "kbackup.store.file",
    "kbackup.store.s3",
)


class WorkerImportError(KbackupError):
    """A module that tasks need can't be imported in a Python worker."""


def preload(modules: Iterable[str] = NEEDED) -> None:
    """Import `modules`. stdout is the daemon's connection to Spark: output of imports goes to stderr."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it starts its threads when numpy is imported
    gc.disable()  # modules stay
    with redirect_stdout(sys.stderr):
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                failed = WorkerImportError(
                    f"a Python worker can't import {name}: {error}",
                    f"install kafka-kbackup for {sys.executable}, with the extras that the driver has",
                )
                raise RuntimeError(failed.marker()) from error
        from kbackup.kafka import kernel

        kernel.load()
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages that it shares with us


def without_zips(path: Iterable[str]) -> list[str]:
    """Return `path` without the zips and jars that Spark puts on it, where they lie inside an installed pyspark.

    They hold the same, but a zip's modules are compiled anew at each start (more than a second), and a worker reads the
    directories of all of them again for each task (60 ms).
    """
    entries = list(path)
    packages = [Path(entry, "pyspark") for entry in entries]

    def is_copy(entry: str) -> bool:
        return entry.endswith((".zip", ".jar")) and any(map(Path(entry).is_relative_to, packages))

    return [entry for entry in entries if not is_copy(entry)]


if __name__ == "__main__":
    main()
