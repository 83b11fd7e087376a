"""Each check of the preflight: broken, healed, and not looked at."""

from __future__ import annotations

import datetime
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from msgspec import structs

from kbackup.archive.models import Metadata
from kbackup.errors import UsageError
from kbackup.metadata.entities import SCRAM_SECRETS, NotCarried, ScramUser, not_carried_entry
from kbackup.migrate.addresses import logged_addresses, own_addresses, probe, quorum_addresses, split_address
from kbackup.migrate.checks import access, cluster, controllers
from kbackup.migrate.preflight import judge
from kbackup.migrate.readings import missing_metadata
from kbackup.migrate.states import NotRead
from kbackup.migrate.znodes import ArchiveFindings, LiveBroker, MigrationFindings
from tests.support.healthy_cluster import (
    BROKEN_SHARED,
    CLUSTER,
    JAAS,
    NOW,
    archive,
    broker_configs,
    brokers,
    controller,
    findings,
    line,
    zookeeper,
)
from tests.support.healthy_cluster import MAP as SHARED_MAP

UNREAD = NotRead("nobody asked", "ask")
FLAG = "zookeeper.metadata.migration.enable"
MAP = "listener.security.protocol.map"


BROKEN: list[tuple[str, MigrationFindings, str, str]] = [
    (
        "brokers: release",
        brokers(brokers=(LiveBroker(1, 17, {}), LiveBroker(2, 16, {}))),
        "broker 2: Fetch version 16",
        "upgrade",
    ),
    (
        "brokers: inter.broker.protocol.version",
        broker_configs({"inter.broker.protocol.version": "3.3-IV3"}),
        "broker 2: 3.3-IV3, needs 3.4",
        "restart",
    ),
    (
        "brokers: inter.broker.protocol.version",
        broker_configs({"inter.broker.protocol.version": "3.7-IV1", "log.dirs": "/a, /b"}),
        "needs 3.7-IV2",
        "restart",
    ),
    (
        "brokers: inter.broker.protocol.version",
        broker_configs({"inter.broker.protocol.version": "newest"}),
        "newest",
        "restart",
    ),
    ("brokers: static ids", broker_configs({"broker.id": "-1"}), "generated: broker 2", "broker.id"),
    ("brokers: static ids", broker_configs({"broker.id": None}), "generated: broker 2", "broker.id"),
    ("brokers: alive", zookeeper(known=frozenset({1, 2, 3})), "not running: broker 3", "start it"),
    ("brokers: alive", brokers(assigned=frozenset({1, 4})), "not running: broker 4", "start it"),
    (
        "partitions: online",
        brokers(offline=("orders-0", "orders-1")),
        "2 without a leader: orders-0, orders-1",
        "start",
    ),
    ("topics: deletions", zookeeper(deletions=("old",)), "1 wait for deletion: old", "start every broker"),
    ("partitions: reassignments", zookeeper(reassigning=("orders-0",)), "1 running: orders-0", "--cancel"),
    (
        "znodes",
        zookeeper(unreadable=("/feature holds no JSON object",)),
        "1 that Kafka's migration can't read: /f",
        "mend",
    ),
    ("znodes", zookeeper(unreadable=("/migration is empty",)), "read: /migration is empty", "delete /migration before"),
    (
        "partitions: reassignments",
        replace(brokers(reassigning=("orders-0",)), zookeeper=UNREAD),
        "orders-0",
        "--cancel",
    ),
    (
        "controllers: dedicated",
        controller({"process.roles": "broker,controller"}),
        "c3001.properties",
        "process.roles=controller",
    ),
    ("controllers: dedicated", controller({"process.roles": None}), "c3001.properties", "process.roles=controller"),
    ("controllers: dedicated", controller({"node.id": "2"}), "node.id 2 is a broker's", "another node.id"),
    ("controllers: dedicated", controller({"node.id": "3000"}), "node.id 3000 twice", "of its own"),
    ("controllers: dedicated", controller({"node.id": None}), "no node.id: c3001", "set node.id"),
    ("controllers: migration enabled", controller({FLAG: None}), "c3001.properties", f"{FLAG}=true"),
    ("controllers: migration enabled", controller({FLAG: "false"}), "c3001.properties", f"{FLAG}=true"),
    ("brokers: migration enabled", broker_configs({FLAG: "false"}), "broker 2 not", f"{FLAG}=true"),
    ("controllers: zookeeper.connect", controller({"zookeeper.connect": None}), "not set: c3001", "zookeeper.connect"),
    ("controllers: zookeeper.connect", controller({"zookeeper.connect": "zk-1:2181"}), "another chroot", "chroot"),
    (
        "controllers: zookeeper.connect",
        controller({"zookeeper.connect": "zk-1,zk-9:2181/kafka"}),
        "other hosts than the brokers' zk-1:2181, zk-2:2181: c3001",
        "zookeeper.connect",
    ),
    (
        "listeners: mapped",
        controller({"controller.listener.names": None}),
        "c3001.properties",
        "set controller.listener.names",
    ),
    ("listeners: mapped", controller({"listeners": "PLAINTEXT://:9093"}), "not among listeners", "add CONTROLLER://"),
    (
        "listeners: mapped",
        controller({MAP: "INTERNAL:SASL_PLAINTEXT"}),
        "CONTROLLER has no security protocol",
        "CONTROLLER:PROTOCOL",
    ),
    (
        "listeners: mapped",
        controller({MAP: "CONTROLLER:SSL"}),
        "INTERNAL has no security protocol",
        "INTERNAL:PROTOCOL",
    ),
    (
        "listeners: mapped",
        controller({"inter.broker.listener.name": None, MAP: "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT"}),
        "its inter-broker listener is INTERNAL",
        "inter.broker.listener.name=INTERNAL",
    ),
    (
        "listeners: mapped",
        controller({MAP: "INTERNAL:SSL,CONTROLLER:SSL"}),
        "INTERNAL is SASL_PLAINTEXT",
        "map INTERNAL:SASL_PLAINTEXT",
    ),
    (
        "listeners: mapped",
        broker_configs({MAP: "INTERNAL:SASL_PLAINTEXT"}),
        "broker 2: CONTROLLER has no",
        "of the broker",
    ),
    (
        "listeners: mapped",
        broker_configs({MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"}),
        "CONTROLLER is PLAINTEXT",
        "both sides",
    ),
    (
        "listeners: mapped",
        broker_configs({"controller.listener.names": "OTHER", MAP: "INTERNAL:SASL_PLAINTEXT,OTHER:SSL"}),
        "OTHER is not in c3000",
        "the same",
    ),
    ("cluster id", zookeeper(cluster_id="other"), f"brokers {CLUSTER}, ZooKeeper other", "kafka-storage.sh"),
    ("cluster id", controller({}, cluster_id="other"), "c3001.properties other", "kafka-storage.sh"),
    ("archive: whole metadata", archive(captured_at=NOW - 3601), "1.0 hours old", "kbackup migrate archive"),
    ("archive: whole metadata", archive(captured_at=NOW + 3600), "in the future", "clocks"),
    ("archive: whole metadata", archive(missing=("client quotas",)), "lacks client quotas", "kbackup migrate archive"),
    ("archive: whole metadata", replace(findings(), archive=None), "no restore point", "kbackup migrate archive"),
    ("archive: whole metadata", archive(cluster_id="other"), "of cluster other", "name the archive"),
    *BROKEN_SHARED,
]


@pytest.mark.parametrize(("name", "broken", "detail", "hint"), BROKEN, ids=[f"{b[0]}: {b[2]}" for b in BROKEN])
def test_a_failed_check_says_what_is_wrong_and_what_to_do(
    name: str, broken: MigrationFindings, detail: str, hint: str
) -> None:
    """The check fails, says what is wrong and what to do; no other check does."""
    broken_line = line(broken, name)
    assert broken_line.status == "failed"
    assert detail in broken_line.detail
    assert hint in broken_line.hint
    report = judge(broken)
    assert (report.verdict, report.exit_code) == ("not ready", 10)


def test_a_healthy_cluster_is_ready() -> None:
    report = judge(findings())
    bad = [line for line in report.lines if line.status != "ok"]
    assert not bad, f"findings of a healthy cluster: {bad}"
    assert (report.verdict, report.exit_code) == ("ready", 0)
    assert all(line.hint == "" for line in report.lines)


@pytest.mark.parametrize("name", sorted({name for name, *_ in BROKEN}))
def test_every_line_can_fail(name: str) -> None:
    assert line(findings(), name).status == "ok"


def test_every_line_is_broken_once() -> None:
    assert {name for name, *_ in BROKEN} == {line.name for line in judge(findings()).lines}


def test_brokers_before_their_restart() -> None:
    """The flag is the last step before the migration starts: none that has it is a warning."""
    off = broker_configs({FLAG: "false"}, of=(1, 2))
    assert line(off, "brokers: migration enabled").status == "warning"
    assert (judge(off).verdict, judge(off).exit_code) == ("ready with warnings", 3)


def of_version(protocol: str, level: int, log_dirs: str = "/data") -> MigrationFindings:
    """A cluster whose brokers and controllers have another version."""
    base = broker_configs({"inter.broker.protocol.version": protocol, "log.dirs": log_dirs}, of=(1, 2))
    assert isinstance(base.controllers, tuple)
    return replace(base, controllers=tuple(replace(c, metadata_version=level) for c in base.controllers))


@pytest.mark.parametrize(
    "healthy",
    [
        of_version("3.4", 8),
        of_version("3.7-IV2", 17, "/a,/b"),
        of_version("3.7", 19, "/a,/b"),
        broker_configs({"inter.broker.protocol.version": "3.9"}),
        broker_configs({"log.dirs": "/a,"}),
        controller({"zookeeper.connect": "ZK-2/kafka/"}),
        broker_configs({"authorizer.class.name": None}, of=(1, 2)),
        controller({"password.encoder.secret": "${file:/secrets:encoder}"}),
        zookeeper(encrypted={}),
        broker_configs({"controller.listener.names": None, MAP: "INTERNAL:SASL_PLAINTEXT"}),
        replace(zookeeper(), archive=ArchiveFindings(1, NOW + 30, CLUSTER, ())),
    ],
    ids=range(11),
)
def test_variants_of_a_healthy_cluster_are_ready(healthy: MigrationFindings) -> None:
    assert judge(healthy).verdict == "ready"


def test_kraft_controller_needs_no_map() -> None:
    """Kafka takes a controller's listener as PLAINTEXT where nothing says otherwise."""
    plain = {"process.roles": "controller", "controller.listener.names": "CONTROLLER", "listeners": "CONTROLLER://:1"}
    assert controllers.protocols_of(plain)["CONTROLLER"] == "PLAINTEXT"
    secured = {**plain, "listeners": "CONTROLLER://:1,SSL://:2"}
    assert "CONTROLLER" not in controllers.protocols_of(secured)
    assert "CONTROLLER" not in controllers.protocols_of({**plain, "process.roles": ""})


# Versions, principals and logins, as the preflight reads them from properties.


def test_names_of_metadata_versions_are_kafkas() -> None:
    names = {8: "3.4-IV0", 14: "3.6-IV2", 15: "3.7-IV0", 19: "3.7-IV4", 20: "3.8-IV0", 21: "3.9-IV0"}
    for level, name in names.items():
        assert (cluster.level_of(name), cluster.level_name(level)) == (level, name)
    assert [cluster.level_of(short) for short in ("3.3", "3.5", "3.7", "3.9")] == [7, 11, 19, 21]
    assert [cluster.level_of(other) for other in ("2.8", "4.0", "newest")] == [None, None, None]


def test_principal_of_a_certificate(tmp_path: Path) -> None:
    """In a PEM file after its key, in PKCS12, and unknown in a file of another type."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=controller-1,OU=ops\\, eu,O=Example")
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1)).sign(
        key, hashes.SHA256()
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem += certificate.public_bytes(Encoding.PEM)
    files = {
        "c.pem": pem,
        "c.p12": serialize_key_and_certificates(b"c", key, certificate, None, BestAvailableEncryption(b"hush")),
        "c.jks": b"\xfe\xed\xfe\xed",
    }
    principals = {}
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
        principals[file] = access.principal_of(
            {
                "controller.listener.names": "CONTROLLER",
                SHARED_MAP: "CONTROLLER:SSL",
                "listener.name.controller.ssl.client.auth": "required",
                "listener.name.controller.ssl.keystore.location": str(tmp_path / file),
                "ssl.keystore.password": "hush",
            }
        )
    principal = "User:CN=controller-1,OU=ops\\, eu,O=Example"
    assert principals == {"c.pem": principal, "c.p12": principal, "c.jks": None}


def test_principals_that_only_the_controller_knows_are_not_looked_at() -> None:
    for unknown in (
        {SHARED_MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_SSL"},
        {"ssl.client.auth": "required", "ssl.keystore.location": "/nowhere"},
        {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:x"},
        {"principal.builder.class": "com.example.Builder"},
    ):
        assert line(controller(dict(unknown)), "controllers: super.users").status == "not looked at", unknown


def test_a_login_from_a_file_of_the_jvm_is_not_looked_at() -> None:
    base = controller({JAAS: None})
    both = replace(base, brokers=broker_configs({JAAS: None}, of=(1, 2)).brokers)
    assert line(both, "controllers: login to the brokers").status == "not looked at"


# Checks of the preflight whose sources were not read, and metadata that an archive lacks.


OF_BOTH_SIDES = {
    "controllers: zookeeper.connect",
    "listeners: mapped",
    "brokers: the controllers' metadata.version",
    "controllers: authorizer",
    "controllers: password.encoder.secret",
    "controllers: delegation.token.secret.key",
    "controllers: zookeeper.set.acl",
    "controllers: login to the brokers",
}


NOT_LOOKED_AT = [
    (
        replace(findings(), brokers=UNREAD),
        {
            "brokers: release",
            "brokers: inter.broker.protocol.version",
            "brokers: static ids",
            "brokers: alive",
            "partitions: online",
            "controllers: dedicated",
            "brokers: migration enabled",
            *OF_BOTH_SIDES,
            "cluster id",
        },
    ),
    (
        replace(findings(), zookeeper=UNREAD),
        {"brokers: alive", "topics: deletions", "cluster id", "controllers: password.encoder.secret", "znodes"},
    ),
    (replace(findings(), quorum=UNREAD), {"controllers: quorum addresses"}),
    (
        replace(findings(), controllers=UNREAD),
        {
            "controllers: dedicated",
            "controllers: migration enabled",
            "controllers: super.users",
            *OF_BOTH_SIDES,
            "cluster id",
        },
    ),
    (replace(findings(), archive=UNREAD), {"archive: whole metadata"}),
    (MigrationFindings(UNREAD, UNREAD, UNREAD, UNREAD, NOW, UNREAD), {line.name for line in judge(findings()).lines}),
    (
        brokers(brokers=(LiveBroker(1, UNREAD, UNREAD), LiveBroker(2, 17, {}))),
        {
            "brokers: release",
            "brokers: inter.broker.protocol.version",
            "brokers: static ids",
            "brokers: migration enabled",
            *OF_BOTH_SIDES,
        },
    ),
    (
        replace(brokers(reassigning=UNREAD), zookeeper=UNREAD),
        {
            "brokers: alive",
            "topics: deletions",
            "cluster id",
            "partitions: reassignments",
            "controllers: password.encoder.secret",
            "znodes",
        },
    ),
    (broker_configs({"inter.broker.protocol.version": None}), {"brokers: inter.broker.protocol.version"}),
]


@pytest.mark.parametrize(("partly", "names"), NOT_LOOKED_AT, ids=range(len(NOT_LOOKED_AT)))
def test_not_looked_at_is_never_ok(partly: MigrationFindings, names: set[str]) -> None:
    report = judge(partly)
    unread = [line for line in report.lines if line.status == "not looked at"]
    assert {line.name for line in unread} == names
    assert all(line.detail.startswith("not looked at: ") and line.hint for line in unread)
    assert (report.verdict, report.exit_code) == ("ready with warnings", 3)


def test_problems_are_reported_though_another_source_is_missing() -> None:
    one_side = replace(controller({}, cluster_id="other"), zookeeper=UNREAD)
    assert line(one_side, "cluster id").status == "failed"
    assert line(replace(zookeeper(known=frozenset({3})), brokers=UNREAD), "brokers: alive").status == "failed"


def test_missing_parts_of_an_archive() -> None:
    """Metadata that the cluster does not have is not missing; metadata that was not captured is."""
    empty: dict[str, tuple[()]] = {
        "scram_users": (),
        "broker_configs": (),
        "client_quotas": (),
        "delegation_tokens": (),
    }
    common = {"captured_at": "2026-01-01T00:00:00.000Z", "cluster_id": CLUSTER, "brokers": 1, "topics": ()}

    def missing(*not_carried: NotCarried, **parts: object) -> tuple[str, ...]:
        return missing_metadata(Metadata(**{**common, **empty, **parts}, not_carried=not_carried))  # type: ignore[arg-type]  # fields

    assert missing() == ("ACLs",)
    assert missing(not_carried_entry("acls", "not there", "")) == ()
    assert missing(not_carried_entry("acls", "not supported", "")) == ("ACLs",)
    assert missing(not_carried_entry("group_configs", "not supported", ""), acls=()) == ()
    secrets = NotCarried(part="scram_users", what=SCRAM_SECRETS, reason="secret", why="")
    assert missing(secrets, acls=()) == (SCRAM_SECRETS,)
    assert missing(acls=(), client_quotas=None) == ("client quotas",)
    alice = ScramUser(user="alice", mechanism="SCRAM-SHA-512", iterations=4096)
    assert missing(acls=(), scram_users=(alice,)) == ("secrets of SCRAM users",)
    assert missing(acls=(), scram_users=(structs.replace(alice, stored_key="eA=="),)) == ()


# Addresses of controllers, and whether controllers are alive.


def test_addresses_of_a_quorum() -> None:
    assert quorum_addresses({"controller.quorum.bootstrap.servers": "c1:9093, c2:9093"}) == {"c1:9093", "c2:9093"}
    assert quorum_addresses({"controller.quorum.voters": "3000@c1:9093,3001@c2:9093,bad"}) == {"c1:9093", "c2:9093"}
    assert quorum_addresses({}) == set()


def test_addresses_of_a_controller() -> None:
    names = {"controller.listener.names": "CONTROLLER"}
    assert own_addresses({**names, "listeners": "CONTROLLER://c1:9093,OTHER://c1:1"}) == {"c1:9093"}
    assert own_addresses({**names, "listeners": "CONTROLLER://:9093"}) == set()
    assert own_addresses(
        {**names, "listeners": "CONTROLLER://0.0.0.0:9093", "advertised.listeners": "CONTROLLER://c2:9093"}
    ) == {"c2:9093"}


def test_addresses_of_a_log() -> None:
    registered = {"controllerId": 3000, "endPoints": [{"name": "CONTROLLER", "host": "c1", "port": 9093}]}
    assert list(logged_addresses([registered, {}])) == ["c1:9093"]


def test_a_controller_is_stopped_silent_or_alive_by_its_port() -> None:
    """A closed port of a machine that answers is a stopped controller; a name that leads nowhere proves nothing,
    unless the user knows. What answers is alive, whatever the user says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        alive = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as other:
            closed = f"127.0.0.1:{other.getsockname()[1]}"
        nowhere = "controller.invalid:9093"
        assert probe([alive, closed, nowhere], []) == {alive: "answers", closed: "stopped", nowhere: "silent"}
        assert probe([alive, nowhere], [alive, nowhere]) == {alive: "answers", nowhere: "stopped"}


def test_words_of_an_address() -> None:
    assert split_address("[::1]:9093") == ("::1", 9093)
    for address in ("c1", "c1:", ":9093", "c1:70000", "c1:x"):
        with pytest.raises(UsageError):
            split_address(address)
