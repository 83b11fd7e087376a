"""Building the Spark session that runs the jobs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

from kbackup.errors import UnreachableError

_GREETINGS = (b"Using incubator modules", b"Setting default log level", b"To adjust logging level")

# No record passes through the JVM: what the optimising compiler and parallel collectors cost never comes back.
# Starting, running a small job and stopping took 12 s of CPU with these, 21 s without.
_LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def build_session(master: str | None, conf: Mapping[str, str], attempts: int) -> SparkSession:
    """A session on `master`; under `spark-submit`, and where a session exists, that one's master counts.

    `attempts` is how often a task is tried. No UI, no console bar, quiet logs, unless `conf` says otherwise.
    """
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    local = not submitted and (master or "local").startswith("local")
    settings = {
        "spark.app.name": "kbackup",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": str(attempts),
        "spark.speculation": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={files('kbackup') / 'log4j2.properties'}",
    }
    if local:
        settings["spark.driver.extraJavaOptions"] += f" {_LIGHT_JVM}"
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
        }
    if not submitted:
        settings["spark.master"] = _with_attempts(master or "local[*]", attempts)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in (settings | dict(conf)).items():
        builder = builder.config(name, value)
    try:
        with _quiet_start():
            session = builder.getOrCreate()
    except (PySparkRuntimeError, PySparkException) as error:
        raise UnreachableError(
            f"Spark can't be started: {str(error).splitlines()[0]}",
            "is a JDK of 17 or newer there (JAVA_HOME)?",
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _quiet_start() -> Iterator[None]:
    """The JVM that is started inside writes to our stderr, without the lines it greets everybody with.

    Its Python workers write there too: all else passes.
    """
    reading, writing = os.pipe()
    real = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, real), name="kbackup-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(real, 2)


def _pass_on(reading: int, to: int) -> None:
    with open(reading, "rb") as lines, open(to, "wb", buffering=0) as out:
        for line in lines:
            if not any(word in line for word in _GREETINGS):
                out.write(line)


def _with_attempts(master: str, attempts: int) -> str:
    """Local masters take the number of tries in the URL: local[4] is local[4,tries]."""
    if master == "local":
        return f"local[1,{attempts}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{attempts}]"
    return master
