"""The settings of kbackup's Spark sessions."""

from __future__ import annotations

import os
import secrets
from importlib.resources import files

from kbackup.spark.jvm import LIGHT

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


def session_settings(master: str | None, attempts: int, submitted: bool) -> dict[str, str]:
    """Return the settings of a session on `master`; `attempts` is how often a task is tried."""
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
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _PLAIN_PLANS | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"{log4j} {LIGHT}",
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
