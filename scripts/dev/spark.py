"""A standalone Spark cluster on loopback, started from the classes that pyspark brings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from kbackup.spark.jvm import LIGHT
from scripts.dev.process import Process, Server, free_ports, listening

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_APART = 'set -e; hostname "$1"; until [ "$2" = -- ]; do shift; mount -t tmpfs tmpfs "$1"; done; shift 2; exec "$@"'

CHANNEL = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
"""The settings of a cluster whose traffic nobody else reads, but for its secret."""

LIGHT_JVMS = {"JDK_JAVA_OPTIONS": LIGHT}
"""Variables with which the JVMs of a program, and those that they start, start quickly. Each says on stderr that it
took them."""


class SparkCluster(Server):
    """One master and `workers` workers of one core each, as a context manager; everything ends with it. Each worker has
    a loopback address of its own: for Spark they are different machines.

    Executors run `python` (by default this one), whose Spark the cluster is of, and find the package by PYTHONPATH, as
    they would in a shared image. `secret` is that of `spark.authenticate`. Worker N of `unshared` (from 0) is a host
    named `apart-N`, with disks of its own at these paths. `variables` are the last worker's own.
    """

    name = "spark"

    def __init__(
        self,
        workers: int = 2,
        secret: str = "",
        unshared: Mapping[int, Sequence[Path]] = MappingProxyType({}),
        variables: Mapping[str, str] = MappingProxyType({}),
        python: str = sys.executable,
    ) -> None:
        super().__init__()
        self._workers, self._secret, self._python = workers, secret, python
        self._unshared, self._variables = unshared, variables
        self._port = 0

    def _open(self) -> None:
        if self._secret:
            # a master that asks for secrets has no REST server: that one knows none
            conf = {**CHANNEL, "spark.authenticate.secret": self._secret, "spark.master.rest.enabled": "false"}
            self.properties.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
            self.properties.chmod(0o600)
        self._port, web = free_ports(2)
        self._start(0, _MASTER, "127.0.0.1", ["--port", str(self._port), "--webui-port", str(web)], {}, [])
        self.wait(0, lambda: listening(self._port), "Spark's master")
        for number, port in enumerate(free_ports(self._workers)):
            options = ["--cores", "1", "--memory", "1g", "--webui-port", str(port)]
            options += ["--work-dir", str(self.folder / f"work-{number}"), self.url]
            apart: list[str] = []
            if disks := self._unshared.get(number):
                apart = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "sh", "-c", _APART, "sh"]
                apart += [f"apart-{number}", *map(str, disks), "--"]
            variables = self._variables if number == self._workers - 1 else {}
            worker = self._start(number + 1, _WORKER, f"127.0.0.{number + 1}", options, variables, apart)
            self.wait(number + 1, partial(_registered, worker), "a Spark worker")

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def properties(self) -> Path:
        """The file with the settings of a protected cluster, for `spark-submit --properties-file`."""
        return self.folder / "spark.properties"

    def close(self) -> None:
        """Workers first, and with SIGTERM: they end their executors. Idempotent."""
        for number in sorted(self._processes, reverse=True):
            self.stop(number)
        super().close()

    def _start(
        self, number: int, program: str, host: str, options: list[str], variables: Mapping[str, str], apart: list[str]
    ) -> Process:
        """Start the master (number 0) or a worker; `apart` are the words before its command."""
        home = _spark_of(self._python)
        root = Path(__file__).parents[2]
        env = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_NO_DAEMONIZE": "1",
            **LIGHT_JVMS,
            "PYSPARK_PYTHON": self._python,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        secret = ["--properties-file", str(self.properties)] if self._secret else []
        command = [*apart, str(home / "bin" / "spark-class"), program, *secret, "--host", host, *options]
        process = self._processes[number] = Process(command, self.folder / f"spark-{number}.log", {**env, **variables})
        return process


def _spark_of(python: str) -> Path:
    """Return the folder of the pyspark that is installed for a Python."""
    # Not imported: it takes a second.
    where = "import importlib.util; print(importlib.util.find_spec('pyspark').origin)"
    done = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).parent


def _registered(worker: Process) -> bool:
    return "registered with master" in worker.tail(200)
