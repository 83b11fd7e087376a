"""Spark sessions: their settings, their start beside what the driver does meanwhile, and their end."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kbackup.config import Config
from kbackup.errors import UnreachableError, UsageError
from kbackup.spark.jvm import (
    DAEMON_MODULE,
    LIGHT,
    OUR_DAEMON,
    REDACTION,
    Jvm,
    class_archive,
    forget_jvm,
    home_option,
    jvm_has_ended,
)
from kbackup.spark.pandas_check import import_checks

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession as SparkSession


ALLOW_PLAIN_SECRETS = "spark.kbackup.allowPlainSecrets"
"""The Spark setting that `spark.allow_plain_secrets` becomes."""

SHARED = "-XX:SharedArchiveFile="
"""The option of the JVM that names an archive of classes."""

# One stage that maps rows to rows: nothing to plan again, and Janino would compile Java for a few rows.
_PLAIN_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Every account of the machine reaches the JVM's ports on loopback, and whoever reaches a cluster's ports could ask for
# the tasks. A local JVM, YARN and Kubernetes make the secret themselves, and keep it.
_AUTHENTICATION = {
    "spark.authenticate": "true",
    "spark.authenticate.secretBitLength": "256",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}


def session_settings(master: str | None, attempts: int, submitted: bool, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session on `master`; `attempts` is how often a task is tried. Those in `conf` win."""
    is_local = not submitted and (master or "local").startswith("local")
    log_settings = files("kbackup.spark") / "log4j2.properties"
    java_options = f"-Dlog4j2.configurationFile={log_settings}"
    if not submitted:
        java_options += home_option()
    settings = {
        "spark.app.name": "kbackup",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(attempts),
        # Two attempts of a task at once would fence one another's transactions.
        "spark.speculation": "false",
        # A partition for each task, however small: below this size Spark would distribute the rows itself.
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.driver.extraJavaOptions": java_options,
        "spark.redaction.regex": REDACTION,
        # Workers import nothing from the working directory, where anybody may have put a module.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    if kernel := os.environ.get("KBACKUP_KERNEL"):
        settings["spark.executorEnv.KBACKUP_KERNEL"] = kernel
    if is_local:
        settings |= _local_settings(master or "local[*]", attempts, java_options)
    elif not submitted:
        settings["spark.master"] = master or ""
        if _may_authenticate(master or "", conf):
            # A local session's folder is private; what executors write to disk is encrypted.
            settings |= _AUTHENTICATION | {"spark.io.encryption.enabled": "true"}
    return settings | dict(conf)


def _local_settings(master: str, attempts: int, java_options: str) -> dict[str, str]:
    """Return what sets up a session whose driver and tasks are on this machine. `java_options` are those of every
    driver."""
    # Without this variable Spark looks up the machine's own name, which may not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java_options = f"{java_options} {LIGHT}"
    archive = class_archive()
    if archive.exists():
        # The JVM warns of an archive that another JVM wrote and goes on without it: nobody has to know.
        shared = shlex.quote(f"{SHARED}{archive}")
        java_options += f" {shared} -Xlog:cds=off,cds+dynamic=off"
    settings = _PLAIN_PLANS | _AUTHENTICATION
    settings |= {
        "spark.master": _with_attempts(master, attempts),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java_options,
        DAEMON_MODULE: OUR_DAEMON,
    }
    if master.startswith("local-cluster"):
        # The only local master that asks for a secret: the others make one themselves.
        settings["spark.authenticate.secret"] = secrets.token_hex(32)
    return settings


def _with_attempts(master: str, attempts: int) -> str:
    """Return a local master that tries each task `attempts` times: there Spark heeds no spark.task.maxFailures."""
    if master == "local":
        return f"local[1,{attempts}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{attempts}]"
    return master


def _may_authenticate(master: str, conf: Mapping[str, str]) -> bool:
    """Return whether the cluster makes a secret, or was given one: a standalone master was started with it."""
    has_secret = master.startswith(("yarn", "k8s:")) or "spark.authenticate.secret" in conf
    return has_secret and conf.get("spark.authenticate", "true").lower() == "true"


def start_spark(config: Config) -> Starting:
    """Begin to start the configured session."""
    conf = config.spark.conf
    if config.spark.allow_plain_secrets:
        conf = {**conf, ALLOW_PLAIN_SECRETS: "true"}
    return Starting(config.spark.master, conf, config.spark.task_attempts)


class Starting:
    """A session that is being built in a thread. Whoever needs the session calls this object, which waits, and returns
    the session or raises its error. Unless somebody has called by then, a first small job runs: it starts the Python
    daemon and takes what a first job costs the JVM."""

    def __init__(self, master: str | None, conf: Mapping[str, str], attempts: int) -> None:
        self._settings, self._jvm = _begin(master, conf, attempts)
        # Here and not in the thread, where what the caller imports next would hold it up. The first frame imports
        # pandas, and that only after the session is there.
        import pandas  # noqa: F401
        import pyspark.sql  # noqa: F401

        import_checks()
        self.session: SparkSession | None = None
        """The session, if it has started."""
        self._error: BaseException | None = None
        self._ready, self._requested, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._stopping = threading.Lock()
        # A daemon thread: a command that fails meanwhile ends at once. The JVM ends with it, since its stdin closes.
        self._thread = threading.Thread(target=self._start, name="kbackup-spark", daemon=True)
        self._thread.start()

    def __call__(self) -> SparkSession:
        self._requested.set()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        assert self.session is not None  # noqa: S101 (either the session or the error is there)
        return self.session

    @property
    def ready(self) -> bool:
        """True when a call returns, or raises, without waiting."""
        return self._ready.is_set()

    @property
    def ended(self) -> bool:
        """True when the JVM has ended: the session is of no more use."""
        return self.session is not None and jvm_has_ended()

    def leave(self) -> None:
        """Stop the session, now or when its start has ended: nothing will use it."""
        self._ended.set()
        if self._ready.is_set():
            self._stop()
        if self._jvm is not None and (not self._ready.is_set() or self._error is not None):
            self._jvm.terminate()

    def _start(self) -> None:
        try:
            self.session = _connect(self._settings, self._jvm, with_daemon=True)
        except BaseException as error:  # noqa: BLE001 (raised again where the session is asked for)
            self._error = error
        self._ready.set()
        # The JVM may have been ended meanwhile. If anything else fails, the first task fails by it too, and reports it.
        with suppress(Exception):
            if self._ended.is_set():
                self._stop()
            elif self.session is not None and not self._requested.is_set():
                first_job(self.session)

    def _stop(self) -> None:
        # `leave` and the thread that starts the session may both come here: one of them stops it.
        with self._stopping:
            session, self.session = self.session, None
            ended = jvm_has_ended()
        if session is None:
            return
        if ended:
            forget_jvm()
            self._close_daemon()
            return
        session.sparkContext.cancelAllJobs()
        context: Any = session.sparkContext
        stopping = threading.Thread(target=self._stop_all, args=(session,), name="kbackup-spark-stop", daemon=True)
        stopping.start()
        _stops.append(stopping)
        # pyspark drops its Java context when the JVM's part has stopped. Its own clean-up goes on in the thread.
        while stopping.is_alive() and context._jsc is not None:
            stopping.join(0.02)

    def _stop_all(self, session: SparkSession) -> None:
        session.stop()
        self._close_daemon()

    def _close_daemon(self) -> None:
        if self._jvm is not None:
            self._jvm.close_daemon()


_stops: list[threading.Thread] = []
"""Only the next session start waits for pyspark's clean-up of a stopped one, which takes a second."""


def active_session() -> SparkSession | None:
    """Return the session that this process has, as a notebook does; None if there is none. It does not load Spark."""
    module = sys.modules.get("pyspark.sql")
    return module.SparkSession.getActiveSession() if module is not None else None


def build_session(master: str | None, conf: Mapping[str, str], attempts: int) -> SparkSession:
    """Return a session on `master`; under `spark-submit`, and in an existing session, its own master counts. `attempts`
    is how often a task is tried. No UI, no console bar, quiet logs, unless `conf` says otherwise."""
    return _connect(*_begin(master, conf, attempts))


def _begin(master: str | None, conf: Mapping[str, str], attempts: int) -> tuple[dict[str, str], Jvm | None]:
    """Return the settings of a session, and its JVM if it takes a new one, which starts before pyspark is imported."""
    while _stops:
        _stops.pop().join()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = session_settings(master, attempts, submitted, conf)
    if "spark.remote" in settings or "SPARK_REMOTE" in os.environ:
        raise UsageError("jobs don't run over Spark Connect", "unset spark.remote and SPARK_REMOTE, see spark.md")
    if submitted:
        return settings, None
    # pyspark heeds the variable alone, not the setting.
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", python)
    # pyspark connects to one JVM in a process. Where a program has one, such as a notebook, the session lives there.
    pyspark = sys.modules.get("pyspark")
    has_jvm = pyspark is not None and pyspark.SparkContext._gateway is not None
    return settings, None if has_jvm else Jvm(settings)


def _connect(settings: Mapping[str, str], jvm: Jvm | None, *, with_daemon: bool = False) -> SparkSession:
    """Build the session. With `with_daemon`, a daemon of its Python workers is started beside it. Raises
    `UnreachableError` if Spark can't be started."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.sql import SparkSession as SparkSession  # also for annotations of commands

    # Before the JVM can end: Ctrl-C may come while a session is built.
    logging.getLogger().addFilter(_is_no_end)
    import_checks()
    builder = SparkSession.builder
    try:
        if jvm is not None:
            jvm.start_context(with_daemon=with_daemon)
        else:
            builder = builder.config(map=dict(settings))
        session = builder.getOrCreate()
    except (PySparkRuntimeError, PySparkException, Py4JError, OSError) as error:
        hint = "check that JDK 17 or 21 is installed (JAVA_HOME), and the master"
        if settings.get("spark.jars.packages") and "PYSPARK_GATEWAY_PORT" not in os.environ:
            hint += ", and that its jars can be fetched (spark.jars.packages, see delta.md)"
        raise UnreachableError(f"Spark can't be started: {_reason(error)}", hint) from error
    session.sparkContext.setLogLevel("ERROR")
    silence_ends(session)
    return session


def _reason(error: Exception) -> str:
    """Return the first line that names a cause. For an error of the JVM this is the second line."""
    for line in str(error).splitlines():
        cause = line.removeprefix(": ")
        if cause and not cause.startswith("An error occurred while calling"):
            return cause
    return type(error).__name__


def silence_ends(session: SparkSession) -> None:
    """Keep pyspark's server of accumulators from printing that the JVM has ended: the next caller reports it."""

    def ignore(request: object, client: object) -> None:
        """Print no traceback."""

    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = ignore


def _is_no_end(record: logging.LogRecord) -> bool:
    """Keep py4j, which logs to the root logger, from reporting the end of the JVM as well."""
    return record.msg != "Exception while sending command."


def first_job(session: SparkSession) -> None:
    """Run a small job, for what a first one costs: it loads classes in the JVM, and starts the Python daemon."""
    import pyarrow as pa

    from kbackup.spark.collect import collect_arrow, map_in_arrow

    def same(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        yield from batches

    # As jobs of kbackup hand their tasks over: other frames load other classes.
    rows = pa.table({"id": [0]})
    collect_arrow(map_in_arrow(session.createDataFrame(rows), same, "id long"))
