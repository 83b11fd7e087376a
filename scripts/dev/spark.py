"""A standalone Spark cluster on loopback, started from the classes that pyspark brings."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

from scripts.dev.process import Process, free_ports, listening

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_APART = 'set -e; hostname "$1"; until [ "$2" = -- ]; do shift; mount -t tmpfs tmpfs "$1"; done; shift 2; exec "$@"'

CHANNEL = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
"""The settings of a cluster whose traffic nobody else reads, but for its secret."""


class SparkCluster:
    """One master and `workers` workers of one core each, as a context manager; everything ends with it. Each worker has
    a loopback address of its own: for Spark they are different machines.

    Executors run this Python and find the package by PYTHONPATH, as they would in a shared image. `secret` is that of
    `spark.authenticate`. Worker N of `unshared` (from 0) is a host named `apart-N`, with disks of its own at these
    paths. `variables` are the last worker's own.
    """

    def __init__(
        self,
        workers: int = 2,
        memory: str = "1g",
        secret: str = "",
        unshared: Mapping[int, Sequence[Path]] = MappingProxyType({}),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._workers, self._memory, self._secret = workers, memory, secret
        self._unshared, self._variables = unshared, variables
        self._processes: list[Process] = []
        self._folder = Path()
        self._port = 0

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="kbackup-spark-"))
        if self._secret:
            # a master that asks for secrets has no REST server: that one knows none
            conf = {**CHANNEL, "spark.authenticate.secret": self._secret, "spark.master.rest.enabled": "false"}
            self.properties.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
            self.properties.chmod(0o600)
        self._port, web = free_ports(2)
        try:
            master = self._start(
                "master", [_MASTER, "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(web)]
            )
            master.wait_ready(lambda: listening(self._port), "Spark's master", 60)
            for number, port in enumerate(free_ports(self._workers)):
                host, folder = f"127.0.0.{number + 1}", self._folder / f"work-{number}"
                options = ["--cores", "1", "--memory", self._memory, "--host", host, "--webui-port", str(port)]
                worker = self._start(
                    f"worker-{number}",
                    [_WORKER, *options, "--work-dir", str(folder), self.url],
                    host,
                    self._variables if number == self._workers - 1 else {},
                    apart=f"apart-{number}",
                    disks=self._unshared.get(number, ()),
                )
                worker.wait_ready(partial(_registered, worker), "a Spark worker", 60)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def properties(self) -> Path:
        """The file with the settings of a protected cluster, for `spark-submit --properties-file`."""
        return self._folder / "spark.properties"

    def close(self) -> None:
        """Workers first: they end their executors. Idempotent."""
        for process in reversed(self._processes):
            process.stop()
        self._processes = []
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(
        self,
        name: str,
        arguments: Sequence[str],
        host: str = "127.0.0.1",
        variables: Mapping[str, str] = MappingProxyType({}),
        apart: str = "",
        disks: Sequence[Path] = (),
    ) -> Process:
        import pyspark

        home = Path(pyspark.__file__).parent
        root = Path(__file__).parents[2]
        env = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        command = [str(home / "bin" / "spark-class"), *arguments]
        if self._secret:
            place = next((n for n, word in enumerate(command) if word.startswith("spark://")), len(command))
            command[place:place] = ["--properties-file", str(self.properties)]
        env |= variables
        if disks:
            own = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "sh", "-c", _APART, "sh"]
            command = [*own, apart, *map(str, disks), "--", *command]
        process = Process(command, self._folder / f"{name}.log", env)
        self._processes.append(process)
        return process


def _registered(worker: Process) -> bool:
    return "registered with master" in worker.tail(200)
