"""A Kafka 3.9 cluster with ZooKeeper, and each step of its migration to KRaft."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from scripts.dev.process import free_ports, listening, open_on_free_ports
from scripts.dev.zookeeper import metrics, properties
from scripts.dev.zookeeper.nodes import Nodes, Release
from scripts.dev.zookeeper.properties import LISTENERS, Addresses, Mode
from scripts.dev.zookeeper.server import ZooKeeper

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def tool(self, program: str, *arguments: str) -> str:
        """Run one of Kafka's own tools, in the release of the nodes; return its output."""
        return self.nodes.tool(program, *arguments)

    # The steps

    def restart_brokers(self, mode: Mode) -> None:
        """One after the other, with the properties of `mode`; returns when the whole of it serves."""
        self.mode = mode
        for broker in self.brokers:
            self.nodes.stop(broker)
            self.start_broker(broker)
        self.wait_serving()

    def start_broker(self, broker: int) -> None:
        made = properties.broker(
            self._at, broker, self.mode, self.nodes.folder(broker) / "data", self._properties
        )
        self.nodes.start(broker, made, ready=partial(listening, self._at.brokers[broker]["CLIENT"]))

    def start_controllers(self, migration: bool = True) -> None:
        """Controllers that copy ZooKeeper's metadata, or, when the brokers are KRaft's, know ZooKeeper no more.

        All are restarted; on the first call their storage is formatted, for the cluster id that ZooKeeper has."""
        made = {
            each: properties.controller(
                self._at, each, migration, self.nodes.folder(each) / "data", self._properties
            )
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

    def wait_for_state(self, name: metrics.State, seconds: float = 90) -> None:
        """Wait until every controller that answers reports this state of the migration."""
        self.nodes.wait(self.controllers[0], lambda: self.state() == name, f"migration state {name}", seconds)

    def state(self) -> metrics.State | None:
        """Return the migration's state; None if no controller is active, or a standby controller reports another."""
        return metrics.agreed_state(map(self.metrics_url, self.controllers))

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
        self.tool(
            "org.apache.kafka.tools.FeatureCommand", *self._bootstrap(), "upgrade", "--release-version", "4.3"
        )

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

    def _bootstrap(self) -> tuple[str, str]:
        return ("--bootstrap-server", self.bootstrap)

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
