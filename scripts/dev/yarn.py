"""YARN on loopback: a ResourceManager and a NodeManager, for jobs with `--master yarn`."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scripts.dev import tools
from scripts.dev.jars import yarn_jars
from scripts.dev.kafka import SMALL
from scripts.dev.process import Process, Server, free_ports

_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_RM, _NM = 0, 1  # the numbers of the two processes

_LOGGING = """
log4j.rootLogger=WARN,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %p %c{1}: %m%n
"""

_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    # A driver in the cluster must not wait until the one before it has gone.
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}


class YarnCluster(Server):
    """A ResourceManager and one NodeManager; everything ends with it, containers too. Its file system is the machine's
    own.

    `client` are the variables by which Spark finds the cluster. The files of containers stay in `containers` and
    `logs` until the end, also those of applications that have finished: tests look into them.
    """

    name = "yarn"

    def __init__(self) -> None:
        super().__init__()
        self._web = 0

    @property
    def conf(self) -> Path:
        """The folder of Hadoop's settings."""
        return self.folder / "conf"

    @property
    def containers(self) -> Path:
        """The local folders of containers: their scripts, tokens and files."""
        return self.folder / "containers"

    @property
    def logs(self) -> Path:
        """The logs of containers."""
        return self.folder / "logs"

    @property
    def staging(self) -> Path:
        """The folder where Spark puts the files of an application (`spark.yarn.stagingDir`)."""
        return self.folder / "staging"

    @property
    def client(self) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self.conf)}

    def applications(self) -> list[dict[str, Any]]:
        """Return what the ResourceManager knows of each application, the oldest first."""
        apps = (self._ask("apps")["apps"] or {"app": []})["app"]
        return sorted(apps, key=_started)

    def close(self) -> None:
        """Stop the NodeManager first, and with SIGTERM: it ends its containers. Idempotent."""
        self.stop(_NM)
        super().close()

    def _open(self) -> None:
        for folder in (self.conf, self.containers, self.logs, self.staging):
            folder.mkdir()
        self._write_settings()
        self._start(_RM, _RESOURCE_MANAGER)
        self.wait(_RM, self._answers, "YARN's ResourceManager")
        self._start(_NM, _NODE_MANAGER)
        self.wait(_NM, self._has_a_node, "YARN's NodeManager")

    def _write_settings(self) -> None:
        calls, schedule, track, administer, self._web = free_ports(5)
        manager = {
            "address": calls,
            "scheduler.address": schedule,
            "resource-tracker.address": track,
            "admin.address": administer,
            "webapp.address": self._web,
        }
        node = {
            "address": "127.0.0.1:0",
            "localizer.address": "127.0.0.1:0",
            "webapp.address": "127.0.0.1:0",
            "local-dirs": str(self.containers),
            "log-dirs": str(self.logs),
            "delete.debug-delay-sec": "3600",
            # No home, as for users of many clusters.
            "user-home-dir": "/dev/null",
            # What containers may take together; the machine has less. Nothing is measured, so no container is ended.
            "resource.memory-mb": "8192",
            "resource.cpu-vcores": "8",
            "pmem-check-enabled": "false",
            "vmem-check-enabled": "false",
            # A disk that is nine tenths full would be no disk any more.
            "disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }
        settings = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in manager.items()}
        settings |= {f"yarn.nodemanager.{name}": value for name, value in node.items()}
        settings |= {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.scheduler.minimum-allocation-mb": "128",
        }
        _write(self.conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.folder / "tmp")})
        _write(self.conf / "yarn-site.xml", settings)
        _write(self.conf / "capacity-scheduler.xml", _QUEUES)
        (self.conf / "log4j.properties").write_text(_LOGGING)

    def _start(self, number: int, program: str) -> None:
        java = tools.java()
        # Hadoop is compiled for Java 8, and looks into classes of Java that later ones keep to themselves.
        opened = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        argv = [java, *SMALL, "-Xmx256m", opened, "-cp", f"{self.conf}:{yarn_jars()}/*", program]
        env = {
            # Containers start the Java of this variable.
            "JAVA_HOME": str(Path(java).resolve().parents[1]),
            "HADOOP_CONF_DIR": str(self.conf),
            # Containers inherit the NodeManager's variables. On a node of a cluster there is no kbackup.
            "PYTHONPATH": "",
        }
        self._processes[number] = Process(argv, self.folder / f"{number}.log", env)

    def _ask(self, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._web}/ws/v1/cluster/{path}"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _answers(self) -> bool:
        try:
            return bool(self._ask("info")["clusterInfo"]["state"] == "STARTED")
        except OSError:
            return False

    def _has_a_node(self) -> bool:
        nodes = self._ask("nodes")["nodes"] or {"node": []}
        return any(node["state"] == "RUNNING" for node in nodes["node"])


def _started(application: Mapping[str, Any]) -> int:
    return int(application["startedTime"])


def _write(path: Path, settings: Mapping[str, str]) -> None:
    """Write a file of Hadoop's settings."""
    root = ElementTree.Element("configuration")
    for name, value in settings.items():
        setting = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(setting, "name").text = name
        ElementTree.SubElement(setting, "value").text = value
    path.write_text(ElementTree.tostring(root, "unicode"))
