"""The sources of a cluster's metadata besides its brokers: ZooKeeper, a controller's metadata log, metrics.

They are set in `[source]`, next to the properties of the Kafka client. The names for ZooKeeper are a Kafka broker's;
the names for SASL, which a broker takes from a JAAS file, and those for the exporters of controllers' metrics are
kbackup's own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbackup.errors import UsageError

LOG = "metadata.log.dir"
PROPERTIES = {
    "zookeeper.connect": "Address of ZooKeeper, with the chroot after the last host: `zk1:2181,zk2:2181/kafka`.",
    "zookeeper.connection.timeout.ms": "Time limit for a connection. Default 18000.",
    "zookeeper.session.timeout.ms": "Time until a silent session expires. Default 18000.",
    "zookeeper.sasl.username": "User for SASL (DIGEST-MD5).",
    "zookeeper.sasl.password": "Password of `zookeeper.sasl.username`.",
    "zookeeper.ssl.client.enable": "`true` for TLS.",
    "zookeeper.ssl.truststore.location": "PEM file of certificates to trust.",
    "zookeeper.ssl.keystore.location": "PEM file of kbackup's certificate and private key.",
    "zookeeper.ssl.keystore.password": "Password of the private key.",
    LOG: "Folder with `__cluster_metadata-0` of a KRaft controller, or a copy of it.",
    "controller.metrics.username": "User for the exporters of controllers' metrics (HTTP basic).",
    "controller.metrics.password": "Password of `controller.metrics.username`.",
    "controller.metrics.ssl.truststore.location": "PEM file of certificates to trust, for exporters with TLS.",
}
"""The properties of `[source]` that no Kafka client knows, and their meaning."""

_SERVERS = re.compile(r"[^\s,/]+:\d{1,5}(,[^\s,/]+:\d{1,5})*(/[^\s,]*[^\s,/])?/?")
_HINT = "see configuration.md for the sources of metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """`connect` ends in the chroot, if there is one. Timeouts are in seconds. `certificates`: the PEM file to trust;
    `own_certificate`: a PEM file with certificate and private key. An empty `user`: no login by SASL."""

    connect: str
    connection_timeout: float = 18.0
    session_timeout: float = 18.0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    certificates: str = ""
    own_certificate: str = ""
    key_password: str = field(default="", repr=False)

    @property
    def servers(self) -> str:
        """host:port, with commas between."""
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        """Such as /kafka; "" without one."""
        return "/" + path if (path := self.connect.partition("/")[2].rstrip("/")) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAccess:
    """The access to exporters of controllers' metrics. An empty `user`: without a login. `certificates`: the PEM file
    to trust; "" for the system's."""

    user: str = ""
    password: str = field(default="", repr=False)
    certificates: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """`kafka`: the properties of the Kafka client. None, "": the source is not set."""

    kafka: Mapping[str, str] = field(repr=False)
    zookeeper: ZooKeeperOptions | None = None
    metadata_log: str = ""
    metrics: MetricsAccess = MetricsAccess()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Sources:
        """Return the sources that `[source]` names; `UsageError` for properties that exclude each other."""
        zookeeper = _zookeeper(properties)
        user, password, certificates = (
            properties.get(f"controller.metrics.{name}", "")
            for name in ("username", "password", "ssl.truststore.location")
        )
        if bool(user) != bool(password):
            raise UsageError("controller.metrics.username and its password only work together", "set both or none")
        return cls(
            kafka={name: value for name, value in properties.items() if not is_source_property(name)},
            zookeeper=zookeeper,
            metadata_log=properties.get(LOG, ""),
            metrics=MetricsAccess(user=user, password=password, certificates=certificates),
        )


def is_source_property(name: str) -> bool:
    """Return True for a property of `[source]` that is kbackup's own and not the Kafka client's, even if misspelt."""
    return name.startswith(("zookeeper.", "metadata.log.", "controller.metrics."))


def check_source_property(path: str, value: str, where: str, *, show: bool) -> None:
    """Raise `UsageError` for a name that `PROPERTIES` lacks, or an invalid value, which it names with `show`."""
    name = path.partition(".")[2]
    if name not in PROPERTIES:
        near = difflib.get_close_matches(name, PROPERTIES, n=1, cutoff=0.8)
        raise UsageError(f"{where}: unknown property {path}", f"did you mean {near[0]}?" if near else _HINT)
    expected = ""
    if not value:
        return
    if name == "zookeeper.connect" and not _SERVERS.fullmatch(value):
        expected = "host:port with commas between, and a chroot such as /kafka at the end"
    elif name.endswith(".ms") and not re.fullmatch(r"[1-9]\d{0,8}", value):
        expected = "a number of milliseconds"
    elif name.endswith(".enable") and value not in ("true", "false"):
        expected = "true or false"
    if expected:
        said = f" {value!r}" if show else ""
        raise UsageError(f"{where}: {path}{said} can't be used", f"give {expected}")


def _zookeeper(properties: Mapping[str, str]) -> ZooKeeperOptions | None:
    given = {name: value for name, value in properties.items() if name.startswith("zookeeper.") and value}
    if not given:
        return None

    def text(name: str) -> str:
        return given.get(f"zookeeper.{name}", "")

    def seconds(name: str) -> float:
        return int(text(name) or 18000) / 1000

    if not text("connect"):
        raise UsageError(f"[source] has {next(iter(given))} without zookeeper.connect", "set both or none")
    if bool(text("sasl.username")) != bool(text("sasl.password")):
        raise UsageError("a user of ZooKeeper and a password only work together", "set both or none")
    tls = text("ssl.client.enable") == "true"
    if not tls and any(name.startswith("zookeeper.ssl.") and "client.enable" not in name for name in given):
        raise UsageError(
            "[source] has files for TLS with ZooKeeper, which is off", "set zookeeper.ssl.client.enable to true"
        )
    return ZooKeeperOptions(
        connect=text("connect"),
        connection_timeout=seconds("connection.timeout.ms"),
        session_timeout=seconds("session.timeout.ms"),
        user=text("sasl.username"),
        password=text("sasl.password"),
        tls=tls,
        certificates=text("ssl.truststore.location"),
        own_certificate=text("ssl.keystore.location"),
        key_password=text("ssl.keystore.password"),
    )
