"""Start the JVM and the Spark context that a session is built on."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (it hooks into forks: never while the JVM is being forked in a thread)
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbackup.config.secrets import shown
from kbackup.spark.jars import LOCK, check_jars
from kbackup.util.printable import printable_lines

_GREETINGS = (
    *(b"Using incubator modules", b"Setting default log level", b"To adjust logging level"),
    *(b"Dynamic dump", b"dynamic dump"),
)

_RESOLVING = re.compile(
    rb":: (loading settings|resolving|resolution report|retrieving)|Ivy Default Cache|The jars for the packages|"
    rb"\S+#\S+ added as a dependency|"
    rb"\s+(confs: |found \S+#|:: modules in use|\||---|\S+#\S+ from |\d+ artifacts copied)"
)
"""Log lines about jars that are already downloaded (`spark.jars.packages`); downloads and problems are passed on."""

_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of settings that Spark itself hides in its logs and pages (its default of `spark.redaction.regex`)."""


def start_context(settings: Mapping[str, str]) -> None:
    """Starts a JVM and the context that the session is built on, unless there is one.

    The JVM ends with the driver: its stdin closes. It writes to our stderr (stdout is ours alone), without the lines
    it greets everybody with. Its Python workers write there too: all else passes. pyspark puts the settings on the
    JVM's command line, which every user of the machine can read: secret ones go to the context alone.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    launch_gateway: Any = java_gateway.launch_gateway
    conf, open_conf = (SparkConf(loadDefaults=False) for _ in range(2))
    conf.setAll(list(settings.items()))
    open_conf.setAll([*_without_secrets(settings).items()])
    if SparkContext._active_spark_context is not None:
        return
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="kbackup-stderr", daemon=True).start()
    try:
        # signals to the process group are for the driver ...
        gateway = launch_gateway(open_conf, {"stdout": writing, "stderr": writing, "process_group": 0})
    finally:
        os.close(writing)
    if lock := settings.get(LOCK):  # before any class of them is loaded
        check_jars(filter(None, (gateway.jvm.System.getProperty("spark.jars") or "").split(",")), Path(lock))
    misc = gateway.jvm.sun.misc
    misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)  # ... and those to all processes
    if settings["spark.master"].startswith("local") and "SPARK_LOCAL_DIRS" not in os.environ:
        conf.setIfMissing("spark.local.dir", _private_folder(gateway))
    SparkContext(conf=conf, gateway=gateway)


def _private_folder(gateway: Any) -> str:
    """A folder for the blocks that Spark writes to disk, which it lets everybody read. It goes with the JVM."""
    folder = tempfile.mkdtemp(prefix="kbackup-spark-")
    gateway.jvm.java.io.File(folder).deleteOnExit()
    return folder


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines, os.fdopen(os.dup(2), "wb", buffering=0) as out:
        for line in lines:
            if not any(word in line for word in _GREETINGS) and not _RESOLVING.match(line):
                said = printable_lines(line.decode(errors="backslashreplace"))
                out.write(said.encode())


def _without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that every user of the machine may read on the JVM's command line: those without secrets."""
    return {
        name: value
        for name, value in settings.items()
        if not _SECRET.search(name) and shown(name, value) == value
    }
