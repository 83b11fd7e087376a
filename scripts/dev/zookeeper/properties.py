"""The properties files of brokers and controllers at each step of a migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scripts.dev.kafka import DEFAULTS

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
_ZOOKEEPER = {
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "18000",
}


@dataclass(frozen=True)
class Addresses:
    """Addresses of a cluster's nodes. `controllers` maps node id to host:port."""

    zookeeper: str
    brokers: Mapping[int, Mapping[str, int]]
    controllers: Mapping[int, int]

    @property
    def quorum(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.controllers.values())


def broker(at: Addresses, node: int, mode: Mode, data: Path, extra: Mapping[str, str]) -> dict[str, str]:
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
    with_quorum = {
        "controller.quorum.bootstrap.servers": at.quorum,
        "controller.listener.names": "CONTROLLER",
    }
    by_mode: dict[Mode, dict[str, str]] = {
        "zookeeper": with_zookeeper,
        "migration": {**with_zookeeper, **with_quorum, "zookeeper.metadata.migration.enable": "true"},
        "kraft": {"process.roles": "broker", "node.id": str(node), **with_quorum},
    }
    return {**common, **by_mode[mode], **extra}


def controller(
    at: Addresses, node: int, migration: bool, data: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    listener = f"CONTROLLER://127.0.0.1:{at.controllers[node]}"
    with_zookeeper = {
        "zookeeper.connect": at.zookeeper,
        "zookeeper.metadata.migration.enable": "true",
        **_ZOOKEEPER,
    }
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


def write(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
