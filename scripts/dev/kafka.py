"""A Kafka cluster of one or more nodes (KRaft, each broker and controller), and MirrorMaker 2 in dedicated mode."""

from __future__ import annotations

import base64
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from scripts.dev import cache, tools
from scripts.dev.jars import kafka_jars, mirror_jars
from scripts.dev.process import Process, free_ports, listening, open_on_free_ports

MIB = 1 << 20
_LISTENERS = {"CLIENT": "PLAINTEXT", "INTERNAL": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}

# Small internal topics start faster; short intervals let tests see compaction and retention happen.
# Retention is for topics that ask for it: records with timestamps of old would be gone within a second.
DEFAULTS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A killed node can come back only when the controller has given up its former life.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.dedupe.buffer.size": str(8 * MIB),
    "message.max.bytes": str(25 * MIB),
    "replica.fetch.max.bytes": str(26 * MIB),
    "socket.request.max.bytes": str(128 * MIB),
    "controlled.shutdown.enable": "true",
    "delete.topic.enable": "true",
}


class Broker:
    """A running cluster; as a context manager, one that is stopped and removed at the end.

    `properties` are added to every node's, and win. A node has the listeners CLIENT (`bootstrap`), INTERNAL
    and CONTROLLER, all plain text, and those of `listeners` (name: security protocol) for other clients
    (`bootstrap_of`); `client` is what `client()` needs beside an address. `start`, `stop`, `kill` and `restart`
    take one node (from 0) or, without an argument, all; data and ports stay. `jars` gives those of another release.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        nodes: int = 1,
        client: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        jars: Callable[[], Path] = kafka_jars,
    ) -> None:
        self._properties = dict(properties or {})
        self._listeners = _LISTENERS | dict(listeners or {})
        self._client = dict(client or {})
        self._count = nodes
        self._jars = jars
        self._folder = Path()
        self._ports: list[list[int]] = []
        self._nodes: dict[int, Process] = {}
        self._cluster = ""

    def __enter__(self) -> Self:
        open_on_free_ports(self._open, self.close)
        return self

    def _open(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kbackup-kafka-"))
        self._prepare()
        self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_of("CLIENT")

    def bootstrap_of(self, listener: str) -> str:
        at = list(self._listeners).index(listener)
        return ",".join(f"127.0.0.1:{ports[at]}" for ports in self._ports)

    @property
    def folder(self) -> Path:
        """Holds `node-<n>/` with `data/`, `server.properties` and `log`."""
        return self._folder

    def pid(self, node: int = 0) -> int:
        return self._nodes[node].pid

    def client(self, **config: Any) -> dict[str, Any]:
        """A configuration for confluent_kafka's clients, with `config` added."""
        return {"bootstrap.servers": self.bootstrap, **self._client, **config}

    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until every partition has a leader."""
        admin = AdminClient(self.client(log_level=0))
        made = admin.create_topics([NewTopic(name, partitions, replication, config=dict(config or {}))])
        made[name].result(30)

        def led() -> bool:
            found = admin.list_topics(name, timeout=10).topics[name].partitions
            return len(found) == partitions and all(p.leader >= 0 for p in found.values())

        self._nodes[min(self._nodes)].wait_ready(led, f"topic {name}", 30)

    def start(self, node: int | None = None) -> None:
        """Start what doesn't run, and wait until the whole of it serves."""
        for each in self._each(node):
            if each not in self._nodes:
                self._nodes[each] = self._launch(each)
        for each in self._each(node):
            ready = partial(listening, self._ports[each][0])
            self._nodes[each].wait_ready(ready, f"Kafka node {each}", 60)
        self._wait_serving()

    def stop(self, node: int | None = None) -> None:
        """An orderly shutdown (SIGTERM)."""
        going = [self._nodes.pop(each) for each in self._each(node) if each in self._nodes]
        for process in going:  # all at once: the last one would wait for a quorum that is gone
            process.terminate()
        for process in going:
            process.stop()

    def kill(self, node: int | None = None) -> None:
        """SIGKILL, as a power loss would."""
        for each in self._each(node):
            if each in self._nodes:
                self._nodes.pop(each).kill()

    def restart(self, node: int | None = None) -> None:
        self.stop(node)
        self.start(node)

    def close(self) -> None:
        """Stop and remove everything; idempotent. The data goes, so nobody waits for an orderly shutdown."""
        self.kill()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _each(self, node: int | None) -> list[int]:
        return list(range(self._count)) if node is None else [node]

    def _prepare(self) -> None:
        """Write every node's properties, and format its storage."""
        each = len(self._listeners)
        flat = free_ports(each * self._count)
        self._ports = [flat[n * each : (n + 1) * each] for n in range(self._count)]
        # No '-' in it: at the start, the tool would take it for a flag.
        self._cluster = base64.b64encode(uuid.uuid4().bytes, altchars=b"A_").decode().rstrip("=")
        for node in range(self._count):
            home = self._folder / f"node-{node}"
            home.mkdir()
            write_properties(home / "server.properties", self._node_properties(node))
            self._format(node, home / "server.properties")

    def _format(self, node: int, properties: Path, *arguments: str) -> None:
        format_storage = ("kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(properties))
        argv = self._jvm("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *format_storage, *arguments)
        cache.run(argv, f"formatting the storage of Kafka node {node}", "check the broker's properties")

    def _node_properties(self, node: int) -> dict[str, str]:
        listeners = {
            name: f"{name}://127.0.0.1:{port}" for name, port in zip(self._listeners, self._ports[node], strict=True)
        }
        advertised = [address for name, address in listeners.items() if name != "CONTROLLER"]
        voters = (f"{n + 1}@{address}" for n, address in enumerate(self.bootstrap_of("CONTROLLER").split(",")))
        return {
            **DEFAULTS,
            "process.roles": "broker,controller",
            "node.id": str(node + 1),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in self._listeners.items()),
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / f"node-{node}" / "data"),
            **self._properties,
        }

    def _launch(self, node: int) -> Process:
        home = self._folder / f"node-{node}"
        # It unpacks native libraries there, which a killed one leaves behind: so they go with its data.
        options = ("-Xmx1g", "-Xms256m", f"-Djava.io.tmpdir={home}")
        return Process(self._jvm(*options, "kafka.Kafka", str(home / "server.properties")), home / "log")

    def _wait_serving(self) -> None:
        admin = AdminClient(self.client(**{"log_level": 0}))

        def serving() -> bool:
            try:
                seen = admin.list_topics(timeout=2)
            except KafkaException:
                return False
            # Somebody else's broker on our port is not ours.
            return seen.cluster_id == self._cluster and len(seen.brokers) >= len(self._nodes)

        for process in self._nodes.values():
            process.wait_ready(serving, "Kafka", 60)

    def _jvm(self, *arguments: str) -> list[str]:
        return [tools.java(), "-cp", str(self._jars() / "*"), *arguments]


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


_MIRROR_DEFAULTS = {
    "dedicated.mode.enable.internal.rest": "false",
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "refresh.topics.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.topic.acls.interval.seconds": "1",
    "offset.flush.interval.ms": "1000",
}

_WORKER = {
    # a worker that a busy machine keeps from its heartbeats gets its tasks back at once, not after five minutes
    "scheduled.rebalance.max.delay.ms": "0"
}
"""MirrorMaker 2 takes properties of its workers from those of the target alone."""


class MirrorMaker:
    """A running MirrorMaker 2; as a context manager, one that is stopped and removed at the end.

    `properties` are its file's, and win over defaults that suit tests. It starts in ten seconds or so."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        clusters = [name.strip() for name in properties["clusters"].split(",")]
        worker = {f"{cluster}.{name}": value for cluster in clusters for name, value in _WORKER.items()}
        self._properties = {**_MIRROR_DEFAULTS, **worker, **properties}
        self._folder = Path()
        self.process: Process

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="kbackup-mm2-"))
        file = self._folder / "mm2.properties"
        write_properties(file, self._properties)
        argv = [
            tools.java(),
            *("-cp", str(mirror_jars() / "*"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Djava.io.tmpdir={self._folder}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
        ]
        self.process = Process(argv, self._folder / "log")
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
