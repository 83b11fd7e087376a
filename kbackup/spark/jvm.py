"""The jars that kbackup lets Spark fetch are the ones that it was tested with, by their SHA-256."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from kbackup.config.secrets import shown
from kbackup.errors import RefusedError
from kbackup.util.system import cache_folder, close_process, make_own
from kbackup.util.text import printable_lines

LOCK = "spark.kbackup.jars.lock"
"""The setting that names the list of the SHA-256 that jars of a session may have, as `sha256sum` writes it."""


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


# The JVM of Spark on this machine: its options, and the archive of the classes that it loads (class data sharing).
#
# No record passes through the JVM, so the optimising compiler and parallel collectors never repay their cost. Most of
# the time to the first task is loading and verifying classes, which HotSpot can store in an archive. The first run
# notes the classes that it loads. Once its work is done, a second JVM writes their archive into the user's cache, and
# later runs map it. The JVM checks that an archive was made by the same JVM from the same class path, and starts
# without it otherwise. It does not check that the file is complete: so a file gets its name only when it is, and the
# name holds its size.


LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=192m"
"""One compiler, one collector, and no collection for the sake of classes alone."""

_SHARING = (
    *("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-Xlog:all=error:stderr"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"),  # pages that no JVM has to change
)
_KEPT_DAYS = 30
_PATIENCE = 300  # s, for writing an archive
_OTHER_CLASSES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClassArchive:
    """The archive for one JVM (`java`) and one Spark (`home`). `folder` is the cache."""

    folder: Path
    key: str
    home: Path
    java: Path

    def path(self) -> Path | None:
        """Return the newest complete archive; None where there is none."""
        whole = [p for p in self.folder.glob(f"spark-{self.key}-*.jsa") if _is_whole(p)]
        return max(whole, default=None)

    def options(self, *, note: bool) -> list[str]:
        """Return the options that use the archive; with `note` and without an archive, those that note the classes."""
        path = self.path()
        if path is None:
            return [*_SHARING, f"-XX:DumpLoadedClassList={self._classes}"] if note else []
        os.utime(path)
        return [*_SHARING, f"-XX:SharedArchiveFile={path}"]

    @property
    def due(self) -> bool:
        """True when the JVM of this process has noted its classes, and there is no archive."""
        return self._classes.exists() and self.path() is None

    def write(self, options: Sequence[str]) -> None:
        """Write the archive of the noted classes for a JVM with `options`, unless another process does.

        A failure is no error: the next start takes as long as this one.
        """
        made = self.folder / f"spark-{self.key}.{os.getpid()}.new"
        try:
            with self._alone() as alone:
                if alone and self.due:
                    self._dump(options, made)
                    made.rename(self.folder / f"spark-{self.key}-{made.stat().st_size}.jsa")
                    self._forget_unused()
        except (OSError, subprocess.SubprocessError) as error:
            log.info("Spark's classes are not kept for the next start: %s", error)
        finally:
            made.unlink(missing_ok=True)

    def forget_classes(self) -> None:
        """Remove the note of this process."""
        self._classes.unlink(missing_ok=True)

    @property
    def _classes(self) -> Path:
        return self.folder / f"spark-{self.key}.{os.getpid()}.classes"

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether no other process writes an archive for this JVM and Spark."""
        with (self.folder / f"spark-{self.key}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _dump(self, options: Sequence[str], made: Path) -> None:
        sharing = (
            "-Xshare:dump",
            f"-XX:SharedClassListFile={self._classes}",
            f"-XX:SharedArchiveFile={made}",
        )
        subprocess.run(  # noqa: S603 (the JVM that Spark runs in)
            [self.java, *LIGHT.split(), *sharing, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=True,
        )
        with made.open("rb") as whole:
            os.fsync(whole.fileno())

    def _forget_unused(self) -> None:
        for old in self.folder.glob("spark-*"):
            with suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > _KEPT_DAYS * 86400:
                    old.unlink()


def class_archive(env: Mapping[str, str] = os.environ) -> ClassArchive | None:
    """Return the class archive of this machine's Spark.

    None where classes may come from other places than Spark's own jars, where there is no JVM, or no folder that only
    the user can write.
    """
    home, java = _spark_home(env), _java(env)
    if home is None or java is None or (home / "conf").exists() or any(map(env.get, _OTHER_CLASSES)):
        return None
    folder = cache_folder(env)
    if folder is None:
        return None
    try:
        make_own(folder)  # whoever could write there could give us code to run
        key = _key(home, java)
    except OSError:
        return None
    return ClassArchive(folder, key, home, java) if os.access(folder, os.W_OK) else None


def _key(home: Path, java: Path) -> str:
    """Return a checksum of the JVM, its options and the files of the class path, by which it accepts an archive."""
    checksum = hashlib.sha256(LIGHT.encode())
    modules = java.parents[1] / "lib" / "modules"
    for file in (java, *filter(Path.exists, [modules]), *sorted((home / "jars").iterdir())):
        status = file.stat()
        checksum.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return checksum.hexdigest()[:16]


def _is_whole(path: Path) -> bool:
    size = path.stem.rpartition("-")[2]
    return size.isdecimal() and path.stat().st_size == int(size)


def _spark_home(env: Mapping[str, str]) -> Path | None:
    if home := env.get("SPARK_HOME"):
        return Path(home)
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _java(env: Mapping[str, str]) -> Path | None:
    """Return the `java` that Spark's scripts start."""
    home = env.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else env.get("PATH"))
    return Path(found).resolve() if found else None


# The command line of Spark's JVM, without the programs by which Spark's scripts find it.
#
# `spark-submit` starts a JVM of its own, Spark's launcher, which prints the command line of the next one. The
# launcher is asked once for each JVM and Spark; its answer is kept in the user's cache. The class path is Spark's
# own, without `_UNUSED_JARS`, and with the jars of most classes first: the JVM asks one after the other for each
# class.


_UNUSED_JARS = "spark-mllib_"
"""MLlib registers its functions in every session: half a second of CPU at each start."""

_UNUSED_OPTIONS = ("--add-modules=jdk.incubator.vector",)  # MLlib's

_FIRST_JARS = (
    *(
        "spark-catalyst_",
        "spark-core_",
        "scala-library-",
        "spark-sql-api_",
        "log4j-core-",
        "jackson-databind-",
    ),
    *("spark-sql_", "hadoop-client-api-", "arrow-vector-", "spark-network-common_", "hadoop-client-runtime-"),
    *(
        "netty-common-",
        "ivy-",
        "antlr4-runtime-",
        "netty-transport-",
        "jackson-",
        "netty-buffer-",
        "log4j-api-",
    ),
)

_MAIN = "org.apache.spark.deploy.SparkSubmit"
_SHELL = "pyspark-shell"
_SCRIPT_SECONDS = 60  # s

# What Spark's scripts or its launcher would heed.
_VARIABLES = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "SPARK_PREPEND_CLASSES", "SPARK_TESTING")
_SETTINGS = ("extraClassPath", "extraLibraryPath", "defaultJavaOptions")


class Launch(NamedTuple):
    """The answer of Spark's launcher: the files of a JVM's class path, and its options."""

    class_path: list[str]
    options: list[str]

    def jvm_options(self) -> list[str]:
        """Return the options of every JVM of this launch."""
        return ["-cp", os.pathsep.join(self.class_path), *self.options]


def find_launch(archive: ClassArchive, settings: Mapping[str, str]) -> Launch | None:
    """Return the launch of a JVM with `settings`; None where Spark's own scripts have to find it."""
    others = any(map(os.environ.get, _VARIABLES)) or any(
        f"spark.driver.{name}" in settings for name in _SETTINGS
    )
    if others or LIGHT not in settings.get("spark.driver.extraJavaOptions", ""):
        return None
    return _kept(archive) or _ask_launcher(archive)


def java_command(
    launch: Launch,
    archive: ClassArchive,
    settings: Mapping[str, str],
    shown: Mapping[str, str],
    *,
    note: bool,
) -> list[str]:
    """Return the command line of a JVM with `settings`, of which everybody on the machine may read those in `shown`.

    With `note` it notes its classes for an archive, where there is none."""
    return [
        str(archive.java),
        *launch.jvm_options(),
        *archive.options(note=note),
        f"-Xmx{settings['spark.driver.memory']}",
        *shlex.split(settings["spark.driver.extraJavaOptions"]),
        _MAIN,
        *(word for name, value in shown.items() for word in ("--conf", f"{name}={value}")),
        _SHELL,
    ]


def _kept(archive: ClassArchive) -> Launch | None:
    try:
        return Launch(*json.loads(_file(archive).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _file(archive: ClassArchive) -> Path:
    return archive.folder / f"spark-{archive.key}.launch"


def _ask_launcher(archive: ClassArchive) -> Launch | None:
    jars = archive.home / "jars"
    launchers = jars.glob("spark-launcher_*-*.jar")
    scala = next((jar.name.split("_")[1].split("-")[0] for jar in launchers), "")
    try:
        done = subprocess.run(  # noqa: S603 (the JVM that Spark's scripts start)
            [archive.java, "-cp", f"{jars}/*", "org.apache.spark.launcher.Main", _MAIN, _SHELL],
            env={**os.environ, "SPARK_HOME": str(archive.home), "SPARK_SCALA_VERSION": scala},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SCRIPT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = done.stdout.decode(errors="surrogateescape").lstrip("\0\n").split("\0")
    if words[1:2] != ["-cp"] or _MAIN not in words:
        return None
    options = [word for word in words[3 : words.index(_MAIN)] if not word.startswith("-Xmx")]
    launch = Launch(
        _class_path(words[2].split(os.pathsep)), [word for word in options if word not in _UNUSED_OPTIONS]
    )
    made = _file(archive).with_suffix(f".{os.getpid()}.new")
    made.write_text(json.dumps(launch))
    made.rename(_file(archive))
    return launch


def _class_path(entries: Iterable[str]) -> list[str]:
    """Return the files of a class path, those of `_FIRST_JARS` first."""
    files: dict[Path, None] = {}
    for entry in map(Path, entries):
        files |= dict.fromkeys(sorted(entry.parent.glob("*.jar")) if entry.name == "*" else [entry])
    used = [file for file in files if file.exists() and not file.name.startswith(_UNUSED_JARS)]

    def rank(file: Path) -> int:
        return next((n for n, jar in enumerate(_FIRST_JARS) if file.name.startswith(jar)), len(_FIRST_JARS))

    return [str(file) for file in sorted(used, key=rank)]


# Start the JVM and the Spark context that a session is built on.


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
