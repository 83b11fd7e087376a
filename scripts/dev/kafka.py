"""A Kafka cluster of one or more nodes (KRaft, each broker and controller), and MirrorMaker 2 in dedicated mode."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata
from confluent_kafka.cimpl import NewTopic

from scripts.dev import cache, classes
from scripts.dev.jars import kafka_jars, mirror_jars
from scripts.dev.process import HANG, Process, Server, free_ports, listening

MIB = 1 << 20
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that starts fast and takes little: what is measured against a broker is measured without them."""
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_LISTENERS = {"CLIENT": "PLAINTEXT", "INTERNAL": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}


def _properties(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


# Small internal topics start faster; short intervals let tests see compaction and retention happen.
# Retention is for topics that ask for it: records with timestamps of old would be gone within a second.
# A killed node can come back only when the controller has given up its former life (broker.session.timeout.ms).
DEFAULTS = _properties(
    f"""
    auto.create.topics.enable=false  num.partitions=1  default.replication.factor=1  min.insync.replicas=1
    offsets.topic.num.partitions=4  offsets.topic.replication.factor=1
    transaction.state.log.num.partitions=4  transaction.state.log.replication.factor=1
    transaction.state.log.min.isr=1  share.coordinator.state.topic.num.partitions=1
    share.coordinator.state.topic.replication.factor=1  share.coordinator.state.topic.min.isr=1
    broker.session.timeout.ms=9000  broker.heartbeat.interval.ms=500  group.initial.rebalance.delay.ms=0
    log.retention.ms=-1  log.retention.check.interval.ms=1000  log.initial.task.delay.ms=1000
    log.segment.delete.delay.ms=1000  log.cleaner.backoff.ms=500  log.cleaner.min.cleanable.ratio=0.01
    log.cleaner.dedupe.buffer.size={8 * MIB}  message.max.bytes={25 * MIB}
    replica.fetch.max.bytes={26 * MIB}  socket.request.max.bytes={128 * MIB}
    controlled.shutdown.enable=true  delete.topic.enable=true
    """
)


class Nodes(Server):
    """Nodes of Kafka, each in a folder of its own: `node-<n>/` with `data/`, `server.properties` and `log`.

    `client` is what `client()` needs beside an address; `jars` give the classes of a release.
    """

    name = "kafka"

    def __init__(self, listeners: Mapping[str, str], client: Mapping[str, Any], *jars: Callable[[], Path]) -> None:
        super().__init__()
        self._listeners, self._client, self._jars = listeners, client, jars
        self._ports: dict[int, dict[str, int]] = {}
        """Of each broker by listener."""

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_of("CLIENT")

    def bootstrap_of(self, listener: str) -> str:
        return ",".join(f"{self.host}:{ports[listener]}" for ports in self._ports.values())

    def client(self, **config: Any) -> dict[str, Any]:
        """A configuration for confluent_kafka's clients, with `config` added."""
        return {"bootstrap.servers": self.bootstrap, **self._client, **config}

    def scram(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Return the client properties of a SCRAM user, who comes by the listener SASL."""
        return {
            "bootstrap.servers": self.bootstrap_of("SASL"),
            "security.protocol": self._listeners["SASL"],
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def home(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def tool(self, program: str, *arguments: str) -> str:
        """Run one of Kafka's own tools; return its output."""
        argv = self._jvm("-Xmx128m", *SMALL, program, *arguments)
        hint = "read its output, and check the nodes' properties"
        return cache.run(argv, f"{program} {' '.join(arguments)}", hint, seconds=HANG)

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

        self.wait(min(self._processes), led, f"topic {name}", 30)

    def _jvm(self, *arguments: str) -> list[str]:
        return [*classes.java(*(jars() for jars in self._jars)), *arguments]

    def _write(self, node: int, properties: Mapping[str, str]) -> Path:
        """Write a node's properties; return their path."""
        self.home(node).mkdir(exist_ok=True)
        return write_properties(self.home(node) / "server.properties", properties)

    def _launch(self, node: int, *options: str) -> None:
        """Start a node that does not run."""
        if not self.running(node):
            # It unpacks native libraries there, which a killed one leaves behind: so they go with its data.
            options = (f"-Djava.io.tmpdir={self.home(node)}", *options)
            argv = self._jvm(*options, "kafka.Kafka", str(self.home(node) / "server.properties"))
            self._processes[node] = Process(argv, self.home(node) / "log")

    def _wait_listening(self, node: int, port: int) -> None:
        self.wait(node, partial(listening, port, self.host), f"Kafka node {node}", 90)

    def _wait_metadata(
        self, node: int, client: Mapping[str, Any], serves: Callable[[ClusterMetadata], bool], label: str = "Kafka"
    ) -> None:
        """Wait until the brokers answer a client with metadata that `serves`."""
        admin = AdminClient({**client, "log_level": 0})

        def serving() -> bool:
            try:
                return serves(admin.list_topics(timeout=2))
            except KafkaException:
                return False

        self.wait(node, serving, label, 90)


class Broker(Nodes):
    """A running cluster of KRaft nodes; as a context manager, one that is stopped and removed at the end.

    `properties` are added to every node's, and win. A node has the listeners CLIENT (`bootstrap`), INTERNAL
    and CONTROLLER, all plain text, and those of `listeners` (name: security protocol) for other clients
    (`bootstrap_of`). `start`, `stop` and `kill` take nodes (from 0) or, without an argument, all; data and ports stay.
    `jars` gives those of another release. `via` returns the port by which clients reach a port of CLIENT. `jvm` are
    options of the nodes' JVMs: by default they start with half the processor time, and compile nothing thoroughly.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        nodes: int = 1,
        listeners: Mapping[str, str] | None = None,
        jars: Callable[[], Path] = kafka_jars,
        via: Callable[[int], int] | None = None,
        jvm: Sequence[str] = SMALL,
    ) -> None:
        super().__init__(_LISTENERS | dict(listeners or {}), {}, jars)
        self._jvm_options = jvm
        self._properties, self._count = dict(properties or {}), nodes
        self._cluster, self._via = "", via

    def _open(self) -> None:
        """Write every node's properties, format its storage, and start it."""
        ports = iter(free_ports(len(self._listeners) * self._count))
        self._ports = {node: {name: next(ports) for name in self._listeners} for node in range(self._count)}
        # No '-' in it: at the start, the tool would take it for a flag.
        self._cluster = base64.b64encode(uuid.uuid4().bytes, altchars=b"A_").decode().rstrip("=")
        for node in self._ports:
            self._format(node, self._write(node, self._node_properties(node)))
        self.start()

    def start(self, *nodes: int) -> None:
        """Start what doesn't run, and wait until the whole of it serves."""
        starting = nodes or tuple(self._ports)
        for node in starting:
            self._launch(node, "-Xmx1g", "-Xms256m", *self._jvm_options)
        for node in starting:
            self._wait_listening(node, self._ports[node]["CLIENT"])

        def serves(seen: ClusterMetadata) -> bool:
            # Somebody else's broker on our port is not ours.
            return seen.cluster_id == self._cluster and len(seen.brokers) >= len(self._processes)

        self._wait_metadata(starting[0], self.client(), serves)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _format(self, node: int, properties: Path, *arguments: str) -> None:
        self.tool("kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(properties), *arguments)

    def _node_properties(self, node: int) -> dict[str, str]:
        listeners = {name: f"{name}://{self.host}:{port}" for name, port in self._ports[node].items()}
        advertised = [address for name, address in listeners.items() if name != "CONTROLLER"]
        if self._via is not None:
            advertised[0] = f"CLIENT://127.0.0.1:{self._via(self._ports[node]['CLIENT'])}"
        voters = (f"{n + 1}@{address}" for n, address in enumerate(self.bootstrap_of("CONTROLLER").split(",")))
        return {
            **DEFAULTS,
            "process.roles": "broker,controller",
            "node.id": str(node + 1),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": protocol_map(self._listeners),
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.home(node) / "data"),
            **self._properties,
        }


def write_classes() -> Path:
    """Write the archive of the classes that a node and its tools load, if it is missing."""
    return classes.written(kafka_jars(), _serve_once)


def _serve_once() -> None:
    """Run a broker that takes and gives a record in a transaction, and keeps the position of a group."""
    with Broker() as broker:
        broker.create_topic("once")
        producer = Producer(broker.client(**{"transactional.id": "once", "log_level": 0}))
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("once", b"value")
        producer.commit_transaction(60)
        reading = {"group.id": "once", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer(broker.client(**reading))
        consumer.subscribe(["once"])
        consumer.poll(60)
        consumer.close()
        broker.stop()


def protocol_map(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in listeners.items())


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a file of Java properties, and return its path."""
    lines = (f"{key}={value}".replace("\n", "\\n") for key, value in properties.items())
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


_MIRROR_DEFAULTS = _properties(
    """
    dedicated.mode.enable.internal.rest=false  replication.factor=1  checkpoints.topic.replication.factor=1
    heartbeats.topic.replication.factor=1  offset-syncs.topic.replication.factor=1
    offset.storage.replication.factor=1  status.storage.replication.factor=1  config.storage.replication.factor=1
    offset.storage.partitions=1  status.storage.partitions=1  refresh.topics.interval.seconds=1
    sync.topic.configs.interval.seconds=1  sync.topic.acls.interval.seconds=1  offset.flush.interval.ms=1000
    """
)


class MirrorMaker(Server):
    """A running MirrorMaker 2. `properties` are its file's, and win over defaults that suit tests.

    It starts in ten seconds or so."""

    name = "mm2"

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__()
        clusters = [name.strip() for name in properties["clusters"].split(",")]
        # It takes its workers' properties from those of the target alone. A worker that a busy machine keeps from its
        # heartbeats gets its tasks back at once, not after five minutes.
        worker = {f"{cluster}.scheduled.rebalance.max.delay.ms": "0" for cluster in clusters}
        self._properties = {**_MIRROR_DEFAULTS, **worker, **properties}

    def _open(self) -> None:
        file = write_properties(self.folder / "mm2.properties", self._properties)
        argv = [
            *(*classes.java(mirror_jars()), "-Xmx256m", *SMALL),
            *(f"-Djava.io.tmpdir={self.folder}", QUIET, "org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
        ]
        self._processes[0] = Process(argv, self.folder / "log")
