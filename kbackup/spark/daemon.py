"""Spark's Python daemon, warm: it imports once what tasks need, and every worker that is forked from it shares that.

Spark runs this module where `spark.python.daemon.module` names it, as it does for a local session, which also starts it
in advance (`kbackup.spark.ready`). The daemon itself is pyspark's: this module prepares the process and then runs
`pyspark.daemon`.

Nothing that is imported here may start a thread or open a client: neither would be whole in a forked process.
(pyarrow's allocator has a thread, and looks after forks itself.)
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

from kbackup.errors import KbackupError
from kbackup.spark.ready import FLAG, hand_over, take_over
from kbackup.util.system import reuse_freed_memory

# Why pyspark's daemon does not start by itself: without `preload` every worker imports pandas, pyarrow, kbackup's
# modules and, out of their zip, pyspark's. From the start of the process until its first two tasks had ended took
# 8.2 s in place of 2.9 s (2 cores, the least of six rounds in turns). To measure again, time a small backup with and
# without `spark.python.daemon.module = "pyspark.daemon"` in [spark.conf].


def main() -> None:
    # A SIGTERM to all processes of a service is for the driver. This process ends when its stdin closes, and its
    # workers with it: blocked signals stay blocked in a forked process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    is_ready = FLAG in sys.argv
    if is_ready:
        listener = socket.socket(fileno=int(sys.argv[-1]))
        preload()
        if not take_over(listener):
            return
    elif hand_over():
        return
    reuse_freed_memory()
    sys.path[:] = without_zips(sys.path)
    sys.path_importer_cache.clear()  # holds the directories of the zips
    if not is_ready:
        preload()
    # Python 3.12 and later warn at each fork, because pyarrow's allocator has a thread.
    text = r"This process \(pid=\d+\) is multi-threaded, use of fork"
    warnings.filterwarnings("ignore", text, DeprecationWarning)
    runpy.run_module("pyspark.daemon", run_name="__main__")


# What is imported, and from where.

NEEDED = (
    "pandas",  # pyarrow imports it at the first value that it converts
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "kbackup.spark.tasks",
    "kbackup.jobs.backup.task",
    "kbackup.jobs.restore.task",
    "kbackup.mirror.apply.slots",
    "kbackup.jobs.verify",
    "kbackup.store.file",
    "kbackup.store.s3.store",
)


def preload(modules: Iterable[str] = NEEDED) -> None:
    """Import `modules`. stdout is the daemon's connection to Spark: output of imports goes to stderr."""
    # OpenBLAS starts its threads when numpy is imported, and a forked worker would not have them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What imports make stays: a collection in between finds nothing.
    gc.disable()
    with redirect_stdout(sys.stderr):
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                failed = KbackupError(
                    f"a Python worker can't import {name}: {error}",
                    f"install kafka-kbackup for {sys.executable}, with the extras that the driver has",
                )
                raise RuntimeError(failed.marker()) from error
        from kbackup.native.kernel import load_kernel

        load_kernel()
    # Without a collection before: it takes 0.15 s, and of what imports make it finds a thousand objects to free.
    gc.enable()
    # Frozen objects are left out of collections. A collection marks each object that it visits, so a worker would get
    # a copy of all memory pages that it shares with this process.
    gc.freeze()


def without_zips(path: Iterable[str]) -> list[str]:
    """Return `path` without the zips and jars that Spark puts on it, where they lie inside an installed pyspark."""
    # The zips hold the modules of the installed pyspark once more. A zip's modules are compiled anew at each start
    # (more than a second), and a worker reads the directories of all zips again for each task (60 ms).
    entries = list(path)
    packages = [Path(entry, "pyspark") for entry in entries]
    kept = []
    for entry in entries:
        is_archive = entry.endswith((".zip", ".jar"))
        is_of_pyspark = any(Path(entry).is_relative_to(package) for package in packages)
        if not (is_archive and is_of_pyspark):
            kept.append(entry)
    return kept


if __name__ == "__main__":
    main()
