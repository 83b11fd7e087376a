"""Spark's JVM on this machine: its command line, its start beside the driver's imports, and its end.

Spark's own scripts start a JVM (the launcher) that prints the command line of the next one. Where nothing of the
user's would change that line, kbackup builds it itself, and starts the JVM before pyspark is imported.
"""

# Why this is not `pyspark.java_gateway.launch_gateway`:
#
# - It starts the JVM by Spark's scripts, and only after pyspark is imported. From the start of the process until two
#   tasks have ended took 2.9 s with the code below, 4.3 s with Spark's scripts in its place, and 5.5 s with
#   `launch_gateway` (2 cores, the least of six rounds in turns, each way with an archive of its classes). The medians
#   of the differences were 1.9 and 2.2 s, and 0.6 and 0.8 s of CPU. To measure again, time this with and without
#   SPARK_CONF_DIR=/tmp, which leaves the start to the scripts:
#   python -c 'from kbackup.spark.session import *; first_job(build_session(None, {}, 1))'
# - It runs a function of its own in the forked child, and so all hooks that modules register for forks. A hook that
#   another thread registers between the two halves of a fork releases a lock that it never took.
# - It connects to a JVM of somebody else's only by PYSPARK_GATEWAY_SECRET, which every process that another thread
#   starts at that moment would inherit. So connecting is done here as well.

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
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kbackup.config.secrets import NAMES_OF_SECRETS, shown
from kbackup.errors import RefusedError, UnreachableError
from kbackup.spark.jvm_output import JarResolution, pass_on
from kbackup.spark.ready import VARIABLE, ReadyDaemon
from kbackup.util.scratch import ScratchFolder
from kbackup.util.system import close_process

DAEMON_MODULE = "spark.python.daemon.module"
"""The setting that names the module of the daemon that Python workers are forked from."""
OUR_DAEMON = "kbackup.spark.daemon"

LOCK = "spark.kbackup.jars.lock"
"""The setting that names the list of the SHA-256 that jars of a session may have, as `sha256sum` writes it."""

# One compiler, one collector, no collection for the sake of classes alone, and no verification of Spark's classes,
# which took a sixth of the CPU of a start. No record passes through the JVM: more would not repay its cost.
LIGHT = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=192m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""The options of a JVM that starts quickly."""

_POLL_INTERVAL = 0.005  # s, between looks for the JVM's answer
_READER_PATIENCE = 5.0  # s, until the last lines of a JVM that has ended are read

REDACTION = f"(?i)access[._]?key|{NAMES_OF_SECRETS}"
"""Names of settings that Spark hides in its logs, event logs and pages (`spark.redaction.regex`): those of its own
default, and those of kbackup's secrets."""

_REDACTED = re.compile(REDACTION)

_LONGEST_SOCKET_PATH = 107
"""The most bytes that Linux takes for the path of a Unix socket."""
_SOCKET_NAME_BYTES = len("/.") + len("01234567-89ab-cdef-0123-456789abcdef") + len(".sock")
"""Spark names its sockets by a UUID."""
_DAEMON_SOCKET = "daemon"  # no longer than Spark's names

# The list of `launch_gateway`, without MLlib and Hive: nothing here uses them.
_IMPORTS = (
    "org.apache.spark.SparkConf org.apache.spark.api.java.* org.apache.spark.api.python.* org.apache.spark.resource.* "
    "org.apache.spark.sql.Encoders org.apache.spark.sql.OnSuccessCall org.apache.spark.sql.functions "
    "org.apache.spark.sql.classic.* org.apache.spark.sql.api.python.* scala.Tuple2"
)
"""Java's names that pyspark uses without their packages."""


class Jvm:
    """A JVM of Spark that has been started, and will listen for pyspark soon.

    The JVM ends with the driver, because its stdin is a pipe that closes then. What the JVM and its Python workers
    write goes to our stderr, since stdout belongs to the command's own output; the lines that greet every user are left
    out, and so is what is said of jars that are fetched. Every user of the machine can read the JVM's command line, so
    secret settings go to the context alone.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._public_settings = without_secrets(settings)
        self._scratch = ScratchFolder("spark")
        self._answer = self._scratch.path / "connection"
        self._process: subprocess.Popen[bytes] | None = None
        self._daemon: ReadyDaemon | None = None
        self._has_ended = False
        # The thread that starts the session may start the daemon at the moment at which another one ends the JVM.
        self._changing_daemon = threading.Lock()
        self._error: OSError | None = None
        self._unheard = threading.Event()
        home = spark_home()
        reading, writing = os.pipe()
        self._jars = JarResolution()
        self._reader = threading.Thread(
            target=pass_on, args=(reading, self._unheard, self._jars), name="kbackup-stderr", daemon=True
        )
        self._reader.start()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (Spark's own scripts, or the JVM that they start)
                command_line(home, settings, self._public_settings),
                stdin=subprocess.PIPE,
                stdout=writing,
                stderr=writing,
                # Ctrl-C goes to all processes of a group, and is for the driver: it ends the JVM in order.
                process_group=0,
                env=self._environment(home),
            )
        except OSError as error:
            # The caller may never need Spark. Whoever does gets the error from `connect`.
            self._error = error
        finally:
            os.close(writing)

    @property
    def _has_room_for_sockets(self) -> bool:
        """Whether sockets can be in the scratch folder: below a deep TMPDIR, their paths are too long."""
        folder = os.fsencode(self._scratch.path)
        return len(folder) + _SOCKET_NAME_BYTES <= _LONGEST_SOCKET_PATH

    @property
    def _daemon_socket(self) -> Path:
        """The socket at which a Python daemon waits for the process that Spark starts."""
        return self._scratch.path / _DAEMON_SOCKET

    def _environment(self, home: Path) -> dict[str, str]:
        """Return the variables of the JVM; its Python workers inherit them."""
        # The scripts' launcher is a JVM as well. A user's own options for it win.
        environment = {"SPARK_LAUNCHER_OPTS": LIGHT} | dict(os.environ)
        # Python's hashes must be the same in all workers: Spark's scripts set this too.
        environment["PYTHONHASHSEED"] = "0"
        environment["SPARK_CONNECT_MODE"] = "0"
        environment["SPARK_HOME"] = str(home)
        environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(self._answer)
        environment[VARIABLE] = str(self._daemon_socket)
        return environment

    def start_context(self, *, with_daemon: bool) -> None:
        """Start the context that the session is built on. With `with_daemon`, also start the daemon of its Python
        workers; the caller closes that (`close_daemon`)."""
        from pyspark import SparkConf, SparkContext

        gateway = self.connect()
        if with_daemon:
            self._start_daemon()
        # The jars must be checked before any class of them is loaded, which the context does.
        if lock := self._settings.get(LOCK):
            jars = gateway.jvm.System.getProperty("spark.jars") or ""
            named = [jar for jar in jars.split(",") if jar]
            check_jars(named, Path(lock))
        # A SIGTERM to all processes of a service is for the driver: it ends the JVM when it has finished its work.
        misc = gateway.jvm.sun.misc
        misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)
        conf = SparkConf(_jvm=gateway.jvm)  # has the settings of the command line
        for name in self._settings.keys() - self._public_settings.keys():
            conf.set(name, self._settings[name])
        self._delete_folder_at_exit(gateway)
        if not has_account():
            _log_in_without_account(gateway)
        if self._settings["spark.master"].startswith("local"):
            self._keep_files_private(conf)
        SparkContext(conf=conf, gateway=gateway)

    def _start_daemon(self) -> None:
        """Start the daemon of the Python workers, which imports while the context starts. If the session has another
        daemon or another Python, or no place for a socket, Spark starts its daemon for the first task."""
        # Not sooner: on two cores, a daemon beside the JVM's own start and the driver's imports delays both.
        is_local = self._settings["spark.master"].startswith("local")
        is_ours = self._settings.get(DAEMON_MODULE) == OUR_DAEMON and os.environ["PYSPARK_PYTHON"] == sys.executable
        if not (is_local and is_ours and self._has_room_for_sockets):
            return
        with self._changing_daemon:
            if not self._has_ended:
                self._daemon = ReadyDaemon(self._daemon_socket)

    def close_daemon(self) -> None:
        """Wait until the daemon has ended. It ends with the session, or at once if Spark has never asked for it."""
        with self._changing_daemon:
            self._has_ended = True
            if self._daemon is not None:
                self._daemon.close()

    def _delete_folder_at_exit(self, gateway: Any) -> None:
        """Have the JVM delete the scratch folder when it ends, also where the driver was killed."""
        # Java's own deleteOnExit deletes empty folders alone. Spark leaves a socket in this one, and both would stay.
        folder = gateway.jvm.java.io.File(str(self._scratch.path))
        gateway.jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(folder)

    def _keep_files_private(self, conf: Any) -> None:
        """Put into the scratch folder, which this user alone may enter, what Spark puts where everybody may read: the
        blocks that it writes to disk, and the sockets between the JVM and Python."""
        folder = str(self._scratch.path)
        if "SPARK_LOCAL_DIRS" not in os.environ:
            conf.setIfMissing("spark.local.dir", folder)
        # Otherwise Spark uses ports of loopback, guarded by a secret.
        if self._has_room_for_sockets:
            conf.setIfMissing("spark.python.unix.domain.socket.enabled", "true")
            conf.setIfMissing("spark.python.unix.domain.socket.dir", folder)

    def connect(self) -> Any:
        """Wait until the JVM listens and connect, as pyspark does. Raises `OSError` if the JVM could not be started,
        `UnreachableError` if it can't get its jars, and `PySparkRuntimeError` if it ends before it listens."""
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters  # type: ignore[import-untyped]
        from py4j.java_gateway import java_import  # type: ignore[import-untyped]

        port, token = self._wait_for_answer()
        java = JavaParameters(port=port, auth_token=token, auto_convert=True)
        gateway = ClientServer(java, PythonParameters(port=0, eager_load=False))
        gateway.proc = self._process
        for name in _IMPORTS.split():
            java_import(gateway.jvm, name)
        return gateway

    def _wait_for_answer(self) -> tuple[int, str]:
        """Return the port on which the JVM listens, and the token that it asks for."""
        from pyspark.errors import PySparkRuntimeError

        try:
            # The JVM renames the file to this name when it is whole.
            while not self._answer.exists():
                if self._process is None or self._process.poll() is not None:
                    self._refuse_missing_jars()
                    raise self._error or PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
                time.sleep(_POLL_INTERVAL)
            answer = self._answer.read_bytes()
        finally:
            self._answer.unlink(missing_ok=True)
        port, size = struct.unpack_from(">ii", answer)
        return port, answer[8 : 8 + size].decode()

    def _refuse_missing_jars(self) -> None:
        """Raise `UnreachableError` if the JVM has ended because it could not get the jars of the session."""
        # The last lines of a JVM may still be on their way.
        self._reader.join(_READER_PATIENCE)
        why = self._jars.failure()
        if why is not None:
            raise UnreachableError(
                f"Spark can't get its jars: {why}",
                "check the connection to Maven's repository, or bring the jars along (see delta.md); "
                "run again with -v to see all that was tried",
            )

    def terminate(self) -> None:
        """End the JVM, which may be starting, and wait for its end. What the JVM logs of an end within its start is
        not passed on."""
        self._unheard.set()
        if self._process is not None:
            self._process.terminate()
            close_process(self._process)
        self.close_daemon()
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


def _log_in_without_account(gateway: Any) -> None:
    """Give Hadoop a name for this user: it asks the system for one, and Spark does not start where there is none."""
    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
    name = os.environ.get("HADOOP_USER_NAME") or str(os.getuid())
    users.setLoginUser(users.createRemoteUser(name))


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
    # Since Spark 4.2, in the place of useDirectMethodHandle; a JDK that does not know it takes no notice.
    "--sun-misc-unsafe-memory-access=allow",
    "-Dderby.connection.requireAuthentication=false",
)
"""The options that the launcher of Spark 4.0, 4.1, 4.2 or 4.3 gives to every JVM, but for the vectors of MLlib."""


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


def command_line(home: Path, settings: Mapping[str, str], public_settings: Mapping[str, str]) -> list[str]:
    """Return the command line of a JVM with `settings`, of which everybody on the machine may read those in
    `public_settings`. Where the user has set something that Spark's scripts heed, the scripts start the JVM."""
    words = []
    for name, value in public_settings.items():
        words += ["--conf", f"{name}={value}"]
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{java_home}/bin" if java_home else None)
    is_ours = (home / "jars").is_dir() and not _is_for_scripts(home, settings)
    if java is None or not is_ours:
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        return [str(home / "bin" / "spark-submit"), *words, *arguments]
    memory = f"-Xmx{settings['spark.driver.memory']}"
    options = [*_OPTIONS, memory, *shlex.split(settings["spark.driver.extraJavaOptions"])]
    return [java, "-cp", _class_path(home), *options, "org.apache.spark.deploy.SparkSubmit", *words, "pyspark-shell"]


def _is_for_scripts(home: Path, settings: Mapping[str, str]) -> bool:
    """Return whether the user has set anything that Spark's scripts or its launcher heed."""
    if any(os.environ.get(variable) for variable in _VARIABLES.split()):
        return True
    if any(f"spark.driver.{name}" in settings for name in _SETTINGS):
        return True
    if (home / "conf").exists():
        return True
    # The user's own options of the JVM have replaced ours.
    return LIGHT not in settings.get("spark.driver.extraJavaOptions", "")


def _class_path(home: Path) -> str:
    """Return the jars of Spark, in an order that is the same at each start: an archive of classes is for one order."""
    jars = []
    for jar in sorted((home / "jars").glob("*.jar")):
        # MLlib registers its functions in every session, which takes half a second of CPU at each start.
        if not jar.name.startswith("spark-mllib_"):
            jars.append(str(jar))
    return os.pathsep.join(jars)


def check_jars(jars: Iterable[str], lock: Path) -> None:
    """Raise `RefusedError` for the first of `jars` (paths or file: URLs) whose bytes are not in the list `lock`."""
    locked = {line.split()[0] for line in lock.read_text("ascii").splitlines()}
    for jar in jars:
        url = urlsplit(jar)
        path = Path(unquote(url.path))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in locked:
            raise RefusedError(
                f"{path} is not the jar that kbackup was tested with: its SHA-256 is {digest}",
                "remove it, and find out where it came from; to use jars of your own name them in spark.jars",
            )


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
        # Without its Java half the context stops what it has in Python, and does not ask the JVM that has ended.
        context._jsc = None
        context.stop()
    # No call of pyspark's sets these back (`test_pyspark_4_1_holds_on_to_a_jvm_that_has_ended`).
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
