"""Findings of a cluster that is ready to migrate, and changes to them."""

from __future__ import annotations

from dataclasses import replace

from kbackup.migrate.preflight import Line, judge
from kbackup.migrate.states import NotRead
from kbackup.migrate.znodes import (
    ArchiveFindings,
    BrokerFindings,
    ControllerFile,
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
        tuple(ControllerFile(f"c{n}.properties", {**CONTROLLER, "node.id": str(n)}, CLUSTER, 21) for n in (3000, 3001)),
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
    other = ControllerFile(second.file, _changed(dict(second.properties), changes), cluster_id, metadata_version)
    return replace(base, controllers=(first, other))


def _changed(properties: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    merged = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}


UNREAD = NotRead("nobody asked", "ask")
MAP = "listener.security.protocol.map"
JAAS = "listener.name.internal.plain.sasl.jaas.config"
SASL: dict[str, str | None] = {
    MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_SSL",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
    "listener.name.controller.scram-sha-512.sasl.jaas.config": "x required username='quorum' password=\"p\";",
}
BROKEN_SHARED: list[tuple[str, MigrationFindings, str, str]] = [
    (
        "brokers: the controllers' metadata.version",
        broker_configs({"inter.broker.protocol.version": "3.7"}),
        "3.9-IV0 in the storage of c3000.properties, inter.broker.protocol.version of broker 2: 3.7",
        "inter.broker.protocol.version=3.9-IV0",
    ),
    (
        "brokers: the controllers' metadata.version",
        controller({}, metadata_version=17),
        "3.7-IV2 in the storage of c3001",
        "--release-version",
    ),
    (
        "controllers: authorizer",
        controller({"authorizer.class.name": None}),
        "brokers 1, 2 have one, not c3001.properties",
        "StandardAuthorizer",
    ),
    (
        "controllers: authorizer",
        controller({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}),
        "ACLs in ZooKeeper: c3001",
        "StandardAuthorizer",
    ),
    (
        "controllers: super.users",
        controller({"super.users": None}),
        "c3001.properties lacks User:ANONYMOUS",
        "semicolons",
    ),
    (
        "controllers: super.users",
        controller({"super.users": "User:kafka", MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"}),
        "lacks User:ANONYMOUS",
        "super.users",
    ),
    ("controllers: super.users", controller({**SASL, "super.users": "User:kafka"}), "lacks User:quorum", "super.users"),
    (
        "controllers: super.users",
        controller({"ssl.client.auth": "required", "super.users": "User:ANONYMOUS"}),
        "lacks the principal",
        "super.users",
    ),
    (
        "controllers: password.encoder.secret",
        controller({"password.encoder.secret": None}),
        "not set in c3001.properties; encrypted: listener.name.x.ssl.keystore.password of broker 1",
        "plain text",
    ),
    (
        "controllers: password.encoder.secret",
        replace(controller({"password.encoder.secret": ""}), zookeeper=UNREAD),
        "brokers 1, 2 have one",
        "password.encoder.secret",
    ),
    (
        "controllers: password.encoder.secret",
        controller({"password.encoder.secret": "another"}),
        "c3001.properties doesn't decrypt listener.name.x",
        "the value that the brokers have",
    ),
    (
        "controllers: delegation.token.secret.key",
        controller({"delegation.token.secret.key": None}),
        "brokers 1, 2 have it, not c3001.properties",
        "delegation.token.secret.key",
    ),
    (
        "controllers: zookeeper.set.acl",
        controller({"zookeeper.set.acl": None}),
        "true on brokers 1, 2, not in c3001",
        "zookeeper.set.acl=true",
    ),
    ("controllers: login to the brokers", controller({JAAS: None}), f"c3001.properties has no {JAAS}", "copy it"),
    (
        "controllers: login to the brokers",
        controller({"sasl.mechanism.inter.broker.protocol": None}),
        "broker 1 wants PLAIN, c3001.properties logs in by GSSAPI",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
    ),
    (
        "controllers: quorum addresses",
        replace(findings(), quorum={"a:1": "answers", "b:2": "stopped", "c:3": "silent"}),
        "nobody answers at b:2, c:3",
        "start the controllers",
    ),
    (
        "controllers: quorum addresses",
        replace(findings(), quorum={}),
        "none is set",
        "controller.quorum.bootstrap.servers",
    ),
]
"""Of each check in `shared`: its name, broken findings, and what its line and its hint tell."""


def line(judged: MigrationFindings, name: str) -> Line:
    (one,) = [line for line in judge(judged).lines if line.name == name]
    return one


def archive(**changes: object) -> MigrationFindings:
    base = ArchiveFindings(7, NOW - 600, CLUSTER, ())
    return replace(findings(), archive=replace(base, **changes))  # type: ignore[arg-type]  # names of fields


OF_KRAFT = {"version": 2, "brokerid": 3000, "timestamp": "1", "kraftControllerEpoch": 5}
COPIED = {"version": 0, "kraft_metadata_offset": 99, "kraft_controller_id": 3000}
ZOOKEEPER = ("--set", "source.zookeeper.connect=zk:2181/kafka")
