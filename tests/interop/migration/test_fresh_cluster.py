"""A fresh cluster of Kafka 4.4 from the archive of a cluster with ZooKeeper alone: the old one is gone before."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kbackup.archive import layout
from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.metadata_log.image import read_metadata_log
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from scripts.dev.zookeeper import MigratingCluster
from tests.integration.conftest import CountedSpark, Kbackup, Outcome
from tests.interop.migration import content
from tests.interop.migration.clusters import Filled, words
from tests.interop.migration.fresh import CONSUMER, LISTED, FreshCluster, listed
from tests.support.java import Java
from tests.support.kafka_raw import new_producer_id
from tests.support.secrets import Watch, know, make
from tests.support.visits import crawl, visit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPER_USERS = {"super.users": "User:ANONYMOUS;User:kbackup"}
GROUP = "group with %2F: and %"  # of which alice has the right to read
RECORDS = {f"record {n}" for n in range(10)}
READ_BEFORE = 6
KBACKUP = {"user": "kbackup", "password": make("kbackup's password"), "mechanism": "SCRAM-SHA-512"}
UNLIMITED = dict.fromkeys(
    ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"), 1e9
)
SCRAM_USERS: list[dict[str, Any]] = [*content.SCRAM_USERS, KBACKUP | {"iterations": 4096}]
QUOTAS = [*content.QUOTAS, content.quota(UNLIMITED, user="kbackup")]


@dataclass
class Moved:
    """The old cluster, as it was archived, and what Kafka's own tools list of it and of the fresh one."""

    fresh: FreshCluster
    kbackup: Kbackup
    folder: Path
    java: Java
    listed: tuple[dict[str, list[str]], dict[str, list[str]]]
    read: set[str]
    outcomes: dict[str, Outcome]

    @property
    def metadata(self) -> Metadata:
        key, folder = f"file:{self.folder}/key", str(self.folder / "archive")
        store = open_store(folder, key=key, key_class=layout.key_class)
        archive = open_archive(store)
        assert archive.head is not None
        return archive.metadata(archive.head)


@pytest.fixture(scope="module")
def moved(java: Java, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    folder = tmp_path_factory.mktemp("moved")
    (folder / "key").write_text(generate_key())
    (folder / "key").chmod(0o600)
    kbackup = Kbackup(CountedSpark(spark), folder / "kbackup.toml")
    archive, plain = str(folder / "archive"), str(folder / "plain")
    login = folder / "alice.properties"
    outcomes = {}
    with MigratingCluster(properties=SUPER_USERS) as old:
        everything = content.everything([0]) | {"scram_users": SCRAM_USERS, "client_quotas": QUOTAS}
        Filled(old, java, ZooKeeperOptions(connect=old.zookeeper_connect)).fill(everything)
        _produce(old)
        login.write_text(_java_login(old.bootstrap_of("SASL")))
        read = _consume(java, old.bootstrap_of("SASL"), login, READ_BEFORE)
        assert new_producer_id(old.bootstrap) < 1000
        _configure(kbackup, folder, "source", old.bootstrap_of("SASL"), old.zookeeper_connect)
        outcomes["backup"] = kbackup("backup", "-a", archive)
        outcomes["archive"] = kbackup("migrate", "archive", "-a", plain, "--encryption-key", "")
        before = listed(java, old.bootstrap, old.bootstrap_of("SASL"), login)
    _configure(kbackup, folder, "source", "127.0.0.1:1")
    with FreshCluster(kbackup, archive) as fresh:
        outcomes["bootstrap"] = fresh.bootstrapped
        _configure(kbackup, folder, "target", fresh.bootstrap_of("SASL"))
        outcomes["restore"] = kbackup("restore", archive, "--with", "acls,configs,quotas")
        after = listed(java, fresh.bootstrap, fresh.bootstrap_of("SASL"), login)
        moved = Moved(fresh, kbackup, folder, java, (before, after), read, outcomes)
        for what, secret in _secrets(moved.metadata).items():
            know(what, secret)
        yield moved


def _produce(cluster: MigratingCluster) -> None:
    producer = Producer(cluster.client())
    for record in RECORDS:
        producer.produce("orders", record.encode(), key=record.encode())
    assert producer.flush(30) == 0


def _java_login(bootstrap: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    password = content.USERS["alice"]
    return (
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="alice" password="{password}";\n'
    )


def _consume(java: Java, bootstrap: str, login: Path, count: int) -> set[str]:
    """Return the records that the console consumer reads as alice, in the group."""
    output = java.run(
        CONSUMER,
        *("--bootstrap-server", bootstrap, "--command-config", str(login), "--topic", "orders"),
        *("--group", GROUP, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000"),
    )
    return set(output.splitlines())


def _configure(kbackup: Kbackup, folder: Path, section: str, bootstrap: str, zookeeper: str = "") -> None:
    """kbackup comes as a user of the clusters, with the same password in both."""
    lines = [
        f'encryption.key = "file:{folder}/key"',
        f"[{section}]",
        f'"bootstrap.servers" = "{bootstrap}"',
        '"security.protocol" = "SASL_PLAINTEXT"',
        '"sasl.mechanism" = "SCRAM-SHA-512"',
        f'"sasl.username" = "{KBACKUP["user"]}"',
        f'"sasl.password" = "{KBACKUP["password"]}"',
        f'"zookeeper.connect" = "{zookeeper}"' if zookeeper else "",
    ]
    kbackup.config.write_text("\n".join(lines))


def _secrets(metadata: Metadata) -> dict[str, bytes]:
    """The stored keys of users and the HMACs of tokens, by what they are."""
    made = {}
    for user in metadata.scram_users or ():
        for name in ("salt", "stored_key", "server_key"):
            coded = getattr(user, name)
            assert coded, (user.user, name)
            made[f"the {name} of {user.user} for {user.mechanism}"] = base64.b64decode(coded)
    for token in metadata.delegation_tokens or ():
        assert token.hmac
        made[f"the HMAC of token {token.id}"] = base64.b64decode(token.hmac)
    return made


def test_every_step_says_that_it_is_done(moved: Moved) -> None:
    codes = {name: outcome.code for name, outcome in moved.outcomes.items()}
    assert codes == {"backup": 0, "archive": 0, "bootstrap": 0, "restore": 0}, moved.outcomes
    told = moved.outcomes["bootstrap"].document
    counts = {name: told[name] for name in ("scram_users", "client_quotas", "delegation_tokens", "expired")}
    assert counts == {
        "scram_users": len(SCRAM_USERS),
        "client_quotas": len(QUOTAS),
        "delegation_tokens": len(content.TOKENS),
        "expired": [],
    }


def test_kafkas_own_tools_list_the_same(moved: Moved) -> None:
    old, fresh = moved.listed
    assert old.keys() == {*LISTED, "tokens"}
    for name, lines in old.items():
        assert lines, name
        assert fresh[name] == lines, name


@pytest.mark.parametrize(
    "user", [u for u in SCRAM_USERS if u["user"].isascii()], ids=lambda u: f"{u['user']} {u['mechanism']}"
)
def test_users_log_in_with_their_old_passwords(moved: Moved, user: dict[str, Any]) -> None:
    """Kafka's SCRAM lets no name log in that is not ASCII; such a user's keys are compared below."""
    login = moved.fresh.scram(user["user"], user["password"], user["mechanism"])
    assert len(AdminClient(login).list_topics(timeout=30).brokers) == 1


def test_another_password_is_refused(moved: Moved) -> None:
    with pytest.raises(KafkaException):
        AdminClient(moved.fresh.scram("alice", "another", "SCRAM-SHA-256")).list_topics(timeout=2)


def test_a_java_consumer_goes_on_where_its_group_stood(moved: Moved) -> None:
    """With the old password, by the rights that the old ACLs gave."""
    assert len(moved.read) == READ_BEFORE
    (group,) = moved.outcomes["restore"].document["groups"]
    assert (group["source"], group["status"]) == (GROUP, "applied")
    bootstrap, login = moved.fresh.bootstrap_of("SASL"), moved.folder / "alice.properties"
    rest = _consume(moved.java, bootstrap, login, len(RECORDS) - READ_BEFORE)
    assert rest == RECORDS - moved.read


def test_no_producer_gets_an_id_of_the_old_cluster(moved: Moved) -> None:
    old = moved.metadata.next_producer_id
    assert old
    assert moved.outcomes["bootstrap"].document["next_producer_id"] == old
    assert new_producer_id(moved.fresh.bootstrap) >= old


def test_the_metadata_log_says_what_the_archive_says(moved: Moved) -> None:
    """Entity by entity, secrets included."""
    archived, fresh = moved.metadata, read_metadata_log(moved.fresh.metadata_log_dir)
    assert archived.sources["scram_users"] == "zookeeper"
    for part in ("acls", "scram_users", "client_quotas"):
        assert words(getattr(archived, part)), part
        assert words(getattr(fresh, part)) == words(getattr(archived, part)), part
    assert words(fresh.delegation_tokens, "hmac") == words(archived.delegation_tokens, "hmac")
    configs = [c for c in fresh.broker_configs or () if c.name != "min.insync.replicas"]  # set by Kafka 4
    assert words(configs) == words(archived.broker_configs)
    old, new = (words([t for t in topics or () if not t.internal], "id") for topics in (archived.topics, fresh.topics))
    assert new == old


def test_secrets_are_nowhere_else(moved: Moved) -> None:
    """Neither in what the commands say, nor on pages, nor in the objects of the encrypted and the plain archive."""
    watch, metadata = Watch(), moved.metadata
    secrets = _secrets(metadata)
    assert len(secrets) == 3 * len(SCRAM_USERS) + len(content.TOKENS)
    for what, secret in secrets.items():
        watch.know(what, secret)
    for user in ("alice", content.ODD_USER):  # other passwords are so short that they would be found everywhere
        watch.know(f"the password of {user}", content.USERS[user])
    for name, outcome in moved.outcomes.items():
        watch.look_at(name, f"{outcome.err}{outcome.document}")
    for archive in ("archive", "plain"):
        assert any((moved.folder / archive).iterdir())
        watch.look_into(moved.folder / archive)
    key, folder = f"file:{moved.folder}/key", str(moved.folder / "archive")
    store = open_store(folder, key=key, key_class=layout.key_class)
    pages = {address: html for address, _, html in crawl(visit(store), of_a_kind=3)}
    assert any("SCRAM users" in html for html in pages.values())
    for address, html in pages.items():
        watch.look_at(address, html)
    assert watch.hits == []
    left_out = {e["what"] for e in moved.outcomes["archive"].document["not_carried"] if e["reason"] == "secret"}
    assert {"secrets of SCRAM users", "secrets of delegation tokens"} <= left_out
