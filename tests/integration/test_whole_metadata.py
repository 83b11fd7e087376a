"""Quotas, tokens, every ACL, defaults of brokers and client metrics: captured as Kafka's own tools list them, set on
another cluster, and taken back.

The backup comes as a user who logs in: brokers tell delegation tokens to nobody else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.jobs.capture import capture_settings
from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata.differences import quota_values
from kbackup.metadata.entities import ClientMetrics, ClientQuota, QuotaKey, Reading
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from scripts.dev import cache, classes
from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import SMALL, Broker
from scripts.dev.process import HANG
from scripts.dev.secured import SecuredBroker
from tests.integration.conftest import CountedSpark, Kbackup
from tests.integration.secured import GUARDED, section
from tests.integration.topics import produce
from tests.support.metadata_entities import acl

PASSWORD = "a password of the tests"
ROOT = {"super.users": "User:ANONYMOUS;User:root", "delegation.token.secret.key": "a secret of the tests"}
QUOTAS: dict[QuotaKey, dict[str, float | None]] = {
    (("user", "b o%b"), ("client-id", "app 1")): {"consumer_byte_rate": 2048.0, "producer_byte_rate": 1024.0},
    (("user", "größe"), ("client-id", None)): {"request_percentage": 50.5},
    (("user", "größe"),): {"producer_byte_rate": 3000000000.0},
    (("user", None),): {"controller_mutation_rate": 10.0},
    (("client-id", "<default>"),): {"producer_byte_rate": 7.0},
    (("ip", "127.0.0.7"),): {"connection_creation_rate": 500.0},
    (("ip", None),): {"connection_creation_rate": 100.0},
}
ACLS = [
    acl("*", resource="delegation_token", principal="User:b o%b", operation="describe"),
    acl(principal="User:b o%b"),
    acl("größe", resource="user", principal="User:b o%b", operation="create_tokens"),
    acl("größe", resource="user", principal="User:b o%b", operation="describe_tokens", permission="deny"),
]
METRICS = {"interval.ms": "60000", "metrics": "org.apache.kafka.consumer."}


@dataclass
class Whole:
    """A cluster with all kinds of metadata, and the command line that comes to it as `root`."""

    source: SecuredBroker
    kbackup: Kbackup
    folder: Path

    def metadata(self, archive: str, key: str = "") -> Metadata:
        opened = open_archive(open_store(archive, {}, key, key_class=layout.key_class))
        return opened.metadata(opened.restore_point("latest"))

    def tool(self, name: str, *arguments: str) -> str:
        """Run one of Kafka's command line tools as `root`, and return its output."""
        config = ("--command-config", str(self.folder / "client.properties"))
        login = ["--bootstrap-server", self.source.bootstrap_of("SASL"), *config]
        java = [*classes.java(kafka_jars()), *SMALL]
        return cache.run([*java, name, *login, *arguments], name, "look at the arguments", seconds=HANG)


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    with SecuredBroker(ROOT) as source:
        source.add_user("root", PASSWORD)
        source.create_topic("orders", 2)
        produce(source, "orders", 0, [b"1"])
        write_configs(folder, source)
        furnish(source)
        yield Whole(source, Kbackup(CountedSpark(spark), folder / "kbackup.toml"), folder)


def write_configs(folder: Path, source: SecuredBroker) -> None:
    (folder / "ca.pem").write_text(source.authority.certificate)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    (folder / "client.properties").write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={folder / 'ca.pem'}\n"
        f'sasl.jaas.config={module} required username="root" password="{PASSWORD}";\n'
    )
    (folder / "kbackup.toml").write_text(section("source", source.scram("root", PASSWORD)))


def furnish(broker: SecuredBroker) -> None:
    cluster = Cluster(broker.client(), "source")
    refused = [
        *cluster.security.set_quotas(QUOTAS).values(),
        cluster.dynamic_configs.set_on_all_brokers("log.segment.bytes", "2097152"),
        *cluster.security.create_acls(ACLS).values(),
        cluster.dynamic_configs.set_client_metrics("m 1", METRICS),
    ]
    assert not any(refused)


def backup(whole: Whole, name: str, key: str = "") -> tuple[str, Metadata]:
    archive = str(whole.folder / name)
    more = ("--encryption-key", key) if key else ()
    outcome = whole.kbackup("backup", "-a", archive, *more)
    assert outcome.code == 0, outcome.err
    assert outcome.document["warnings"] == []
    return archive, whole.metadata(archive, key)


@pytest.fixture(scope="module")
def plain(whole: Whole) -> Metadata:
    return backup(whole, "plain")[1]


def test_quotas_are_as_kafka_lists_them(whole: Whole, plain: Metadata) -> None:
    quotas = [quota_of(dict(sorted(entity)), values) for entity, values in QUOTAS.items()]
    assert sorted(map(repr, plain.client_quotas or ())) == sorted(map(repr, quotas))
    listed = ""
    for kinds in (["users"], ["clients"], ["users", "clients"], ["ips"]):
        named = [word for kind in kinds for word in ("--entity-type", kind)]
        listed += whole.tool("org.apache.kafka.tools.ConfigCommand", "--describe", *named)
    said = {line for line in listed.splitlines() if line.startswith("Quota configs for")}
    assert len(said) == len(quotas), listed
    for quota in plain.client_quotas or ():
        assert any(_says(line, quota) for line in said), (quota, listed)


def quota_of(entity: Any, quotas: Any) -> ClientQuota:
    return ClientQuota(entity=entity, quotas=quotas)


def _says(line: str, quota: ClientQuota) -> bool:
    """Return whether a line of kafka-configs.sh shows exactly this quota."""
    about, _, values = line.partition(" are ")
    word = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
    named = {word[kind]: name for kind, name in quota.entity.items()}
    names = [f"{kind} '{name}'" if name is not None else f"the default {kind}" for kind, name in named.items()]
    parts = re.split(r", ", about.removeprefix("Quota configs for "))
    told = {pair.split("=")[0]: float(pair.split("=")[1]) for pair in values.split(", ")}
    return sorted(parts) == sorted(names) and told == quota.quotas


def test_acls_on_tokens_and_users_and_defaults_are_among_the_others(whole: Whole, plain: Metadata) -> None:
    assert {*(plain.acls or ())} == {*ACLS}
    listed = whole.tool("org.apache.kafka.tools.AclCommand", "--list")
    for words in ("resourceType=USER, name=größe", "resourceType=DELEGATION_TOKEN, name=*", "CREATE_TOKENS"):
        assert words in listed
    # defaults of brokers and client metrics
    default = {c.name: c.value for c in plain.broker_configs or () if c.broker is None}
    assert default["log.segment.bytes"] == "2097152"
    assert plain.client_metrics == (ClientMetrics(name="m 1", configs=METRICS),)
    levels = {feature.name: feature.level for feature in plain.features or ()}
    listed = whole.tool("org.apache.kafka.tools.FeatureCommand", "describe")
    told = re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (\S+)", listed)
    assert {name for name, level in told if level not in ("-", "0")} == {n for n, v in levels.items() if v}
    registered = [(r.id, r.role, r.alive) for r in plain.registrations or ()]
    assert registered == [(1, "broker", True), (1, "controller", None)]
    assert [t.replicas for t in plain.topics] == [((1,), (1,))]
    assert {*plain.sources.values()} == {"brokers"}


def test_tokens_keep_their_secret_in_an_encrypted_archive_alone(
    whole: Whole, plain: Metadata, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:app 1")
    made = whole.tool("org.apache.kafka.tools.DelegationTokenCommand", *asked)
    token, hmac = re.findall(r"^(\S{22})\s+(\S+==?|\S{86,88})\s", made, re.MULTILINE)[0]
    (whole.folder / "key").write_text(generate_key())
    sealed, full = backup(whole, "sealed", f"file:{whole.folder / 'key'}")
    (found,) = full.delegation_tokens or ()
    assert (found.id, found.hmac, found.renewers) == (token, hmac, ("User:app 1",))
    assert (found.owner, found.requester) == ("User:root", "User:root")
    told = whole.kbackup("info", "-a", sealed, "--encryption-key", f"file:{whole.folder / 'key'}").document
    assert (told["settings"]["client_quotas"], told["settings"]["delegation_tokens"]) == (len(QUOTAS), 1)
    assert hmac not in json.dumps(told)
    open_, bare = backup(whole, "plain")
    assert [(t.id, t.hmac) for t in bare.delegation_tokens or ()] == [(token, None)]
    assert ("secrets of delegation tokens", "secret") in {(n.what, n.reason) for n in bare.not_carried}
    stored = [f.read_bytes() for place in (open_, sealed) for f in Path(place).rglob("*") if f.is_file()]
    printed = "".join(capfd.readouterr())
    for secret in (hmac, PASSWORD):
        assert not any(secret.encode() in data for data in stored)
        assert secret not in printed


def stands(target: Broker) -> Reading:
    """All that the target tells of its settings, but who is registered."""
    cluster = Cluster(target.client(), "target")
    cluster.connect()
    return replace(capture_settings(cluster, []), registrations=None)


def test_a_second_cluster_gets_the_same_and_gives_it_back(whole: Whole, plain: Metadata) -> None:
    with Broker(GUARDED) as target:
        security = Cluster(target.client(), "target").security
        own: dict[QuotaKey, dict[str, float | None]] = {
            (("user", None),): {"controller_mutation_rate": 3.0, "request_percentage": 90.0}
        }
        refused = [*security.set_quotas(own).values(), *security.create_acls(ACLS[:1]).values()]
        assert not any(refused)
        before = stands(target)
        base = ["restore", str(whole.folder / "plain"), "--restore-id", "all", "--bootstrap-server", target.bootstrap]
        arguments = [*base, "--restore-point", "1", "--with", "acls,configs,quotas"]
        dry = whole.kbackup(*arguments, "--dry-run").document["settings"]
        assert stands(target) == before
        done = whole.kbackup(*arguments)
        assert done.code == 0, done.err
        for part in ("acls", "configs", "quotas"):
            assert done.document["settings"][part] == dry[part]
        _same_as_archived(stands(target), plain)
        undo = [*base, "--undo"]
        shown = whole.kbackup(*undo).document["changes"]
        _same_as_archived(stands(target), plain)
        undo += ["--confirm", "--accept-unproven"]  # the tests keep nothing on this machine
        undone = whole.kbackup(*undo)
        assert (undone.code, undone.document["changes"]) == (0, shown)
        assert stands(target) == before
        again = whole.kbackup(*undo)
        assert (again.code, again.document["number"]) == (0, 0)


def _same_as_archived(there: Reading, plain: Metadata) -> None:
    assert {*(there.acls or ())} == {*(plain.acls or ())}
    assert there.client_metrics == plain.client_metrics
    assert {*(there.broker_configs or ())} == {*(plain.broker_configs or ())}
    quotas = quota_values(plain.client_quotas or ())
    assert quota_values(there.client_quotas or ()) == quotas | {
        ((("user", None),), "request_percentage"): 90.0  # the target's own, which is never removed
    }
