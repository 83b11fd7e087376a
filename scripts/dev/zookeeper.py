"""ZooKeeper, the Kafka 3.9 clusters that keep their metadata in it, and each step of their migration to KRaft."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from scripts.dev import cache, tools
from scripts.dev.jars import kafka_jars, mirror_jars, zookeeper_jars
from scripts.dev.kafka import DEFAULTS, write_properties
from scripts.dev.process import Process, free_ports, listening, open_on_free_ports
from scripts.dev.secured import Authority

Mode = Literal["zookeeper", "migration", "kraft"]
"""Modes of a broker: with ZooKeeper, with ZooKeeper and the migration switched on, or as a KRaft broker."""

_LISTENERS = {"CLIENT": "PLAINTEXT", "INTERNAL": "PLAINTEXT", "SASL": "SASL_PLAINTEXT"}
_CONTROLLER = {"CONTROLLER": "PLAINTEXT"}
LISTENERS = tuple(_LISTENERS)
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
AUTHORIZERS: Mapping[Mode, str] = {
    "zookeeper": "kafka.security.authorizer.AclAuthorizer",
    "migration": "kafka.security.authorizer.AclAuthorizer",
    "kraft": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
# Both sides of a migration must say the same of these.
_SHARED = {
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
    "delegation.token.secret.key": "the key of tests",
    "delegation.token.expiry.check.interval.ms": "3600000",
}
_ZOOKEEPER = {"zookeeper.session.timeout.ms": "6000", "zookeeper.connection.timeout.ms": "18000"}


@dataclass(frozen=True)
class Addresses:
    """Addresses of a cluster's nodes: ports by node id."""

    zookeeper: str
    brokers: Mapping[int, Mapping[str, int]]
    controllers: Mapping[int, int]

    @property
    def quorum(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.controllers.values())


def broker_properties(at: Addresses, node: int, mode: Mode, data: Path, extra: Mapping[str, str]) -> dict[str, str]:
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in at.brokers[node].items())
    protocols = _LISTENERS if mode == "zookeeper" else _LISTENERS | _CONTROLLER
    common = {
        **DEFAULTS,
        **_SHARED,
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": _protocols(protocols),
        "inter.broker.listener.name": "INTERNAL",
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        # the tokens' own logins go through both
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{_SCRAM};",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_SCRAM};",
        "authorizer.class.name": AUTHORIZERS[mode],
        "log.dirs": str(data),
    }
    with_zookeeper = {"broker.id": str(node), "zookeeper.connect": at.zookeeper, **_ZOOKEEPER}
    with_quorum = {"controller.quorum.bootstrap.servers": at.quorum, "controller.listener.names": "CONTROLLER"}
    by_mode: dict[Mode, dict[str, str]] = {
        "zookeeper": with_zookeeper,
        "migration": {**with_zookeeper, **with_quorum, "zookeeper.metadata.migration.enable": "true"},
        "kraft": {"process.roles": "broker", "node.id": str(node), **with_quorum},
    }
    return {**common, **by_mode[mode], **extra}


def controller_properties(
    at: Addresses, node: int, migration: bool, data: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    listener = f"CONTROLLER://127.0.0.1:{at.controllers[node]}"
    with_zookeeper = {"zookeeper.connect": at.zookeeper, "zookeeper.metadata.migration.enable": "true", **_ZOOKEEPER}
    return {
        **DEFAULTS,
        **_SHARED,
        "process.roles": "controller",
        "node.id": str(node),
        "controller.quorum.bootstrap.servers": at.quorum,
        "controller.listener.names": "CONTROLLER",
        "listeners": listener,
        "advertised.listeners": listener,
        "listener.security.protocol.map": _protocols(_LISTENERS | _CONTROLLER),
        # 3.9 refuses brokers of ZooKeeper that don't have the listener which is named here
        "inter.broker.listener.name": "INTERNAL",
        "authorizer.class.name": AUTHORIZERS["kraft"],
        "log.dirs": str(data),
        **(with_zookeeper if migration else {}),
        **extra,
    }


def _protocols(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in listeners.items())


State = Literal["NONE", "MIGRATION", "PRE_MIGRATION", "POST_MIGRATION", "ZK"]
_EXPORTER = 'includeObjectNames: ["kafka.controller:*"]\n'
_VALUE = re.compile(r'^kafka_controller_KafkaController_Value\{name="(\w+)",?\} (\S+)$', re.MULTILINE)


def agreed_state(urls: Iterable[str]) -> State | None:
    """Return the active controller's state once every standby controller that answers reports it too; else None.

    A standby controller reports a new state up to a second after the active one."""
    controllers = [values for url in urls if (values := read_gauges(url))]
    states = {values.get("ZkMigrationState") for values in controllers}
    (state,) = states if len(states) == 1 else (None,)
    if state is None or all(values.get("ActiveControllerCount") != 1 for values in controllers):
        return None
    names: tuple[State, ...] = get_args(State)
    return names[int(state)]


def read_gauges(url: str) -> dict[str, float]:
    """The controller's gauges by name; none where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {name: float(value) for name, value in _VALUE.findall(text)}


_JAAS = """Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required {users};
}};
"""


class ZooKeeper:
    """A server with its data in `folder`; data and ports stay when it stops.

    `users` (name: password) may log in by SASL, DIGEST-MD5; nobody has to, but sees then only what the ACLs of the
    znodes give to everybody. `authority` adds a listener with TLS (`tls_connect`)."""

    def __init__(
        self, folder: Path, users: Mapping[str, str] | None = None, authority: Authority | None = None
    ) -> None:
        self._folder = folder
        self._users = dict(users or {})
        self._port, self._tls_port = free_ports(2)
        self._authority = authority
        self._process: Process | None = None

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def tls_connect(self) -> str:
        return f"127.0.0.1:{self._tls_port}"

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        write_properties(self._folder / "zoo.cfg", self._config())
        argv = [
            tools.java(),
            *("-cp", str(zookeeper_jars() / "*"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *self._login(),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._folder / "zoo.cfg")),
        ]
        self._process = Process(argv, self._folder / "log")
        self._process.wait_ready(self._serving, "ZooKeeper", 60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let the server answer nothing for a while; its clients stay connected."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _serving(self) -> bool:
        """Return True if the server answers "are you ok?"; the port alone opens earlier."""
        if not listening(self._port):
            return False
        with socket.create_connection(("127.0.0.1", self._port), 2) as asking:
            asking.sendall(b"ruok")
            return asking.recv(16) == b"imok"

    def _config(self) -> dict[str, str]:
        config = {
            "dataDir": str(self._folder / "data"),
            "clientPort": str(self._port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": "1000",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
            "maxClientCnxns": "0",
        }
        if self._users:
            config["authProvider.1"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        if self._authority is not None:
            issued = self._authority.issue("zookeeper")
            (self._folder / "key.pem").write_text(issued.certificate + issued.key)
            (self._folder / "trust.pem").write_text(self._authority.certificate)
            config |= {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": str(self._tls_port),
                "secureClientPortAddress": "127.0.0.1",
                "ssl.keyStore.location": str(self._folder / "key.pem"),
                "ssl.trustStore.location": str(self._folder / "trust.pem"),
                "ssl.clientAuth": "none",
            }
        return config

    def _login(self) -> list[str]:
        if not self._users:
            return []
        users = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        file = self._folder / "jaas.conf"
        file.touch(0o600)
        file.write_text(_JAAS.format(users=users))
        return [f"-Djava.security.auth.login.config={file}"]


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
        self._exporter = folder / "yaml"
        self._exporter.write_text(_EXPORTER)
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

    def launch(self, node: int, made: Mapping[str, str], metrics_port: int | None = None) -> None:
        """Start a node with these properties; with a Prometheus exporter where a port for it is given."""
        if self.running(node):
            return
        file = self._write(node, made)
        options = [f"-Djava.io.tmpdir={self.folder(node)}", "-Xmx512m", *self._login]
        if metrics_port:
            options.append(f"-javaagent:{zookeeper_jars() / _AGENT}=127.0.0.1:{metrics_port}:{self._exporter}")
        self._processes[node] = Process([*self._jvm(*options), "kafka.Kafka", str(file)], self.folder(node) / "log")

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

    def format(self, controllers: Mapping[int, Mapping[str, str]], cluster_id: str, ports: Mapping[int, int]) -> None:
        """Format the storage of a quorum whose first members these controllers are."""
        directories = {node: base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22] for node in controllers}
        voters = ",".join(f"{node}@127.0.0.1:{ports[node]}:{directory}" for node, directory in directories.items())
        for node, made in controllers.items():
            quorum = ("--standalone",) if len(controllers) == 1 else ("--initial-controllers", voters)
            arguments = (f"--cluster-id={cluster_id}", "--release-version", "3.9", *quorum)
            self.tool("kafka.tools.StorageTool", "format", *arguments, "-c", str(self._write(node, made)))

    def tool(self, program: str, *arguments: str) -> str:
        """Run one of Kafka's own tools; return its output."""
        argv = [*self._jvm("-Xmx128m"), program, *arguments]
        return cache.run(argv, f"{program} {' '.join(arguments)}", "read its output")

    def _jvm(self, *options: str) -> list[str]:
        return [tools.java(), *("-cp", self.release.classpath), *_SMALL, *options]

    def _write(self, node: int, made: Mapping[str, str]) -> Path:
        self.folder(node).mkdir(exist_ok=True)
        file = self.folder(node) / "server.properties"
        write_properties(file, made)
        return file


FIRST_CONTROLLER = 3000


class MigratingCluster:
    """A running cluster; as a context manager, one that starts with ZooKeeper and is removed at the end.

    Brokers have the ids 0, 1, …, controllers 3000, 3001, …. Clients come by CLIENT (plain text, may do everything) or
    SASL (SCRAM; ACLs decide). The steps of a migration: `start_controllers`, `restart_brokers("migration")`,
    `restart_brokers("kraft")`, `start_controllers(migration=False)`, `upgrade`. Data and ports stay throughout.

    `properties` are added to those of all nodes, and win. With `zookeeper_user` (name, password) the nodes log in to
    ZooKeeper, and only they may read its secrets.
    """

    def __init__(
        self,
        brokers: int = 1,
        controllers: int = 1,
        chroot: str = "",
        properties: Mapping[str, str] | None = None,
        zookeeper_user: tuple[str, str] | None = None,
    ) -> None:
        self.brokers = list(range(brokers))
        self.controllers = [FIRST_CONTROLLER + n for n in range(controllers)]
        self.mode: Mode = "zookeeper"
        self._chroot = chroot
        self._properties = dict(properties or {})
        self._zookeeper_user = zookeeper_user
        self.folder = Path()
        self.zookeeper: ZooKeeper
        self.nodes: Nodes

    def __enter__(self) -> Self:
        open_on_free_ports(self._open, self.close)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop and remove everything; idempotent."""
        self.nodes.kill_all()
        self.zookeeper.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # What a client, or kbackup, needs to know of it

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_of("CLIENT")

    def bootstrap_of(self, listener: str) -> str:
        return ",".join(f"127.0.0.1:{ports[listener]}" for ports in self._at.brokers.values())

    @property
    def zookeeper_connect(self) -> str:
        """The address of ZooKeeper with its chroot, as the brokers have it."""
        return self._at.zookeeper

    @property
    def quorum(self) -> str:
        """The addresses of the controllers."""
        return self._at.quorum

    def properties_file(self, node: int) -> Path:
        """Return the properties file of a broker's or a controller's last start."""
        return self.nodes.folder(node) / "server.properties"

    def metadata_log(self, node: int = FIRST_CONTROLLER) -> Path:
        """The folder of the metadata log, `__cluster_metadata-0`, of a controller or a KRaft broker."""
        return self.nodes.folder(node) / "data" / "__cluster_metadata-0"

    def metrics_url(self, controller: int = FIRST_CONTROLLER) -> str:
        """Return the URL of the Prometheus exporter in the controller."""
        return f"http://127.0.0.1:{self._metrics_ports[controller]}/metrics"

    def client(self, **config: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **config}

    def scram(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Return the client properties of a SCRAM user."""
        return self.client(
            **{
                "bootstrap.servers": self.bootstrap_of("SASL"),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
            }
        )

    def cluster_id(self) -> str:
        return str(AdminClient(self.client()).list_topics(timeout=30).cluster_id)

    # The steps

    def restart_brokers(self, mode: Mode) -> None:
        """One after the other, with the properties of `mode`; returns when the whole of it serves."""
        self.mode = mode
        for broker in self.brokers:
            self.nodes.stop(broker)
            self.start_broker(broker)
        self.wait_serving()

    def start_broker(self, broker: int) -> None:
        made = broker_properties(self._at, broker, self.mode, self.nodes.folder(broker) / "data", self._properties)
        self.nodes.launch(broker, made)
        self.nodes.wait(broker, partial(listening, self._at.brokers[broker]["CLIENT"]), f"Kafka node {broker}")

    def start_controllers(self, migration: bool = True) -> None:
        """Controllers that copy ZooKeeper's metadata, or, when the brokers are KRaft's, know ZooKeeper no more.

        All are restarted; on the first call their storage is formatted, for the cluster id that ZooKeeper has."""
        made = {
            each: controller_properties(self._at, each, migration, self.nodes.folder(each) / "data", self._properties)
            for each in self.controllers
        }
        fresh = [each for each in self.controllers if not self.nodes.folder(each).exists()]
        if fresh:
            self.nodes.format(made, self.cluster_id(), self._at.controllers)
        self.stop_controllers()
        for each in self.controllers:
            self.nodes.launch(each, made[each], self._metrics_ports[each])
        for each in self.controllers:
            self.nodes.wait(each, partial(listening, self._at.controllers[each]), "controller")

    def stop_controllers(self) -> None:
        self.nodes.stop(*self.controllers)

    def wait_for_state(self, name: State, seconds: float = 90) -> None:
        """Wait until every controller that answers reports this state of the migration."""
        self.nodes.wait(self.controllers[0], lambda: self.state() == name, f"migration state {name}", seconds)

    def state(self) -> State | None:
        """Return the migration's state; None if no controller is active, or a standby controller reports another."""
        return agreed_state(map(self.metrics_url, self.controllers))

    def remove_controllers(self) -> None:
        """Stop them and remove their disks: after a roll-back, for a second migration."""
        self.stop_controllers()
        for each in self.controllers:
            shutil.rmtree(self.nodes.folder(each), ignore_errors=True)

    def upgrade(self) -> None:
        """Kafka 4.3 on the same disks: controllers, then brokers, then the features."""
        self.nodes.release = Release.KAFKA_4
        self.start_controllers(migration=False)
        self.restart_brokers("kraft")
        feature = ("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", self.bootstrap)
        self.nodes.tool(*feature, "upgrade", "--release-version", "4.3")

    def wait_serving(self) -> None:
        """Until all brokers are there and every topic has its leaders."""
        admin = AdminClient(self.client())
        alive = [each for each in self.brokers if self.nodes.running(each)]

        def serving() -> bool:
            try:
                seen = admin.list_topics(timeout=2)
            except KafkaException:
                return False
            leaders = [p.leader for topic in seen.topics.values() for p in topic.partitions.values()]
            return len(seen.brokers) == len(alive) and all(leader >= 0 for leader in leaders)

        self.nodes.wait(alive[0], serving, "Kafka", 90)

    def _open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kbackup-migrating-"))
        users = dict([self._zookeeper_user]) if self._zookeeper_user else {}
        self.zookeeper = ZooKeeper(self.folder / "zookeeper", users)
        self.nodes = Nodes(self.folder, self._zookeeper_user)
        ports = iter(free_ports(len(LISTENERS) * len(self.brokers) + 2 * len(self.controllers)))
        self._at = Addresses(
            self.zookeeper.connect + self._chroot,
            {broker: {name: next(ports) for name in LISTENERS} for broker in self.brokers},
            {each: next(ports) for each in self.controllers},
        )
        self._metrics_ports = {each: next(ports) for each in self.controllers}
        if self._zookeeper_user:
            self._properties["zookeeper.set.acl"] = "true"
        self.zookeeper.start()
        self.mode = "zookeeper"
        for broker in self.brokers:
            self.start_broker(broker)
        self.wait_serving()
