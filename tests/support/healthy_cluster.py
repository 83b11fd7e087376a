"""Findings of a cluster that is ready to migrate, and changes to them."""

from __future__ import annotations

from dataclasses import replace

from kbackup.jobs.migrate.znodes import (
    ArchiveFindings,
    BrokerFindings,
    Controller,
    LiveBroker,
    MigrationFindings,
    ZooKeeperFindings,
)

NOW = 1_700_000_000.0
CLUSTER = "L05pbYc6Q4qlvxLk3rTO9A"
BROKER = {
    "broker.id": "1",
    "inter.broker.protocol.version": "3.9-IV0",
    "log.dirs": "/data",
    "zookeeper.connect": "zk-1:2181,zk-2:2181/kafka",
    "zookeeper.metadata.migration.enable": "true",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SSL",
    "listeners": "INTERNAL://:9092",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "",
    "password.encoder.secret": "",
    "delegation.token.secret.key": "",
    "zookeeper.set.acl": "true",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.internal.plain.sasl.jaas.config": "",
}
"""As a broker tells them: a sensitive config that is set is empty."""
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "3000",
    "zookeeper.connect": "zk-1:2181/kafka",
    "zookeeper.metadata.migration.enable": "true",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SSL",
    "listeners": "CONTROLLER://:9093",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:kafka",
    "password.encoder.secret": "the old secret",
    "delegation.token.secret.key": "of tokens",
    "zookeeper.set.acl": "true",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.internal.plain.sasl.jaas.config": 'org.x.PlainLoginModule required username="kafka";',
}
ENCRYPTED = (
    "initializationVector:Ak7E7gdWhXWYSWXGJKNmxg==,keyLength:128,salt:"
    "ULo56qHWd6dTgMNv9ypHMYfjyeVaXm30k3a2nSjMOzmOBP+H+TBKTNxAhV+e1GcIE1oDAlUwfh52RiqFVRbgxWDico"
    "RkQVu1Sd3IkAaEKKebKiAzFIKK12vOq7pshrfV1ah2h/b2lDvaC5mQkcdTaKqAzAC55zqn8Yy7tsVqdZaLje49pkmx"
    "7WhxR5U4ADt0jlSfr9xkubhU8CK/rfTZj7UM9Ef/uikNlE33OxuY3mnJmDj8AGosvaBfsX6ZQKqoF/OokQPOZTFjmk"
    "G2THk8wkx4GB1NOlHoXk4yoQAx7g9o4NYRyZDydNctST0n/R2K+ecg+mS1kUkzCKpJeHkiYw=="
    ",keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:77,"
    "encryptedPassword:"
    "LNGmjDK91BNzlJBiuEP4A5ve+rz3H/9o7XLNQeIGaetnkBlQi2Qxkcz0OdpAYx1OLg3NQn6HU+lu2kBkMp72mS9wY/"
    "rm0fd4IWP7GZ1ZxsQ="
)
"""As a broker of Kafka 3.9.1 with password.encoder.secret "the old secret" wrote it to ZooKeeper."""


KEYSTORE = "listener.name.x.ssl.keystore.password of broker 1"


def findings() -> MigrationFindings:
    brokers = tuple(LiveBroker(n, 17, {**BROKER, "broker.id": str(n)}) for n in (1, 2))
    return MigrationFindings(
        BrokerFindings(CLUSTER, brokers, frozenset({1, 2}), (), ()),
        ZooKeeperFindings(CLUSTER, frozenset({1, 2}), frozenset({1, 2}), (), (), {KEYSTORE: ENCRYPTED}),
        tuple(Controller(f"c{n}.properties", {**CONTROLLER, "node.id": str(n)}, CLUSTER, 21) for n in (3000, 3001)),
        ArchiveFindings(7, NOW - 600, CLUSTER, ()),
        NOW,
        {"controller-1:9093": "answers"},
    )


def brokers(**changes: object) -> MigrationFindings:
    """The same with other values of `BrokerFindings`."""
    base = findings()
    assert isinstance(base.brokers, BrokerFindings)
    return replace(base, brokers=replace(base.brokers, **changes))  # type: ignore[arg-type]  # names of fields


def zookeeper(**changes: object) -> MigrationFindings:
    base = findings()
    assert isinstance(base.zookeeper, ZooKeeperFindings)
    return replace(base, zookeeper=replace(base.zookeeper, **changes))  # type: ignore[arg-type]  # names of fields


def broker_configs(changes: dict[str, str | None], *, of: tuple[int, ...] = (2,)) -> MigrationFindings:
    """The same with other configs of some brokers; None takes one away."""
    base = findings()
    assert isinstance(base.brokers, BrokerFindings)
    changed = tuple(
        LiveBroker(b.id, b.fetch_version, _changed(b.configs, changes)) if b.id in of else b  # type: ignore[arg-type]  # they were read
        for b in base.brokers.brokers
    )
    return brokers(brokers=changed)


def controller(
    changes: dict[str, str | None], *, cluster_id: str = CLUSTER, metadata_version: int = 21
) -> MigrationFindings:
    """The same with other properties of the second controller."""
    base = findings()
    assert isinstance(base.controllers, tuple)
    first, second = base.controllers
    other = Controller(second.file, _changed(dict(second.properties), changes), cluster_id, metadata_version)
    return replace(base, controllers=(first, other))


def _changed(properties: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    merged = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}
