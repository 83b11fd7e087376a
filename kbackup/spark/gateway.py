"""Start the JVM and the Spark context that a session is built on."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (it hooks into forks: never while the JVM is being forked in a thread)
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kbackup.config.secrets import shown
from kbackup.spark.command import find_launch, java_command
from kbackup.spark.jars import LOCK, check_jars
from kbackup.spark.jvm import class_archive
from kbackup.util.printable import printable_lines
from kbackup.util.processes import close_process

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

_SOCKET_PATH, _SOCKET_NAME = 107, len("/.") + 36 + len(".sock")
"""The bytes of a Unix socket's path, and of the names that Spark gives to its sockets."""

_LOOK = 0.005  # s, between looks for the JVM's answer

_IMPORTS = (
    *("org.apache.spark.SparkConf", "org.apache.spark.api.java.*", "org.apache.spark.api.python.*"),
    *("org.apache.spark.resource.*", "org.apache.spark.sql.Encoders", "org.apache.spark.sql.OnSuccessCall"),
    *(
        "org.apache.spark.sql.functions",
        "org.apache.spark.sql.classic.*",
        "org.apache.spark.sql.api.python.*",
    ),
    "scala.Tuple2",
)
"""Java's names that pyspark uses without their packages."""


class Jvm:
    """A JVM of Spark that has been started.

    It ends with the driver: its stdin closes. It writes to our stderr (stdout is ours alone), without the lines that it
    greets everybody with. Its Python workers write there too: all else passes. Every user of the machine can read its
    command line: secret settings go to the context alone.
    """

    def __init__(self, settings: Mapping[str, str], *, note_classes: bool) -> None:
        self._settings = settings
        self._shown = _without_secrets(settings)
        self._archive = class_archive()
        self._launch = find_launch(self._archive, settings) if self._archive is not None else None
        self._process: _Process | None = None
        reading, self._writing = os.pipe()
        threading.Thread(target=_pass_on, args=(reading,), name="kbackup-stderr", daemon=True).start()
        if self._archive is not None and self._launch is not None:
            command = java_command(self._launch, self._archive, settings, self._shown, note=note_classes)
            self._process = _Process(command, self._archive.home, self._writing)

    def start_context(self) -> None:
        """Start the context that the session is built on."""
        from pyspark import SparkConf, SparkContext

        try:
            gateway = self._process.connect() if self._process is not None else self._run_scripts()
        finally:
            os.close(self._writing)
        settings = self._settings
        if lock := settings.get(LOCK):  # before any class of them is loaded
            jars = gateway.jvm.System.getProperty("spark.jars") or ""
            check_jars(filter(None, jars.split(",")), Path(lock))
        misc = gateway.jvm.sun.misc
        misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)  # those to all processes
        conf = SparkConf(_jvm=gateway.jvm)  # with the settings of the command line
        for name in settings.keys() - self._shown.keys():
            conf.set(name, settings[name])
        if settings["spark.master"].startswith("local"):
            _keep_private(conf, _private_folder(gateway))
        SparkContext(conf=conf, gateway=gateway)

    @property
    def archive_due(self) -> bool:
        """True when `write_archive` has something to write."""
        return self._archive is not None and self._launch is not None and self._archive.due

    def write_archive(self) -> None:
        """Write the archive of the loaded classes, where there is none; to be called after the work."""
        if self._archive is not None and self._launch is not None:
            self._archive.write(self._launch.jvm_options())

    def terminate(self) -> None:
        """End a JVM without a session."""
        if self._process is not None:
            self._process.terminate()

    def forget_classes(self) -> None:
        """Remove the note of the loaded classes."""
        if self._archive is not None:
            self._archive.forget_classes()

    def _run_scripts(self) -> Any:
        from pyspark import SparkConf, java_gateway

        launch_gateway: Any = java_gateway.launch_gateway
        conf = SparkConf(loadDefaults=False).setAll(list(self._shown.items()))
        options = {"stdout": self._writing, "stderr": self._writing, "process_group": 0}
        return launch_gateway(conf, options)


def jvm_has_ended(patience: float = 0) -> bool:
    """Return whether the JVM that pyspark is connected to has ended, or ends within `patience` seconds.

    One that another process started goes with this process."""
    pyspark = sys.modules.get("pyspark")
    process = getattr(pyspark.SparkContext._gateway, "proc", None) if pyspark is not None else None
    with suppress(subprocess.TimeoutExpired):
        return process is not None and process.wait(patience) is not None
    return False


def forget_jvm() -> None:
    """Let pyspark connect to another JVM: this one has ended."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


class _Process:
    """The JVM as a process that listens for pyspark, started and found as pyspark does with Spark's scripts."""

    def __init__(self, command: Sequence[str], home: Path, output: int) -> None:
        self._connection = Path(tempfile.mkdtemp(prefix="kbackup-spark-"), "connection")
        own = {"PYTHONHASHSEED": "0", "SPARK_CONNECT_MODE": "0", "SPARK_HOME": str(home)}
        self._process = subprocess.Popen(  # noqa: S603 (the JVM that Spark's scripts start)
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            process_group=0,  # signals to the process group are for the driver
            env={**os.environ, **own, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection)},
        )

    def terminate(self) -> None:
        """End the JVM, which may be starting, and wait for its end."""
        self._process.terminate()
        close_process(self._process)
        shutil.rmtree(self._connection.parent, ignore_errors=True)

    def connect(self) -> Any:
        """Wait until the JVM listens and connect. Raises `PySparkRuntimeError` if it ends before."""
        from py4j.clientserver import (  # type: ignore[import-untyped]
            ClientServer,
            JavaParameters,
            PythonParameters,
        )
        from py4j.java_gateway import java_import  # type: ignore[import-untyped]
        from pyspark.errors import PySparkRuntimeError

        while not self._connection.exists():
            if self._process.poll() is not None:
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            time.sleep(_LOOK)
        told = self._connection.read_bytes()
        shutil.rmtree(self._connection.parent)
        port, size = struct.unpack_from(">ii", told)
        java = JavaParameters(port=port, auth_token=told[8 : 8 + size].decode(), auto_convert=True)
        gateway = ClientServer(java, PythonParameters(port=0, eager_load=False))
        gateway.proc = self._process
        for name in _IMPORTS:
            java_import(gateway.jvm, name)
        return gateway


def _keep_private(conf: Any, folder: str) -> None:
    """Put into a private folder the blocks that Spark writes to disk, which it lets everybody read, and the sockets
    between the JVM and Python, where their paths are short enough for sockets."""
    if "SPARK_LOCAL_DIRS" not in os.environ:
        conf.setIfMissing("spark.local.dir", folder)
    if len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_PATH:
        conf.setIfMissing("spark.python.unix.domain.socket.enabled", "true")
        conf.setIfMissing("spark.python.unix.domain.socket.dir", folder)


def _private_folder(gateway: Any) -> str:
    """Make a folder that goes with the JVM."""
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
