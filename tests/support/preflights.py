"""Findings of a preflight, and the line of one check."""

from __future__ import annotations

from dataclasses import replace

from kbackup.jobs.migrate.preflight import Line, judge
from kbackup.jobs.migrate.states import NotRead
from kbackup.jobs.migrate.znodes import ArchiveFindings, MigrationFindings
from tests.support.healthy_cluster import CLUSTER, NOW, broker_configs, controller, findings

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
