"""A fresh cluster of Kafka 4.3 from the archive of another cluster alone."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kbackup.archive.reader import open_archive
from kbackup.kafka.metadata_log.entities import read_metadata_log
from kbackup.metadata.reading import Reading
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from tests.integration.conftest import CountedSpark, Kbackup, Outcome
from tests.interop.metadata_log.cluster import KAFKA_3, KAFKA_4, Cluster
from tests.support.java import compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USERS = (("b o%b", "p aäss%wörd", "SCRAM-SHA-512"), ("alice", "alice's", "SCRAM-SHA-256"))
ENTITIES = ("brokers", "users", "ips", "client-metrics")


class FreshCluster(Cluster):
    """Two nodes of 4.3. Node 1 starts with the file that `kbackup migrate bootstrap` made."""

    def __init__(self, kbackup: Kbackup, archive: str) -> None:
        self._kbackup, self._archive = kbackup, archive
        super().__init__(KAFKA_4, 2)

    def _format(self, node: int, properties: Path, *arguments: str) -> None:
        super()._format(node, properties, *arguments)
        if node:
            return
        base, out = self.metadata_log_dir / "bootstrap.checkpoint", self.folder / "out"
        told = self._kbackup(
            "migrate", "bootstrap", "-a", self._archive, "--base", str(base), "--out", str(out)
        )
        assert told.code == 0, told.err
        shutil.copy(out / "bootstrap.checkpoint", base)


@dataclass(frozen=True)
class Moved:
    """The old cluster, as it was archived, and what Kafka's own tools list of it and of the fresh one."""

    reading: Reading
    listed: tuple[dict[str, list[str]], dict[str, list[str]]]
    fresh: FreshCluster
    outcomes: tuple[Outcome, ...]
    archive: Path
    key: str
    hmac: str


@pytest.fixture(scope="module")
def moved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    folder = tmp_path_factory.mktemp("moved")
    (folder / "key").write_text(generate_key())
    (folder / "key").chmod(0o600)
    key, archive = f"file:{folder}/key", folder / "archive"
    kbackup = Kbackup(CountedSpark(spark), folder / "kbackup.toml")
    with Cluster(KAFKA_3, 2) as old, compiled("MetadataChanges.java") as java:
        plain, sasl = (old.bootstrap_of(name).split(",")[0] for name in ("CLIENT", "SASL"))
        _, hmac = java.run("MetadataChanges", "change", plain, sasl).split()
        producer = Producer(old.client(log_level=0))
        producer.produce("moved", b"a record", partition=1)
        assert producer.flush(30) == 0
        _configure(kbackup, key, source=old.bootstrap, metadata_log=old.metadata_log_dir)
        backup = kbackup("backup", "-a", str(archive))
        assert backup.code == 0, backup.err
        reading, listed = read_metadata_log(old.metadata_log_dir), _listed(old)
    with FreshCluster(kbackup, str(archive)) as fresh:
        _configure(kbackup, key, target=fresh.bootstrap)
        restored = kbackup("restore", str(archive), "--with", "acls,configs")
        assert restored.code in (0, 3), restored.err
        yield Moved(reading, (listed, _listed(fresh)), fresh, (backup, restored), archive, key, hmac)


def _configure(
    kbackup: Kbackup, key: str, source: str = "", metadata_log: Path | str = "", target: str = ""
) -> None:
    lines = [f'encryption.key = "{key}"']
    lines += [f'source."bootstrap.servers" = "{source}"'] if source else []
    lines += [f'source."metadata.log.dir" = "{metadata_log}"'] if metadata_log else []
    lines += [f'target."bootstrap.servers" = "{target}"'] if target else []
    kbackup.config.write_text("\n".join(lines))


def _listed(cluster: Cluster) -> dict[str, list[str]]:
    """What Kafka's own tools list that somebody has set; without ids, leaders and places."""

    def tool(program: str, *arguments: str) -> list[str]:
        return KAFKA_4.run(program, "--bootstrap-server", cluster.bootstrap, *arguments).splitlines()

    def configs(*entity: str) -> list[str]:
        described = tool("kafka.admin.ConfigCommand", "--describe", *entity)
        return [line for line in map(_own, described) if line]

    topics = tool("org.apache.kafka.tools.TopicCommand", "--describe", "--exclude-internal")
    found = {
        "topics": [_SHAPE.sub("", line) for line in topics if line.startswith("Topic:")],
        "acls": tool("org.apache.kafka.tools.AclCommand", "--list"),
        "quotas of users and clients": configs("--entity-type", "users", "--entity-type", "clients"),
    }
    for topic in ("grown", "moved"):
        found[f"configs of topic {topic}"] = configs("--entity-type", "topics", "--entity-name", topic)
    for entity in ENTITIES:
        found[f"configs of {entity}"] = configs("--entity-type", entity)
    return {name: sorted(lines) for name, lines in found.items()}


_SHAPE = re.compile(r"TopicId: \S+|Configs: .*")
_DEFAULT = re.compile(r"synonyms=\{(STATIC|DEFAULT)_|^\s*min\.insync\.replicas=")
"""Not set by anybody; Kafka 4 itself sets the second for all brokers when it is formatted."""


def _own(line: str) -> str:
    return "" if _DEFAULT.search(line) else line.partition(" sensitive=")[0]


def test_kafkas_own_tools_list_the_same(moved: Moved) -> None:
    old, fresh = moved.listed
    for name, lines in old.items():
        assert lines, name
        assert fresh[name] == lines, name


@pytest.mark.parametrize(("user", "password", "mechanism"), USERS)
def test_users_log_in_with_their_old_passwords(
    moved: Moved, user: str, password: str, mechanism: str
) -> None:
    metadata = AdminClient(moved.fresh.scram(user, password, mechanism)).list_topics(timeout=30)
    assert len(metadata.brokers) == 2
    with pytest.raises(KafkaException):
        AdminClient(moved.fresh.scram(user, f"{password}.", mechanism)).list_topics(timeout=3)


def test_the_metadata_logs_say_the_same(moved: Moved) -> None:
    """Entity by entity, secrets included."""
    old, fresh = moved.reading, read_metadata_log(moved.fresh.metadata_log_dir)
    for part in ("acls", "scram_users", "client_quotas", "delegation_tokens", "client_metrics"):
        assert getattr(fresh, part) == getattr(old, part), part
        assert getattr(old, part), part
    theirs = [
        c for c in fresh.broker_configs or () if c.name != "min.insync.replicas"
    ]  # Kafka 4 sets it itself
    assert tuple(theirs) == old.broker_configs

    def described(reading: Reading) -> list[tuple[Any, ...]]:
        return [
            (t.name, t.partitions, t.replication_factor, t.configs)
            for t in reading.topics or ()
            if not t.internal
        ]

    assert described(fresh) == described(old)


def test_the_archive_says_what_the_log_says(moved: Moved) -> None:
    archive = open_archive(open_store(str(moved.archive), key=moved.key))
    assert archive.head is not None
    metadata = archive.metadata(archive.head)
    log = moved.reading
    assert metadata.sources["scram_users"] == "controller log"
    for part in ("acls", "scram_users", "client_quotas", "broker_configs", "client_metrics"):
        assert set(map(repr, getattr(metadata, part))) == set(map(repr, getattr(log, part))), part
    (token,) = metadata.delegation_tokens or ()
    assert token.hmac is None, "brokers tell it to users who log in"
    assert {"secrets of delegation tokens"} <= {entry.what for entry in metadata.not_carried}


def test_secrets_are_nowhere_else(moved: Moved) -> None:
    """Neither in what the commands say, nor in the objects of the archive."""
    users = moved.reading.scram_users or ()
    texts = [text for u in users for text in (u.salt, u.stored_key, u.server_key)] + [moved.hmac]
    secrets = [password.encode() for _, password, _ in USERS]
    secrets += [part for text in texts if text for part in (text.encode(), base64.b64decode(text))]
    said = "".join(f"{o.err}{o.document}" for o in moved.outcomes).encode()
    stored = [path.read_bytes() for path in moved.archive.rglob("*") if path.is_file()]
    assert len(secrets) >= 10
    for secret in secrets:
        assert secret not in said
        assert not any(secret in each for each in stored)
