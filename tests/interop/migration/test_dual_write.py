"""While a migration writes both sides: what is archived, and what `verify` says before and after somebody tampers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from kazoo.client import KazooClient

from kbackup.metadata.entities import TopicMetadata
from kbackup.migrate.metadata_log.image import read_metadata_log
from tests.interop.migration import content
from tests.interop.migration.clusters import DualWrite, words
from tests.interop.migration.conftest import DOWN


def test_a_controller_that_is_down_is_named(dual: DualWrite) -> None:
    cluster = dual.filled.cluster
    urls = {each: cluster.metrics_url(each) for each in cluster.controllers}
    options = [option for url in urls.values() for option in ("--metrics-url", url)]
    code, report = dual.migrate("status", *options)
    assert (code, report["state"], report["certain"], report["disagreements"]) == (0, "dual write", True, [])
    metrics = [each["says"] for each in report["witnesses"] if each["witness"] == "metrics"]
    assert [says.partition(" at ")[0] for says in metrics] == ["the active controller", "a standby controller"]
    (unread,) = report["not_looked_at"]
    assert unread["why"].startswith(f"{urls[DOWN]} gave no metrics: ")
    _, report = dual.migrate("rollback", *options)
    signs = {address: sign for address, sign in report["controllers"].items() if "/" not in address}
    assert signs == dict(zip(cluster.quorum.split(","), ("answers", "answers", "stopped"), strict=True))
    assert {guard["name"]: guard["holds"] for guard in report["guards"]}["controllers stopped"] is False


def test_all_sides_say_the_same_and_are_archived(dual: DualWrite) -> None:
    code, archived = dual.migrate("archive", "--label", "dual-write")
    assert (code, archived["warnings"]) == (0, [])
    code, report = dual.migrate("verify", "--lag", "60s")
    assert (code, report["differences"], report["restore_point"]) == (0, [], 1)
    assert [side["name"] for side in report["sides"]] == ["brokers", "zookeeper", "metadata log", "restore point 1"]
    for side in report["sides"]:
        assert side["outdated"] == ""
        assert side["entities"]["ACLs"] == len(content.ACLS)


def test_the_archive_is_what_the_migration_wrote_into_the_log(dual: DualWrite) -> None:
    log, metadata = read_metadata_log(dual.filled.cluster.metadata_log()), dual.metadata()
    assert {"topics", "acls", "scram_users", "client_quotas", "delegation_tokens", "znodes"} <= metadata.sources.keys()
    for part in ("acls", "scram_users", "client_quotas", "broker_configs"):
        assert words(getattr(metadata, part)) == words(getattr(log, part)), part
    assert words(metadata.delegation_tokens, "hmac") == words(log.delegation_tokens, "hmac")
    ours, theirs = (_topics(topics) for topics in (metadata.topics, log.topics))
    assert ours == theirs
    assert "orders" in ours
    assert [znode.path for znode in metadata.znodes or ()] == ["/controller", "/controller_epoch", "/migration"]


def test_secrets_are_nowhere_else(dual: DualWrite) -> None:
    code, archived = dual.migrate("archive", encrypted=False)
    assert code == 0
    assert "secrets of SCRAM users" in {n["what"] for n in archived["not_carried"] if n["reason"] == "secret"}
    texts = [t for u in dual.metadata().scram_users or () for t in (u.salt, u.stored_key, u.server_key) if t]
    secrets = [part for text in texts for part in (text.encode(), base64.b64decode(text))]
    secrets += [password.encode() for password in content.USERS.values() if password != "a name"]
    assert len(secrets) > 20
    stored = [
        path.read_bytes()
        for encrypted in (True, False)
        for path in dual.archive(encrypted).rglob("*")
        if path.is_file()
    ]
    for data in ["".join(dual.printed).encode(), *stored]:
        assert not [secret for secret in secrets if secret in data]


def test_each_difference_is_named_when_zookeeper_is_tampered_with(dual: DualWrite) -> None:
    """Beside Kafka's back: no controller and no broker hears of it."""
    client = KazooClient(dual.filled.zookeeper.connect)
    client.start(timeout=30)
    try:
        _set(client, "/kafka-acl/Topic/orders", lambda znode: znode | {"acls": []})
        _set(client, "/config/topics/orders", lambda znode: _config(znode, "segment.bytes", "2097152"))
        _set(client, "/config/clients/app%201", lambda znode: _config(znode, "producer_byte_rate", "5"))
        _set(client, "/config/users/alice", lambda znode: _without(znode, "SCRAM-SHA-256"))
        _set(client, "/config/brokers/0", lambda znode: _config(znode, "log.cleaner.threads", "3"))
    finally:
        client.stop()
        client.close()
    code, told = dual.migrate("verify", "--lag", "2s")
    assert code == 13
    assert told["looks"] > 1
    found = [each for each in told["differences"] if each["sides"] == ["zookeeper", "metadata log"]]
    assert [each["text"] for each in found] == [
        "ACLs: User:alice allow read from * on literal topic orders: in metadata log, not in zookeeper",
        "ACLs: User:b o%b deny write from 10.0.0.1 on literal topic orders: in metadata log, not in zookeeper",
        "SCRAM users: alice SCRAM-SHA-256: in metadata log, not in zookeeper",
        "broker configs: log.cleaner.threads of broker 0: log.cleaner.threads is 3 in zookeeper, 2 in metadata log",
        "client quotas: client-id 'app 1': producer_byte_rate is 5.0 in zookeeper, 1000000000.0 in metadata log",
        "topics: orders: segment.bytes is 2097152 in zookeeper, 1048576 in metadata log",
    ]


def _topics(topics: Iterable[TopicMetadata] | None) -> dict[str, tuple[Any, ...]]:
    """Without internal ones, which come with the first consumer group; ids in one alphabet."""
    return {
        t.name: (t.id.translate(str.maketrans("+/", "-_")), t.partitions, t.replicas, t.configs)
        for t in topics or ()
        if not t.internal
    }


def _set(client: Any, path: str, change: Any) -> None:
    data, _ = client.get(path)
    client.set(path, json.dumps(change(json.loads(data))).encode())


def _config(znode: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    assert name in znode["config"]
    return znode | {"config": znode["config"] | {name: value}}


def _without(znode: dict[str, Any], name: str) -> dict[str, Any]:
    return znode | {"config": {key: value for key, value in znode["config"].items() if key != name}}
