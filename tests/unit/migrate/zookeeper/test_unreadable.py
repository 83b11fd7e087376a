"""Every znode that Kafka's migration parses: empty, null or malformed, each is named with its path."""

from __future__ import annotations

import json

import pytest

from kbackup.migrate.states import NotRead
from kbackup.migrate.znodes import read_findings, witness_of
from kbackup.migrate.zookeeper.session import Tree
from kbackup.migrate.zookeeper.unreadable import unreadable_znodes
from tests.support.migration_states import FakeZooKeeper
from tests.unit.migrate.zookeeper.znodes import recorded, with_znodes

STATE = {"version": 1, "leader": 0, "leader_epoch": 3, "controller_epoch": 1, "isr": [0, 1]}
MIGRATION = {
    **{"version": 0, "kraft_controller_id": 3000, "kraft_controller_epoch": 2},
    **{"kraft_metadata_offset": 99, "kraft_metadata_epoch": 2},
}
PARSED = {
    "/cluster/id": "",
    "/controller": "",
    "/controller_epoch": "",
    "/migration": "",
    "/brokers/ids/7": "",
    "/brokers/topics/broken": "",
    "/config/topics/broken": "[1]",
    "/config/brokers/7": "[1]",
    "/config/users/broken": "[1]",
    "/config/users/broken/clients/app": "[1]",
    "/config/clients/broken": "[1]",
    "/config/ips/10.0.0.1": "[1]",
    "/latest_producer_id_block": "[1]",
    "/feature": "",
    "/kafka-acl/Topic/broken": "[1]",
    "/kafka-acl-extended/prefixed/Topic/broken": "[1]",
    "/delegation_token/tokens/broken": "",
}
"""Each znode that is parsed, with a content that can't be."""


def texts(changes: dict[str, bytes | str | None]) -> tuple[str, ...]:
    return unreadable_znodes(with_znodes(changes), {})


def test_znodes_of_a_running_cluster_can_be_read() -> None:
    assert texts({}) == ()
    assert texts({"/migration": json.dumps(MIGRATION)}) == ()


@pytest.mark.parametrize("path", PARSED)
def test_a_znode_that_can_not_be_parsed_is_named_with_its_path(path: str) -> None:
    contents = [PARSED[path].encode(), b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"config": {"a": 1}}']
    if not path.startswith("/config/"):
        contents.append(b"{}")  # a configuration that sets nothing can be read
    named = {content[:20]: [text.partition(" ")[0] for text in texts({path: content})] for content in contents}
    assert named == {content: [path] for content in named}


@pytest.mark.parametrize(
    "path",
    ["/config/topics/orders", "/config/users/x", "/kafka-acl/Topic/x", "/latest_producer_id_block", "/kafka-acl/Topic"],
)
def test_znodes_that_kafka_takes_for_nothing_may_be_empty(path: str) -> None:
    assert texts({path: b""}) == ()


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("/migration", b"", "is empty"),
        ("/migration", '{"version": 1}', "has no version 0"),
        ("/migration", '{"version": 0, "kraft_controller_id": 1}', "has no kraft_controller_epoch"),
        ("/controller_epoch", "one", "holds no number"),
        ("/controller_epoch", None, "is not there"),
        ("/controller", '{"brokerid": "x"}', "has no brokerid"),
        ("/brokers/topics/old", '{"version": 1, "partitions": {"0": [1]}}', "has no topic_id"),
        ("/brokers/topics/odd", '{"topic_id": "short", "partitions": {"0": [1]}}', "has no topic_id"),
        ("/brokers/topics/odd", '{"partitions": {"0": ["one"]}}', "has replicas of partition 0"),
        ("/brokers/ids/one", "{}", "is not named by the id of a broker"),
        ("/config/users/u", '{"config": {"SCRAM-SHA-256": "salt=1"}}', "has a credential for SCRAM-SHA-256"),
        ("/config/users/%zz", '{"config": {"producer_byte_rate": "1"}}', "has a name that is not %-encoded"),
        (
            "/config/clients/c",
            '{"config": {"producer_byte_rate": "much"}}',
            "has a producer_byte_rate that is no number",
        ),
        ("/kafka-acl/Topic/t", '{"version": 2, "acls": []}', "has no version 1"),
        ("/kafka-acl/Topic/t", '{"version": 1, "acls": [{}]}', "has no principal"),
        ("/latest_producer_id_block", '{"block_end": "x"}', "has no block_end"),
    ],
)
def test_the_text_says_what_is_wrong(path: str, content: bytes | str | None, why: str) -> None:
    (text,) = texts({path: content})
    assert text.startswith(f"{path} {why}")


def test_a_topic_that_waits_for_its_deletion_is_not_migrated() -> None:
    assert texts({"/brokers/topics/old": b"", "/admin/delete_topics/old": b""}) == ()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"{", "holds no JSON object"),
        (json.dumps(STATE | {"isr": ["a"]}).encode(), "has an isr with others than ids of brokers"),
        (json.dumps(STATE | {"leader": None}).encode(), "has no leader"),
    ],
)
def test_the_state_of_a_partition_is_parsed(content: bytes, why: str) -> None:
    path = "/brokers/topics/orders/partitions/0/state"
    assert unreadable_znodes(with_znodes({}), {path: json.dumps(STATE).encode()}) == ()
    (text,) = unreadable_znodes(with_znodes({}), {path: content})
    assert text.startswith(f"{path} {why}")


def test_the_preflight_reads_a_cluster_with_broken_znodes() -> None:
    """No znode stops it, and each is named; what the others tell is there."""
    znodes: dict[str, object] = {**recorded(), **{path: text.encode() for path, text in PARSED.items()}}
    state = "/brokers/topics/orders/partitions/0/state"
    znodes[state] = b""
    found = read_findings(FakeZooKeeper(znodes))
    assert not isinstance(found.unreadable, NotRead)
    assert {text.split(" ")[0] for text in found.unreadable} == {*PARSED, state}
    assert found.alive >= {7}


def test_znodes_that_may_not_be_read_are_no_clean_bill() -> None:
    znodes: dict[str, object] = {**recorded()}
    found = read_findings(FakeZooKeeper(znodes, denied=["/config/users"]))
    assert isinstance(found.unreadable, NotRead)
    assert "/config/users" in found.unreadable.why


def test_an_empty_migration_znode_is_no_migration() -> None:
    broker = json.dumps({"version": 2, "brokerid": 1}).encode()
    witness = witness_of({"/controller": broker, "/migration": b""}, frozenset({1}))
    assert (witness.migration, witness.is_migration_empty) == (None, True)


def test_acls_of_an_empty_znode_are_none() -> None:
    tree = Tree({"/kafka-acl/Topic/x": b"", "/controller_epoch": b"1"})
    assert unreadable_znodes(tree, {}) == ()
