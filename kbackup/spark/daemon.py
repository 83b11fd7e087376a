"""Python's daemon for Spark's workers, started before Spark asks for it: its imports run beside the JVM's start.

`Ready` starts it with the command, listening on a socket in a folder of its own. Spark sets `KBACKUP_DAEMON` to the
socket's path for the Python processes that it starts (`conf`); the driver's own environment stays as it is. Spark
starts its daemon as ever (`kbackup.spark.daemon`): that one hands its standard streams, environment and import path
over, and stays as long as the other lives, which Spark takes for it. Whatever fails on the way, it becomes the
daemon itself. A ready process ends with the driver's end of its standard input, and from the hand-over on with
Spark's.
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
import traceback
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from kbackup.errors import KbackupError
from kbackup.util.system import close_process

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


# Spark's Python daemon, warm: what tasks need is imported once, and every worker that is forked from it shares that.
#
# Spark runs it where `spark.python.daemon.module` says `kbackup.spark.daemon`. Nothing that is imported here may
# start a thread or open a client: neither would be whole in a forked process. (pyarrow's allocator has a thread, and
# looks after forks itself.)


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
    """`path` without the zips and jars that Spark puts on it, where they lie inside an installed pyspark.

    They hold the same, but a zip's modules are compiled anew at each start (more than a second), and a worker reads the
    directories of all of them again for each task (60 ms).
    """
    entries = list(path)
    packages = [Path(entry, "pyspark") for entry in entries]

    def is_copy(entry: str) -> bool:
        return entry.endswith((".zip", ".jar")) and any(map(Path(entry).is_relative_to, packages))

    return [entry for entry in entries if not is_copy(entry)]


def _forget_zips() -> None:
    sys.path[:] = without_zips(sys.path)
    for gone in sys.path_importer_cache.keys() - set(sys.path):
        if gone.endswith((".zip", ".jar")):
            del sys.path_importer_cache[gone]


def silence_hangup_tracebacks() -> None:
    """Spark's daemon prints the traceback of a worker whose line to the JVM ends: that one cancelled the task, and
    knows. What a task fails of goes to the JVM."""
    plain = traceback.print_exc

    def print_exc(*arguments: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            plain(*arguments, **options)

    traceback.print_exc = print_exc


def _fork_without_warning() -> None:
    """Python 3.12 and later warn at each fork: of the thread of pyarrow's allocator, which looks after forks itself."""
    text = r"This process \(pid=\d+\) is multi-threaded, use of fork"
    warnings.filterwarnings("ignore", text, DeprecationWarning)


def _become_daemon() -> None:
    """Never when another took that over."""
    # a SIGTERM to all processes of a service is for the driver: this one and its workers end with their stdin
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if FLAG in sys.argv:
        listener = socket.socket(fileno=int(sys.argv[-1]))
        preload()
        if not take_over(listener):
            return
        _forget_zips()
    elif hand_over():
        return
    else:
        _forget_zips()
        preload()
    silence_hangup_tracebacks()
    _fork_without_warning()
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    _become_daemon()
