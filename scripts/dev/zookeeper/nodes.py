"""The processes of a cluster's nodes, of Kafka 3.9 or 4.3."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

from scripts.dev import cache, tools
from scripts.dev.jars import kafka_jars, mirror_jars, zookeeper_jars
from scripts.dev.process import Process
from scripts.dev.zookeeper import metrics, properties

_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_AGENT = "jmx_prometheus_javaagent-1.0.1.jar"
_CLIENT = """Client {{
  org.apache.zookeeper.server.auth.DigestLoginModule required username="{}" password="{}";
}};
"""


class Release(Enum):
    KAFKA_3 = "3.9"
    KAFKA_4 = "4.3"

    @property
    def classpath(self) -> str:
        jars = [zookeeper_jars()] if self is Release.KAFKA_3 else [kafka_jars(), mirror_jars()]
        return ":".join(f"{folder}/*" for folder in jars)


class Nodes:
    """Brokers and controllers, each with a folder of its own below `folder`: `node-<id>/` with `data/`,
    `server.properties` and `log`. What is started or stopped twice stays as it is."""

    def __init__(self, folder: Path, zookeeper_user: tuple[str, str] | None) -> None:
        self.release = Release.KAFKA_3
        self._folder = folder
        self._processes: dict[int, Process] = {}
        self._login: list[str] = []
        if zookeeper_user:
            file = folder / "zookeeper-client.conf"
            file.touch(0o600)
            file.write_text(_CLIENT.format(*zookeeper_user))
            self._login = [f"-Djava.security.auth.login.config={file}"]

    def folder(self, node: int) -> Path:
        return self._folder / f"node-{node}"

    def running(self, node: int) -> bool:
        return node in self._processes and self._processes[node].running

    def pid(self, node: int) -> int:
        return self._processes[node].pid

    def start(self, node: int, made: Mapping[str, str], ready: Callable[[], bool]) -> None:
        """Launch a node and wait until it is ready."""
        self.launch(node, made)
        self.wait(node, ready, f"Kafka node {node}")

    def launch(self, node: int, made: Mapping[str, str], metrics_port: int | None = None) -> None:
        """Start a node with these properties; with a Prometheus exporter where a port for it is given."""
        if self.running(node):
            return
        file = self._write(node, made)
        argv = [
            *self._jvm(f"-Djava.io.tmpdir={self.folder(node)}", "-Xmx512m", *self._login),
            *(self._exporter(metrics_port) if metrics_port else []),
            *("kafka.Kafka", str(file)),
        ]
        self._processes[node] = Process(argv, self.folder(node) / "log")

    def wait(self, node: int, ready: Callable[[], bool], label: str, seconds: float = 90) -> None:
        self._processes[node].wait_ready(ready, label, seconds)

    def stop(self, *nodes: int) -> None:
        """An orderly shutdown (SIGTERM), of all of them at the same time."""
        processes = [self._processes.pop(node) for node in nodes if node in self._processes]
        for process in processes:
            process.terminate()
        for process in processes:
            process.stop()

    def kill(self, node: int) -> None:
        """SIGKILL, as a power loss would."""
        if node in self._processes:
            self._processes.pop(node).kill()

    def kill_all(self) -> None:
        for node in list(self._processes):
            self.kill(node)

    def format(
        self, controllers: Mapping[int, Mapping[str, str]], cluster_id: str, ports: Mapping[int, int]
    ) -> None:
        """Format the storage of a quorum whose first members these controllers are."""
        directories = {
            node: base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22] for node in controllers
        }
        voters = ",".join(
            f"{node}@127.0.0.1:{ports[node]}:{directory}" for node, directory in directories.items()
        )
        for node, made in controllers.items():
            quorum = ("--standalone",) if len(controllers) == 1 else ("--initial-controllers", voters)
            arguments = (f"--cluster-id={cluster_id}", "--release-version", "3.9", *quorum)
            self.tool("kafka.tools.StorageTool", "format", *arguments, "-c", str(self._write(node, made)))

    def tool(self, program: str, *arguments: str) -> str:
        """Run one of Kafka's own tools; return its output."""
        argv = [*self._jvm("-Xmx128m"), program, *arguments]
        return cache.run(argv, f"{program} {' '.join(arguments)}", "read its output")

    def _jvm(self, *options: str) -> list[str]:
        return [
            tools.java(),
            *("-cp", self.release.classpath),
            *_SMALL,
            *options,
        ]

    def _exporter(self, port: int) -> list[str]:
        config = self._folder / "metrics.yaml"
        config.write_text(metrics.CONFIG)
        return [f"-javaagent:{zookeeper_jars() / _AGENT}=127.0.0.1:{port}:{config}"]

    def _write(self, node: int, made: Mapping[str, str]) -> Path:
        self.folder(node).mkdir(exist_ok=True)
        file = self.folder(node) / "server.properties"
        properties.write(file, made)
        return file
