"""The settings of kbackup's Spark sessions."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from importlib.resources import files

from kbackup.spark.jvm import LIGHT

ALLOW_PLAIN_SECRETS = "spark.kbackup.allowPlainSecrets"
"""The Spark setting that `spark.allow_plain_secrets` becomes."""

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
_ON_DISKS = {"spark.io.encryption.enabled": "true"}  # a local session's folder is private


def session_settings(
    master: str | None, attempts: int, submitted: bool, conf: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of a session on `master`; `attempts` is how often a task is tried. Those in `conf` win."""
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
    elif not submitted and _may_authenticate(master or "", conf):
        settings |= _AUTHENTICATION | _ON_DISKS
    return settings | dict(conf)


def _may_authenticate(master: str, conf: Mapping[str, str]) -> bool:
    """Return whether the cluster makes a secret, or was given one. A standalone master has the secret that it was
    started with."""
    asked = conf.get("spark.authenticate", "true").lower() == "true"
    makes_secret = master.startswith(("yarn", "k8s:"))
    return asked and (makes_secret or "spark.authenticate.secret" in conf)


def _with_attempts(master: str, attempts: int) -> str:
    """Local masters take the number of tries in the URL: local[4] is local[4,tries]."""
    if master == "local":
        return f"local[1,{attempts}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{attempts}]"
    return master
