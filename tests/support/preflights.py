"""Findings of a preflight, and the line of one check."""

from __future__ import annotations

from dataclasses import replace

from kbackup.jobs.migrate import preflight
from kbackup.jobs.migrate import preflight as of_brokers
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
        of_brokers.VERSION,
        broker_configs({"inter.broker.protocol.version": "3.7"}),
        "3.9-IV0 in the storage of c3000.properties, inter.broker.protocol.version of broker 2: 3.7",
        "inter.broker.protocol.version=3.9-IV0",
    ),
    (of_brokers.VERSION, controller({}, metadata_version=17), "3.7-IV2 in the storage of c3001", "--release-version"),
    (
        preflight.AUTHORIZER,
        controller({"authorizer.class.name": None}),
        "brokers 1, 2 have one, not c3001.properties",
        "StandardAuthorizer",
    ),
    (
        preflight.AUTHORIZER,
        controller({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}),
        "ACLs in ZooKeeper: c3001",
        "StandardAuthorizer",
    ),
    (preflight.SUPER_USERS, controller({"super.users": None}), "c3001.properties lacks User:ANONYMOUS", "semicolons"),
    (
        preflight.SUPER_USERS,
        controller({"super.users": "User:kafka", MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"}),
        "lacks User:ANONYMOUS",
        "super.users",
    ),
    (preflight.SUPER_USERS, controller({**SASL, "super.users": "User:kafka"}), "lacks User:quorum", "super.users"),
    (
        preflight.SUPER_USERS,
        controller({"ssl.client.auth": "required", "super.users": "User:ANONYMOUS"}),
        "lacks the principal",
        "super.users",
    ),
    (
        preflight.ENCODER,
        controller({"password.encoder.secret": None}),
        "not set in c3001.properties; encrypted: listener.name.x.ssl.keystore.password of broker 1",
        "plain text",
    ),
    (
        preflight.ENCODER,
        replace(controller({"password.encoder.secret": ""}), zookeeper=UNREAD),
        "brokers 1, 2 have one",
        "password.encoder.secret",
    ),
    (
        preflight.ENCODER,
        controller({"password.encoder.secret": "another"}),
        "c3001.properties doesn't decrypt listener.name.x",
        "the value that the brokers have",
    ),
    (
        preflight.TOKENS,
        controller({"delegation.token.secret.key": None}),
        "brokers 1, 2 have it, not c3001.properties",
        "delegation.token.secret.key",
    ),
    (
        preflight.ZNODE_ACLS,
        controller({"zookeeper.set.acl": None}),
        "true on brokers 1, 2, not in c3001",
        "zookeeper.set.acl=true",
    ),
    (preflight.LOGIN, controller({JAAS: None}), f"c3001.properties has no {JAAS}", "copy it"),
    (
        preflight.LOGIN,
        controller({"sasl.mechanism.inter.broker.protocol": None}),
        "broker 1 wants PLAIN, c3001.properties logs in by GSSAPI",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
    ),
    (
        preflight.QUORUM,
        replace(findings(), quorum={"a:1": "answers", "b:2": "stopped", "c:3": "silent"}),
        "nobody answers at b:2, c:3",
        "start the controllers",
    ),
    (preflight.QUORUM, replace(findings(), quorum={}), "none is set", "controller.quorum.bootstrap.servers"),
]
"""Of each check in `shared`: its name, broken findings, and what its line and its hint tell."""


def line(judged: MigrationFindings, name: str) -> Line:
    (one,) = [line for line in judge(judged).lines if line.name == name]
    return one


def archive(**changes: object) -> MigrationFindings:
    base = ArchiveFindings(7, NOW - 600, CLUSTER, ())
    return replace(findings(), archive=replace(base, **changes))  # type: ignore[arg-type]  # names of fields
