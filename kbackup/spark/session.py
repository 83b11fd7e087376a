"""Building the Spark session that runs the jobs, beside what the driver does meanwhile."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kbackup.errors import UnreachableError
from kbackup.spark.daemon_prestart import Ready
from kbackup.spark.gateway import start_context
from kbackup.spark.jvm import LIGHT, class_archive

# One stage that maps rows to rows: nothing to plan again, and Janino would compile Java for a few rows.
_PLAIN_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Every account of the machine reaches the JVM's ports on loopback. The JVM makes the secret itself, and keeps it.
_AUTHENTICATION = {
    "spark.authenticate": "true",
    "spark.authenticate.secretBitLength": "256",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession as SparkSession  # also for annotations of commands


class Starting:
    """A session that is being built in a thread. Whoever needs it calls this: waits for it, and gets it or its error.

    With `warm`, a first small job runs when nobody has called yet by then: it starts the Python daemon and takes what a
    first job costs the JVM.
    """

    def __init__(
        self, master: str | None, conf: Mapping[str, str], attempts: int, *, warm: bool = True
    ) -> None:
        self._daemon = _ready_daemon(master, conf)
        import pyspark.sql  # noqa: F401 (here, not in the thread: what the caller imports next would hold it up)

        known = self._daemon.conf if self._daemon is not None else {}
        self._of = (master, {**conf, **known}, attempts)
        self._warm = warm
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._ready, self._wanted, self._left = threading.Event(), threading.Event(), threading.Event()
        self._stopping = threading.Lock()
        # a daemon: a command that fails meanwhile ends at once, and the JVM ends with it (its stdin closes)
        self._thread = threading.Thread(target=self._start, name="kbackup-spark", daemon=True)
        self._thread.start()

    def __call__(self) -> SparkSession:
        self._wanted.set()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        assert self._session is not None  # noqa: S101 (or else the error is there)
        return self._session

    @property
    def ready(self) -> bool:
        """True when a call returns, or raises, without waiting."""
        return self._ready.is_set()

    @property
    def session(self) -> SparkSession | None:
        """The session, if it has started."""
        return self._session

    def dump_classes(self) -> None:
        """Write the classes that the JVM has loaded for the next start, where enabled; to be called after the work."""
        archive = class_archive()
        if self._session is not None and archive is not None and _is_light(self._session):
            archive.write(self._session)

    def leave(self) -> None:
        """Stop the session, now or when its start has ended: nothing will use it."""
        self._left.set()
        if self._ready.is_set():
            self._stop()

    def _start(self) -> None:
        try:
            self._session = build_session(*self._of)
        except BaseException as error:  # noqa: BLE001 (raised again where the session is asked for)
            self._error = error
        self._ready.set()
        if self._left.is_set():
            self._stop()
        elif self._warm and self._session is not None and not self._wanted.is_set():
            _warm_up(self._session)

    def _stop(self) -> None:
        with self._stopping:
            session, self._session = self._session, None
        if session is not None:
            session.sparkContext.cancelAllJobs()
            _stop(session)
        if self._daemon is not None:
            self._daemon.close()


def _ready_daemon(master: str | None, conf: Mapping[str, str]) -> Ready | None:
    """Start the worker daemon in advance, where Spark's workers will be our own Python on this machine; else None."""
    others = {
        "spark.python.daemon.module",
        "spark.pyspark.python",
        "spark.pyspark.driver.python",
        "spark.remote",
    }
    local = (master or "local").startswith("local") and not {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & set(
        os.environ
    )
    ours = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable and not others & set(conf)
    if not (local and ours):
        return None
    try:
        return Ready()
    except OSError:  # no place for its socket (such a path takes 107 bytes): Spark starts its own
        return None


def _warm_up(session: SparkSession) -> None:
    def same(batches: Iterable[RecordBatch]) -> Iterable[RecordBatch]:
        yield from batches

    with suppress(Exception):  # cancelled by an interrupt or a stop; what else fails, the first task says
        session.range(1, numPartitions=1).mapInArrow(same, "id long").toArrow()


_stops: list[threading.Thread] = []


def _stop(session: SparkSession) -> None:
    """Until Spark is stopped. What pyspark does then, it looks every second whether it may: nobody has to wait for that
    but who builds another session."""
    context: Any = session.sparkContext
    stopping = threading.Thread(target=session.stop, name="kbackup-spark-stop", daemon=True)
    stopping.start()
    _stops.append(stopping)
    while stopping.is_alive() and context._jsc is not None:
        stopping.join(0.02)


def _is_light(session: SparkSession) -> bool:
    """Return True when the session runs on this machine with our own options."""
    return LIGHT in session.sparkContext.getConf().get("spark.driver.extraJavaOptions", "")


def build_session(master: str | None, conf: Mapping[str, str], attempts: int) -> SparkSession:
    """A session on `master`; under `spark-submit`, and where a session exists, that one's master counts.

    `attempts` is how often a task is tried. No UI, no console bar, quiet logs, unless `conf` says otherwise.
    """
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.sql import SparkSession as SparkSession  # also for annotations of commands

    while _stops:
        _stops.pop().join()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = _settings(master, attempts, submitted) | dict(conf)
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # what turns the command line of the JVM into another one is a JVM itself
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", LIGHT)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        if not submitted and "spark.remote" not in settings and "SPARK_REMOTE" not in os.environ:
            start_context(settings)
        session = builder.getOrCreate()
    except (PySparkRuntimeError, PySparkException) as error:
        fetches = settings.get("spark.jars.packages") and not submitted
        jars = ", and that its jars can be fetched (spark.jars.packages, see delta.md)" if fetches else ""
        raise UnreachableError(
            f"Spark can't be started: {str(error).splitlines()[0]}",
            f"check that a JDK of 17 or newer is installed (JAVA_HOME){jars}",
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(master: str | None, attempts: int, submitted: bool) -> dict[str, str]:
    log4j = f"-Dlog4j2.configurationFile={files('kbackup.spark') / 'log4j2.properties'}"
    settings = {
        "spark.app.name": "kbackup",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(attempts),
        "spark.speculation": "false",
        "spark.driver.extraJavaOptions": log4j,
        "spark.executorEnv.PYTHONSAFEPATH": "1",  # workers import nothing from the working directory
    }
    if kernel := os.environ.get("KBACKUP_KERNEL"):
        settings["spark.executorEnv.KBACKUP_KERNEL"] = kernel
    if not submitted:
        settings["spark.master"] = _with_attempts(master or "local[*]", attempts)
    if not submitted and (master or "local").startswith("local"):
        archive = class_archive()
        options = [log4j, LIGHT, *([archive.options()] if archive is not None else [])]
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _PLAIN_PLANS | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": " ".join(options),
            "spark.python.daemon.module": "kbackup.spark.daemon",
        }
        settings |= _AUTHENTICATION
        if settings["spark.master"].startswith("local-cluster"):  # the only local one that asks for a secret
            settings["spark.authenticate.secret"] = secrets.token_hex(32)
    return settings


def _with_attempts(master: str, attempts: int) -> str:
    """Local masters take the number of tries in the URL: local[4] is local[4,tries]."""
    if master == "local":
        return f"local[1,{attempts}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{attempts}]"
    return master
