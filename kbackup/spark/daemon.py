"""Spark's Python daemon, warm: what tasks need is imported once, and every worker that is forked from it shares that.

Spark runs this module where `spark.python.daemon.module` names it, as it does for a local session.

Nothing that is imported here may start a thread or open a client: neither would be whole in a forked process.
(pyarrow's allocator has a thread, and looks after forks itself.)
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

from kbackup.errors import KbackupError
from kbackup.util.system import reuse_freed_memory


def main() -> None:
    # a SIGTERM to all processes of a service is for the driver: this one and its workers end with their stdin
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    reuse_freed_memory()
    sys.path[:] = without_zips(sys.path)
    sys.path_importer_cache.clear()  # of zips too
    preload()
    # Python 3.12 and later warn at each fork, of the thread of pyarrow's allocator
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
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it starts its threads when numpy is imported
    gc.disable()  # modules stay
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
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages that it shares with us


def without_zips(path: Iterable[str]) -> list[str]:
    """Return `path` without the zips and jars that Spark puts on it, where they lie inside an installed pyspark. They
    hold the same, but a zip's modules are compiled anew at each start (more than a second), and a worker reads the
    directories of all of them again for each task (60 ms)."""
    entries = list(path)
    packages = [Path(entry, "pyspark") for entry in entries]
    return [e for e in entries if not (e.endswith((".zip", ".jar")) and any(map(Path(e).is_relative_to, packages)))]


if __name__ == "__main__":
    main()
