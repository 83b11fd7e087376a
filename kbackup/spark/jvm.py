"""Spark's JVM on this machine: its command line, its start beside the driver's imports, and its end.

Spark's own scripts start a JVM (the launcher) that prints the command line of the next one. Where nothing of the
user's would change that line, kbackup builds it itself, and starts the JVM before pyspark is imported.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kbackup.config.secrets import NAMES_OF_SECRETS, shown
from kbackup.errors import RefusedError
from kbackup.util.scratch import ScratchFolder
from kbackup.util.system import close_process
from kbackup.util.text import printable_lines

LOCK = "spark.kbackup.jars.lock"
"""The setting that names the list of the SHA-256 that jars of a session may have, as `sha256sum` writes it."""

LIGHT = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=192m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""One compiler, one collector, no collection for the sake of classes alone, and no verification of Spark's classes, a
sixth of the CPU of a start. No record passes through the JVM: more would not repay its cost."""

_LOOK = 0.005  # s, between looks for the JVM's answer

REDACTION = f"(?i)access[._]?key|{NAMES_OF_SECRETS}"
"""Names of settings that Spark hides in its logs, event logs and pages (`spark.redaction.regex`): those of its own
default, and those of kbackup's secrets."""

_REDACTED = re.compile(REDACTION)

_SOCKET_PATH, _SOCKET_NAME = 107, len("/.") + 36 + len(".sock")
"""The bytes of a Unix socket's path, and of the names that Spark gives to its sockets."""

_IMPORTS = (
    "org.apache.spark.SparkConf org.apache.spark.api.java.* org.apache.spark.api.python.* org.apache.spark.resource.* "
    "org.apache.spark.sql.Encoders org.apache.spark.sql.OnSuccessCall org.apache.spark.sql.functions "
    "org.apache.spark.sql.classic.* org.apache.spark.sql.api.python.* scala.Tuple2"
)
"""Java's names that pyspark uses without their packages."""


class Jvm:
    """A JVM of Spark that has been started, and listens for pyspark soon.

    It ends with the driver: its stdin closes. It writes to our stderr (stdout is ours alone), without the lines that it
    greets everybody with. Its Python workers write there too: all else passes. Every user of the machine can read its
    command line: secret settings go to the context alone.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._shown = without_secrets(settings)
        self._scratch = ScratchFolder("spark")
        self._answer = self._scratch.path / "connection"
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        self._unheard = threading.Event()
        home = spark_home()
        environment = {
            "SPARK_LAUNCHER_OPTS": LIGHT,  # of the JVM that finds the command line
            **os.environ,
            **{"PYTHONHASHSEED": "0", "SPARK_CONNECT_MODE": "0", "SPARK_HOME": str(home)},
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._answer),
        }
        reading, writing = os.pipe()
        threading.Thread(target=pass_on, args=(reading, self._unheard), name="kbackup-stderr", daemon=True).start()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (Spark's own scripts, or the JVM that they start)
                command_line(home, settings, self._shown),
                stdin=subprocess.PIPE,
                stdout=writing,
                stderr=writing,
                process_group=0,  # signals to the process group are for the driver
                env=environment,
            )
        except OSError as error:
            self._error = error
        finally:
            os.close(writing)

    def start_context(self) -> None:
        """Start the context that the session is built on."""
        from pyspark import SparkConf, SparkContext

        gateway = self.connect()
        if lock := self._settings.get(LOCK):  # before any class of them is loaded
            jars = gateway.jvm.System.getProperty("spark.jars") or ""
            check_jars(filter(None, jars.split(",")), Path(lock))
        misc = gateway.jvm.sun.misc
        misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)  # those to all processes
        conf = SparkConf(_jvm=gateway.jvm)  # with the settings of the command line
        for name in self._settings.keys() - self._shown.keys():
            conf.set(name, self._settings[name])
        folder = str(self._scratch.path)
        # The JVM deletes the folder when it ends, also where the driver was killed. Spark leaves a socket in it, so
        # that Java's own deleteOnExit, which deletes empty folders alone, would leave both.
        gateway.jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(
            gateway.jvm.java.io.File(folder)
        )
        if not has_account():
            # Hadoop asks the system for the name of the account, and Spark does not start where there is none.
            users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
            users.setLoginUser(users.createRemoteUser(os.environ.get("HADOOP_USER_NAME") or str(os.getuid())))
        if self._settings["spark.master"].startswith("local"):
            # private: blocks that Spark writes to disk for everybody to read, and the sockets between the JVM and
            # Python, where their paths are short enough for sockets
            if "SPARK_LOCAL_DIRS" not in os.environ:
                conf.setIfMissing("spark.local.dir", folder)
            if len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_PATH:
                conf.setIfMissing("spark.python.unix.domain.socket.enabled", "true")
                conf.setIfMissing("spark.python.unix.domain.socket.dir", folder)
        SparkContext(conf=conf, gateway=gateway)

    def connect(self) -> Any:
        """Wait until the JVM listens and connect, as pyspark does. Raises `OSError` if it could not be started, and
        `PySparkRuntimeError` if it ends before it listens."""
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters  # type: ignore[import-untyped]
        from py4j.java_gateway import java_import  # type: ignore[import-untyped]
        from pyspark.errors import PySparkRuntimeError

        try:
            while not self._answer.exists():
                if self._process is None or self._process.poll() is not None:
                    raise self._error or PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
                time.sleep(_LOOK)
            answer = self._answer.read_bytes()
        finally:
            self._answer.unlink(missing_ok=True)
        port, size = struct.unpack_from(">ii", answer)
        java = JavaParameters(port=port, auth_token=answer[8 : 8 + size].decode(), auto_convert=True)
        gateway = ClientServer(java, PythonParameters(port=0, eager_load=False))
        gateway.proc = self._process
        for name in _IMPORTS.split():
            java_import(gateway.jvm, name)
        return gateway

    def terminate(self) -> None:
        """End the JVM, which may be starting, and wait for its end. What it logs of an end within its start is not
        passed on."""
        self._unheard.set()
        if self._process is not None:
            self._process.terminate()
            close_process(self._process)
        self._scratch.remove()


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that every user of the machine may read on the JVM's command line: those without secrets."""
    public = {}
    for name, value in settings.items():
        hidden = _REDACTED.search(name) or shown(name, value) != value
        if not hidden:
            public[name] = value
    return public


# Accounts that the system does not know: a container may run as any number (OpenShift gives each project its own).


def has_account() -> bool:
    """Return whether the system has a name and a home for the user of this process."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def home_option() -> str:
    """Return the option that names a home to the JVM, with a blank before it; '' where the JVM finds one by itself.

    Without an account Java takes "?" for the home, and Spark refuses to start below a relative path.
    """
    if has_account():
        return ""
    home = Path(os.environ.get("HOME", ""))
    is_usable = home.is_absolute() and os.access(home, os.W_OK)
    folder = str(home) if is_usable else tempfile.gettempdir()
    return f" {shlex.quote(f'-Duser.home={folder}')}"


# The command line.

_VARIABLES = (
    "PYSPARK_SUBMIT_ARGS SPARK_SUBMIT_OPTS SPARK_PREPEND_CLASSES SPARK_TESTING "
    "SPARK_CONF_DIR HADOOP_CONF_DIR YARN_CONF_DIR SPARK_DIST_CLASSPATH"
)
_SETTINGS = ("extraClassPath", "extraLibraryPath", "defaultJavaOptions")
"""What Spark's scripts or its launcher heed, and `command_line` does not."""

_OPEN = (
    "java.base/java.lang java.base/java.lang.invoke java.base/java.lang.reflect java.base/java.io java.base/java.net "
    "java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic "
    "java.base/jdk.internal.ref java.base/sun.nio.ch java.base/sun.nio.cs java.base/sun.security.action "
    "java.base/sun.util.calendar java.security.jgss/sun.security.krb5"
)
_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPEN.split()),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""The options that Spark's launcher gives to every JVM, but for the vectors of MLlib."""


def spark_home() -> Path:
    """Return the folder of Spark: SPARK_HOME, or the installed pyspark's."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("pyspark")


def class_archive() -> Path:
    """Return the file of this installation that holds Spark's classes for later starts, where it was made
    (`python -m kbackup.spark`)."""
    return Path(sys.prefix, "share", "kbackup", "spark.jsa")


def command_line(home: Path, settings: Mapping[str, str], shown: Mapping[str, str]) -> list[str]:
    """Return the command line of a JVM with `settings`, of which everybody on the machine may read those in `shown`.
    Where the user has set what Spark's scripts heed, it is theirs."""
    words = [word for name, value in shown.items() for word in ("--conf", f"{name}={value}")]
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{java_home}/bin" if java_home else None)
    options = settings.get("spark.driver.extraJavaOptions", "")
    heeded = (
        any(map(os.environ.get, _VARIABLES.split()))
        or (home / "conf").exists()
        or any(f"spark.driver.{name}" in settings for name in _SETTINGS)
        or LIGHT not in options
    )
    if java is None or not (home / "jars").is_dir() or heeded:
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        return [str(home / "bin" / "spark-submit"), *words, *arguments]
    # MLlib registers its functions in every session: half a second of CPU at each start
    jars = [str(jar) for jar in sorted((home / "jars").glob("*.jar")) if not jar.name.startswith("spark-mllib_")]
    return [
        *(java, "-cp", os.pathsep.join(jars), *_OPTIONS, f"-Xmx{settings['spark.driver.memory']}"),
        *(*shlex.split(options), "org.apache.spark.deploy.SparkSubmit", *words, "pyspark-shell"),
    ]


def check_jars(jars: Iterable[str], lock: Path) -> None:
    """Raise `RefusedError` for the first of `jars` (paths or file: URLs) whose bytes are not in the list `lock`."""
    locked = {line.split()[0] for line in lock.read_text("ascii").splitlines()}
    for jar in jars:
        path = Path(unquote(urlsplit(jar).path))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in locked:
            raise RefusedError(
                f"{path} is not the jar that kbackup was tested with: its SHA-256 is {digest}",
                "remove it, and find out where it came from; to use jars of your own name them in spark.jars",
            )


# What the JVM and its Python workers write.

_GREETINGS = (b"Using incubator modules", b"Setting default log level", b"To adjust logging level")

_RESOLVING = re.compile(
    rb":: (loading settings|resolving|resolution report|retrieving)|Ivy Default Cache|The jars for the packages|"
    rb"\S+#\S+ added as a dependency|"
    rb"\s+(confs: |found \S+#|:: modules in use|\||---|\S+#\S+ from |\d+ artifacts copied)"
)
"""Log lines about jars that are already downloaded (`spark.jars.packages`); downloads and problems are passed on."""

_HANG_UP = re.compile(rb"(EOFError|BrokenPipeError|Connection\w+Error)\b")


def pass_on(reading: int, unheard: threading.Event) -> None:
    """Write to stderr the lines that come from the pipe `reading`, until `unheard` is set, but for greetings and notes
    of jars, and but for tracebacks of workers whose line to the JVM ended: it cancelled their task, and knows."""
    traceback: list[bytes] = []
    with open(reading, "rb") as lines, os.fdopen(os.dup(2), "wb", buffering=0) as out:
        for line in chain(lines, [b""]):  # at the end, what is kept back
            # of two that print at once, the end of the second may come alone
            goes_on = line.startswith(b" ") and (traceback or b"pyspark/daemon.py" in line)
            if line.startswith(b"Traceback ") or goes_on:
                traceback.append(line)
                continue
            is_workers = len(traceback) == 1 or any(b"pyspark/daemon.py" in frame for frame in traceback)
            is_hang_up = is_workers and (not line or _HANG_UP.match(line))  # b"": the daemon ended its worker
            for each in () if is_hang_up or unheard.is_set() else (*traceback, line):
                if not any(word in each for word in _GREETINGS) and not _RESOLVING.match(each):
                    out.write(printable_lines(each.decode(errors="backslashreplace")).encode())
            traceback.clear()


# The end.


def jvm_has_ended(patience: float = 0) -> bool:
    """Return whether the JVM that pyspark is connected to has ended, or ends within `patience` seconds. One that
    another process started goes with this process."""
    pyspark = sys.modules.get("pyspark")
    process = getattr(pyspark.SparkContext._gateway, "proc", None) if pyspark is not None else None
    with suppress(subprocess.TimeoutExpired):
        return process is not None and process.wait(patience) is not None
    return False


def forget_jvm() -> None:
    """Let pyspark connect to another JVM: this one has ended, and pyspark holds on to it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
