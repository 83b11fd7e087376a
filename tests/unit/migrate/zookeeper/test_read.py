"""Entities from recorded znodes; znodes that are broken, denied or missing."""

from __future__ import annotations

import json
import sys

import pytest

from kbackup.errors import CorruptError, MismatchError, UsageError
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    DelegationToken,
    Feature,
    Listener,
    NotCarried,
    Registration,
    TopicMetadata,
    Znode,
)
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.zookeeper.read import parse
from kbackup.migrate.zookeeper.session import Tree, open_session, read_tree
from tests.support.migration_states import FakeZooKeeper
from tests.unit.migrate.zookeeper.znodes import recorded, with_znodes

USER = "/config/users/b%20o%25b"
WITHOUT_HMACS = NotCarried(
    part="delegation_tokens",
    what="secrets of delegation tokens",
    reason="not supported",
    why="ZooKeeper doesn't hold the HMACs",
)


def test_topics_with_ids_replicas_and_configs_without_those_that_wait_for_deletion() -> None:
    reading = parse(with_znodes({}))
    assert reading.cluster_id == "rLZdQ7n2RjelGshucQEMSw"
    assert reading.topics == (
        TopicMetadata(
            name="orders",
            id="I9jn4E4hS3SFKDOFQxIrZQ",
            partitions=2,
            replication_factor=2,
            internal=False,
            configs={"cleanup.policy": "compact,delete", "segment.bytes": "1048576"},
            replicas=((0, 1), (1, 0)),
        ),
    )
    assert reading.deletions == ("Team-A.events_1",)


def test_quotas_of_users_clients_ips_and_defaults_with_decoded_names() -> None:
    quotas = parse(with_znodes({})).client_quotas or ()
    assert {tuple(sorted(quota.entity.items())): quota.quotas for quota in quotas} == {
        (("user", "alice"),): {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0},
        (("user", "b o%b"),): {"request_percentage": 12.5},
        (("user", None),): {"controller_mutation_rate": 0.5},
        (("client-id", "app 1"),): {"producer_byte_rate": 1e9},
        (("client-id", None),): {"consumer_byte_rate": 3e10},
        (("client-id", "app 1"), ("user", "b o%b")): {"producer_byte_rate": 17.0},
        (("client-id", None), ("user", "b o%b")): {"producer_byte_rate": 18.0},
        (("client-id", "app 1"), ("user", None)): {"producer_byte_rate": 19.0},
        (("client-id", None), ("user", None)): {"producer_byte_rate": 20.0},
        (("ip", "10.1.2.3"),): {"connection_creation_rate": 5.0},
        (("ip", None),): {"connection_creation_rate": 50.0},
    }


def test_credentials_beside_quotas_and_a_user_called_default() -> None:
    users = parse(with_znodes({})).scram_users or ()
    assert {(user.user, user.mechanism, user.iterations) for user in users} == {
        *((name, "SCRAM-SHA-256", 4096) for name in ("alice", "b o%b", "<default>")),
        *((name, "SCRAM-SHA-512", 8192) for name in ("alice", "b o%b", "<default>", "åsa/ops")),
    }
    alice = next(user for user in users if (user.user, user.iterations) == ("alice", 4096))
    assert alice.salt == "MWh5aWhjOG84YXFwNGY2cWNtNHJzaHVmbTc="
    assert alice.stored_key == "gX8vJGM1T6/6T7EPdYyhaKvzQrbs0LQGhig9WJO0whk="
    assert alice.server_key == "sDTOPYRjuHOj18erhh+Vc8NzrRiP0DcKE2d41bPFJnk="


def test_acls_of_every_kind_whose_names_are_not_encoded() -> None:
    acls = parse(with_znodes({})).acls or ()
    assert len(acls) == 12
    common = {"principal": "User:alice", "host": "*", "permission": "allow"}
    assert {
        Acl(resource="group", name="group with %2F: and %", pattern="literal", operation="read", **common),
        Acl(resource="user", name="User:b o%b", pattern="literal", operation="create_tokens", **common),
        Acl(resource="transactional_id", name="tx 1", pattern="literal", operation="write", **common),
        Acl(resource="delegation_token", name="a token", pattern="literal", operation="describe", **common),
        Acl(resource="group", name="åäö", pattern="prefixed", operation="delete", **common),
        Acl(resource="cluster", name="kafka-cluster", pattern="literal", operation="idempotent_write", **common),
    } < set(acls)


def test_tokens_whose_principals_are_encoded() -> None:
    reading = parse(with_znodes({}))
    assert reading.delegation_tokens is not None
    assert reading.delegation_tokens[0] == DelegationToken(
        id="IkNkPzM0Qy6mKkUV5CRPcA",
        owner="User:alice",
        requester="User:alice",
        renewers=("User:alice", "User:b o%b"),
        issued_at=1795350187565,
        expires_at=1795436587565,
        max_at=1795954987565,
    )
    assert reading.not_carried == (WITHOUT_HMACS,)


def test_the_cluster_of_itself() -> None:
    reading = parse(
        with_znodes(
            {
                "/feature": '{"features":{"a.version":{"max_version_level":3},"b.version":2},"version":1,"status":1}',
                "/latest_producer_id_block": '{"version":1,"broker":0,"block_start":"1000","block_end":"1999"}',
                "/brokers/ids/7": '{"endpoints":["PLAINTEXT://[::1]:9092"],"rack":"r 1","version":3}',
                "/migration": "{}",
            }
        )
    )
    assert reading.registrations is not None
    assert [each.id for each in reading.registrations] == [0, 7]
    assert reading.registrations[0].listeners[2] == Listener(
        name="SASL", host="127.0.0.1", port=28277, security_protocol="SASL_PLAINTEXT"
    )
    assert reading.registrations[1] == Registration(
        id=7,
        role="broker",
        listeners=(Listener(name="PLAINTEXT", host="::1", port=9092, security_protocol="PLAINTEXT"),),
        rack="r 1",
        alive=True,
    )
    assert reading.features == (Feature(name="a.version", level=3), Feature(name="b.version", level=2))
    assert reading.next_producer_id == 2000
    assert reading.znodes is not None
    assert [znode.path for znode in reading.znodes] == ["/controller", "/controller_epoch", "/migration"]
    assert reading.znodes[1:] == (Znode(path="/controller_epoch", content="1"), Znode(path="/migration", content="{}"))


def test_configs_of_brokers_hide_what_is_encrypted() -> None:
    encoded = "keyFactoryAlgorithm:PBKDF2WithHmacSHA512,encryptedPassword:AAAA,salt:BBBB,iterations:4096"
    changed = with_znodes({"/config/brokers/0": '{"version":1,"config":{"ssl.key.password":"' + encoded + '"}}'})
    reading = parse(changed)
    assert [entry.what for entry in reading.not_carried] == [
        "secrets of delegation tokens",
        "values of sensitive broker configs",
    ]
    assert reading.broker_configs == (
        BrokerConfig(broker=0, name="ssl.key.password", value=None),
        BrokerConfig(broker=None, name="log.retention.ms", value="-1"),
        BrokerConfig(broker=None, name="message.max.bytes", value="2000000"),
    )


def test_a_cluster_that_never_had_anything() -> None:
    reading = parse(Tree({"/cluster/id": recorded()["/cluster/id"]}))
    for part in ("topics", "acls", "scram_users", "client_quotas", "broker_configs", "delegation_tokens"):
        assert getattr(reading, part) == ()
    assert reading.next_producer_id is None
    assert reading.not_carried == ()


@pytest.mark.parametrize(
    ("path", "content", "part", "why"),
    [
        ("/brokers/topics/orders", b"\xff", "topics", "holds no JSON object"),
        ("/brokers/topics/orders", "[" * 100_000, "topics", "holds no JSON object"),
        ("/brokers/topics/orders", '{"partitions":{"1":[0]}}', "topics", "numbered from 0 without gaps"),
        ("/brokers/topics/orders", '{"partitions":{"0":["a"]}}', "topics", "no ids of brokers"),
        ("/brokers/topics/a b", '{"partitions":{}}', "topics", "is not named as a topic can be"),
        ("/config/topics/orders", '{"config":{"a":1}}', "topics", "has a config that isn't text by name"),
        (USER, '{"config":{"SCRAM-SHA-256":"salt=x"}}', "SCRAM users", "a credential for SCRAM-SHA-256"),
        (USER, '{"config":{"producer_byte_rate":"nan"}}', "client quotas", "that is no number"),
        ("/config/clients/%zz", '{"config":{"a":"1"}}', "client quotas", "not %-encoded UTF-8: %zz"),
        ("/config/clients/%ff", '{"config":{"a":"1"}}', "client quotas", "not %-encoded UTF-8: %ff"),
        ("/config/brokers/x", "{}", "broker configs", "is not named by the id of a broker"),
        ("/kafka-acl/Topic/orders", '{"acls":[1]}', "ACLs", "has an ACL that is no JSON object"),
        ("/kafka-acl/Other/orders", '{"acls":[{}]}', "ACLs", "has an unknown resource: Other"),
        ("/delegation_token/tokens/x", '{"owner":"a"}', "delegation tokens", "has no renewers"),
        ("/brokers/ids/0", '{"endpoints":["x"]}', "registrations", "an endpoint of an unknown form: x"),
        ("/feature", '{"features":{"a":null}}', "features", "has no level for the feature a"),
        ("/latest_producer_id_block", '{"block_end":true}', "producer ids", "has no block_end"),
    ],
)
def test_a_broken_znode_is_named_and_the_others_are_read(path: str, content: bytes | str, part: str, why: str) -> None:
    whole, reading = parse(with_znodes({})), parse(with_znodes({path: content}))
    failed = {entry.what: entry for entry in reading.not_carried if entry.what != WITHOUT_HMACS.what}
    assert failed[part].reason == "failed"
    assert failed[part].why.startswith(f"znode {path} ")
    assert why in failed[part].why
    assert reading.acls == whole.acls or part == "ACLs"


def test_bytes_that_are_no_text_are_archived_as_escapes() -> None:
    znodes = parse(with_znodes({"/migration": b"\xffa"})).znodes
    assert {znode.path: znode.content for znode in znodes or ()}["/migration"] == "\\xffa"


def test_without_the_id_of_a_cluster_nothing_is_read() -> None:
    with pytest.raises(MismatchError, match="no Kafka cluster; check the chroot"):
        parse(with_znodes({"/cluster/id": None}))
    with pytest.raises(CorruptError, match="znode /cluster/id holds no JSON object"):
        parse(with_znodes({"/cluster/id": "x"}))


def test_denied_znodes_are_named() -> None:
    session = FakeZooKeeper({**recorded()}, denied={"/config/users", "/config/brokers/0", "/kafka-acl/Topic"})
    reading = parse(read_tree(session))
    assert reading.scram_users is None
    assert reading.client_quotas is None
    assert [config.broker for config in reading.broker_configs or ()] == [None, None]
    assert {acl.resource for acl in reading.acls or ()} > {"topic", "group", "cluster"}
    assert {(entry.what, entry.reason, entry.why) for entry in reading.not_carried} == {
        ("ACLs", "denied", "znode /kafka-acl/Topic may not be read"),
        ("SCRAM users", "denied", "znode /config/users may not be read"),
        ("broker configs", "denied", "znode /config/brokers/0 may not be read"),
        ("client quotas", "denied", "znode /config/users may not be read"),
        (WITHOUT_HMACS.what, WITHOUT_HMACS.reason, WITHOUT_HMACS.why),
    }


def test_znodes_that_hold_no_metadata_are_not_asked_for() -> None:
    state = "/brokers/topics/orders/partitions/0/state"
    session = FakeZooKeeper({**recorded(), state: b"{}", "/elsewhere": b""})
    tree = read_tree(session)
    assert not {state, "/elsewhere", "/brokers/topics/orders/partitions"} & set(session.asked)
    assert parse(tree) == parse(with_znodes({}))


# Connections to ZooKeeper that can't even be tried.


@pytest.mark.parametrize(("module", "user"), [("kazoo.client", ""), ("puresasl", "kafka")])
def test_a_missing_package_is_named_with_what_brings_it(
    module: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    options = ZooKeeperOptions(connect="127.0.0.1:1", user=user, password="a password")
    with pytest.raises(UsageError) as missing, open_session(options):
        pass
    package = module.partition(".")[0]
    assert str(missing.value) == (
        f"ZooKeeper can't be read without the package {package}; install it: pip install 'kafka-kbackup[zookeeper]'"
    )


@pytest.mark.parametrize(("epoch", "is_led_by_broker"), [(-1, True), (5, False)])
def test_the_controller_is_a_broker_where_it_has_no_epoch_of_kraft(epoch: int, is_led_by_broker: bool) -> None:
    controller = json.dumps({"version": 2, "brokerid": 1, "timestamp": "1", "kraftControllerEpoch": epoch})
    assert parse(with_znodes({"/controller": controller})).is_led_by_broker is is_led_by_broker
