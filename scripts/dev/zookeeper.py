"""ZooKeeper, the Kafka 3.9 clusters that keep their metadata in it, and each step of their migration to KRaft."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from confluent_kafka.admin import AdminClient, ClusterMetadata

from scripts.dev import classes
from scripts.dev.jars import kafka_jars, zookeeper_jars
from scripts.dev.kafka import DEFAULTS, QUIET, SMALL, Nodes, protocol_map, write_properties
from scripts.dev.process import HANG, Process, Server, free_ports, listening
from scripts.dev.secured import Authority

Mode = Literal["zookeeper", "migration", "kraft"]
"""Modes of a broker: with ZooKeeper, with ZooKeeper and the migration switched on, or as a KRaft broker."""

_LISTENERS = {"CLIENT": "PLAINTEXT", "INTERNAL": "PLAINTEXT", "SASL": "SASL_PLAINTEXT"}
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OLD_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
_NEW_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# Both sides of a migration must say the same of these.
_SHARED = {
    # 3.9's controllers refuse brokers of ZooKeeper that don't have the listener which is named here
    "inter.broker.listener.name": "INTERNAL",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
    "delegation.token.secret.key": "the key of tests",
    "delegation.token.expiry.check.interval.ms": "3600000",
}
_ZOOKEEPER = {"zookeeper.session.timeout.ms": "6000", "zookeeper.connection.timeout.ms": "18000"}


State = Literal["NONE", "MIGRATION", "PRE_MIGRATION", "POST_MIGRATION", "ZK"]
_EXPORTER = 'includeObjectNames: ["kafka.controller:*"]\n'
_VALUE = re.compile(r'^kafka_controller_KafkaController_Value\{name="(\w+)",?\} (\S+)$', re.MULTILINE)


def _read_gauges(url: str) -> dict[str, float]:
    """The controller's gauges by name; none where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {name: float(value) for name, value in _VALUE.findall(text)}


_JAAS = """{role} {{
  org.apache.zookeeper.server.auth.DigestLoginModule required {users};
}};
"""


def _login(file: Path, role: str, users: Mapping[str, str]) -> str:
    """Write a JAAS file that only its owner reads; return the option of a JVM that reads it."""
    file.touch(0o600)
    file.write_text(_JAAS.format(role=role, users=" ".join(f'{name}="{value}"' for name, value in users.items())))
    return f"-Djava.security.auth.login.config={file}"


class ZooKeeper(Server):
    """A running ZooKeeper; as a context manager, one that is stopped and removed at the end.

    `users` (name: password) may log in by SASL, DIGEST-MD5; nobody has to, but sees then only what the ACLs of the
    znodes give to everybody. `authority` adds a listener with TLS (`tls_connect`)."""

    name = "zookeeper"

    def __init__(self, users: Mapping[str, str] | None = None, authority: Authority | None = None) -> None:
        super().__init__()
        self._users, self._authority = dict(users or {}), authority
        self._port = self._tls_port = 0

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def tls_connect(self) -> str:
        return f"127.0.0.1:{self._tls_port}"

    def _open(self) -> None:
        self._port, self._tls_port = free_ports(2)
        file = write_properties(self.folder / "zoo.cfg", self._config())
        users = {f"user_{name}": password for name, password in self._users.items()}
        login = [_login(self.folder / "jaas.conf", "Server", users)] if users else []
        argv = [
            *(*classes.java(zookeeper_jars()), "-Xmx256m", *SMALL, QUIET, *login),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(file)),
        ]
        self._processes[0] = Process(argv, self.folder / "log")
        self.wait(0, self._serving, "ZooKeeper")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let the server answer nothing for a while; its clients stay connected."""
        os.kill(self.pid(), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid(), signal.SIGCONT)

    def _serving(self) -> bool:
        """Return True if the server answers "are you ok?"; the port alone opens earlier."""
        if not listening(self._port):
            return False
        with socket.create_connection(("127.0.0.1", self._port), 2) as asking:
            asking.sendall(b"ruok")
            return asking.recv(16) == b"imok"

    def _config(self) -> dict[str, str]:
        config = {
            "dataDir": str(self.folder / "data"),
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
            (self.folder / "key.pem").write_text(issued.certificate + issued.key)
            (self.folder / "trust.pem").write_text(self._authority.certificate)
            config |= {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": str(self._tls_port),
                "secureClientPortAddress": "127.0.0.1",
                "ssl.keyStore.location": str(self.folder / "key.pem"),
                "ssl.trustStore.location": str(self.folder / "trust.pem"),
                "ssl.clientAuth": "none",
            }
        return config


_AGENT = "jmx_prometheus_javaagent-1.0.1.jar"
FIRST_CONTROLLER = 3000


class MigratingCluster(Nodes):
    """A running cluster; as a context manager, one that starts with ZooKeeper and is removed at the end.

    Brokers have the ids 0, 1, …, controllers 3000, 3001, …. Clients come by CLIENT (plain text, may do everything) or
    SASL (SCRAM; ACLs decide). The steps of a migration: `start_controllers`, `restart_brokers("migration")`,
    `restart_brokers("kraft")`, `start_controllers(migration=False)`, `upgrade`. Data and ports stay throughout.

    `properties` are added to those of all nodes, and win. With `zookeeper_user` (name, password) the nodes log in to
    ZooKeeper, and only they may read its secrets. `jars` give the brokers of another release, which can't migrate.
    """

    def __init__(
        self,
        brokers: int = 1,
        controllers: int = 1,
        chroot: str = "",
        properties: Mapping[str, str] | None = None,
        zookeeper_user: tuple[str, str] | None = None,
        jars: Callable[[], Path] = zookeeper_jars,
    ) -> None:
        super().__init__(_LISTENERS, {"log_level": 0}, jars)
        self.brokers = list(range(brokers))
        self.controllers = [FIRST_CONTROLLER + n for n in range(controllers)]
        self.mode: Mode = "zookeeper"
        self._chroot, self._zookeeper_user = chroot, zookeeper_user
        self._properties = dict(properties or {})
        self.zookeeper = ZooKeeper(dict([zookeeper_user]) if zookeeper_user else {})
        self._login: list[str] = []

    def _open(self) -> None:
        self.zookeeper.__enter__()
        ports = iter(free_ports(len(_LISTENERS) * len(self.brokers) + 2 * len(self.controllers)))
        self._ports = {broker: {name: next(ports) for name in _LISTENERS} for broker in self.brokers}
        self._controller_ports = {each: next(ports) for each in self.controllers}
        self._metrics_ports = {each: next(ports) for each in self.controllers}
        if self._zookeeper_user:
            self._properties["zookeeper.set.acl"] = "true"
            user = dict(zip(("username", "password"), self._zookeeper_user, strict=True))
            self._login = [_login(self.folder / "zookeeper-client.conf", "Client", user)]
        self.mode = "zookeeper"
        for broker in self.brokers:
            self.start_broker(broker)
        self.wait_serving()

    def close(self) -> None:
        super().close()
        self.zookeeper.close()

    # What a client, or kbackup, needs to know of it

    @property
    def zookeeper_connect(self) -> str:
        """The address of ZooKeeper with its chroot, as the brokers have it."""
        return self.zookeeper.connect + self._chroot

    @property
    def quorum(self) -> str:
        """The addresses of the controllers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._controller_ports.values())

    def properties_file(self, node: int) -> Path:
        """Return the properties file of a broker's or a controller's last start."""
        return self.home(node) / "server.properties"

    def metadata_log(self, node: int = FIRST_CONTROLLER) -> Path:
        """The folder of the metadata log, `__cluster_metadata-0`, of a controller or a KRaft broker."""
        return self.home(node) / "data" / "__cluster_metadata-0"

    def metrics_url(self, controller: int = FIRST_CONTROLLER) -> str:
        """Return the URL of the Prometheus exporter in the controller."""
        return f"http://127.0.0.1:{self._metrics_ports[controller]}/metrics"

    def cluster_id(self) -> str:
        return str(AdminClient(self.client()).list_topics(timeout=30).cluster_id)

    # The steps

    def restart_brokers(self, mode: Mode) -> None:
        """One after the other, with the properties of `mode`; returns when the whole of it serves."""
        self.mode = mode
        for broker in self.brokers:
            self.stop(broker)
            self.start_broker(broker)
        self.wait_serving()

    def start_broker(self, broker: int) -> None:
        self._write(broker, self._broker_properties(broker))
        self._launch(broker, "-Xmx512m", *SMALL, *self._login)
        self._wait_listening(broker, self._ports[broker]["CLIENT"])

    def start_controllers(self, migration: bool = True) -> None:
        """Controllers that copy ZooKeeper's metadata, or, when the brokers are KRaft's, know ZooKeeper no more.

        All are restarted; on the first call their storage is formatted, for the cluster id that ZooKeeper has."""
        fresh = not all(self.home(each).exists() for each in self.controllers)
        for each in self.controllers:
            self._write(each, self._controller_properties(each, migration))
        if fresh:
            self._format_controllers(self.cluster_id())
        self.stop_controllers()
        exporter = self.folder / "exporter.yaml"
        exporter.write_text(_EXPORTER)
        for each in self.controllers:
            agent = f"{zookeeper_jars() / _AGENT}=127.0.0.1:{self._metrics_ports[each]}:{exporter}"
            self._launch(each, "-Xmx512m", *SMALL, *self._login, f"-javaagent:{agent}")
        for each in self.controllers:
            self._wait_listening(each, self._controller_ports[each])

    def stop_controllers(self) -> None:
        if self.controllers:  # without numbers it would stop all
            self.stop(*self.controllers)

    def wait_for_state(self, name: State, seconds: float = HANG) -> None:
        """Wait until every controller that answers reports this state of the migration."""
        self.wait(self.controllers[0], lambda: self.state() == name, f"migration state {name}", seconds)

    def state(self) -> State | None:
        """Return the migration's state; None if no controller is active, or a standby controller reports another.

        A standby controller reports a new state up to a second after the active one."""
        answers = [values for each in self.controllers if (values := _read_gauges(self.metrics_url(each)))]
        states = {values.get("ZkMigrationState") for values in answers}
        (state,) = states if len(states) == 1 else (None,)
        if state is None or all(values.get("ActiveControllerCount") != 1 for values in answers):
            return None
        names: tuple[State, ...] = get_args(State)
        return names[int(state)]

    def remove_controllers(self) -> None:
        """Stop them and remove their disks: after a roll-back, for a second migration."""
        self.stop_controllers()
        for each in self.controllers:
            shutil.rmtree(self.home(each), ignore_errors=True)

    def upgrade(self) -> None:
        """Kafka 4.4 on the same disks: controllers, then brokers, then the features."""
        self._jars = (kafka_jars,)
        self.start_controllers(migration=False)
        self.restart_brokers("kraft")
        feature = ("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", self.bootstrap)
        self.tool(*feature, "upgrade", "--release-version", "4.4")

    def wait_serving(self) -> None:
        """Until all brokers are there and every partition has its leader, and the replicas that can be in sync.

        A replica that comes back later changes the metadata once more, behind a test that wants them to rest."""
        alive = [each for each in self.brokers if self.running(each)]

        def serves(seen: ClusterMetadata) -> bool:
            partitions = [partition for topic in seen.topics.values() for partition in topic.partitions.values()]
            in_sync = all(set(alive) & set(each.replicas) <= set(each.isrs) for each in partitions)
            return len(seen.brokers) == len(alive) and all(each.leader >= 0 for each in partitions) and in_sync

        self._wait_metadata(alive[0], self.client(), serves)

    def _format_controllers(self, cluster_id: str) -> None:
        """Format the storage of a quorum whose first members the controllers are."""
        quorum = ["--standalone"]
        if len(self.controllers) > 1:
            directories = (base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22] for _ in self.controllers)
            addresses = (f"{each}@127.0.0.1:{port}" for each, port in self._controller_ports.items())
            quorum = ["--initial-controllers", ",".join(map(":".join, zip(addresses, directories, strict=True)))]
        arguments = (f"--cluster-id={cluster_id}", "--release-version", "3.9", *quorum)
        for each in self.controllers:
            self.tool("kafka.tools.StorageTool", "format", *arguments, "-c", str(self.properties_file(each)))

    def _broker_properties(self, node: int) -> dict[str, str]:
        addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports[node].items())
        with_quorum = self._with_quorum()
        by_mode: dict[Mode, dict[str, str]] = {
            "zookeeper": {},
            "migration": with_quorum | {"zookeeper.metadata.migration.enable": "true"},
            "kraft": with_quorum | {"process.roles": "broker", "node.id": str(node)},
        }
        with_zookeeper = {"broker.id": str(node), "zookeeper.connect": self.zookeeper_connect, **_ZOOKEEPER}
        return {
            **DEFAULTS,
            **_SHARED,
            "listeners": addresses,
            "advertised.listeners": addresses,
            "listener.security.protocol.map": protocol_map(_LISTENERS),
            "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            # the tokens' own logins go through both
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": _SCRAM,
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": _SCRAM,
            "authorizer.class.name": _NEW_AUTHORIZER if self.mode == "kraft" else _OLD_AUTHORIZER,
            "log.dirs": str(self.home(node) / "data"),
            **({} if self.mode == "kraft" else with_zookeeper),
            **by_mode[self.mode],
            **self._properties,
        }

    def _with_quorum(self) -> dict[str, str]:
        return {
            "controller.quorum.bootstrap.servers": self.quorum,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": protocol_map(_LISTENERS | {"CONTROLLER": "PLAINTEXT"}),
        }

    def _controller_properties(self, node: int, migration: bool) -> dict[str, str]:
        listener = f"CONTROLLER://127.0.0.1:{self._controller_ports[node]}"
        with_zookeeper = {"zookeeper.connect": self.zookeeper_connect, "zookeeper.metadata.migration.enable": "true"}
        return {
            **DEFAULTS,
            **_SHARED,
            "process.roles": "controller",
            "node.id": str(node),
            **self._with_quorum(),
            "listeners": listener,
            "advertised.listeners": listener,
            "authorizer.class.name": _NEW_AUTHORIZER,
            "log.dirs": str(self.home(node) / "data"),
            **(with_zookeeper | _ZOOKEEPER if migration else {}),
            **self._properties,
        }


def write_classes() -> Path:
    """Write the archive of the classes that ZooKeeper, brokers, controllers and their tools load, if it is missing."""
    return classes.written(zookeeper_jars(), _begin_migration)


def _begin_migration() -> None:
    """Run a broker with ZooKeeper until it is in the middle of its migration."""
    with MigratingCluster() as cluster:
        cluster.start_controllers()
        cluster.wait_for_state("PRE_MIGRATION")
        cluster.restart_brokers("migration")
        cluster.wait_for_state("MIGRATION")
        cluster.stop()
        cluster.zookeeper.stop()
