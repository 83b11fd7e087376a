"""Compare the metadata that kbackup reads from ZooKeeper with the output of Kafka's own client."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace

import pytest

from kbackup.errors import MismatchError, UnreachableError
from kbackup.metadata.entities import Reading
from kbackup.migrate.zookeeper.read import read_zookeeper
from kbackup.migrate.zookeeper.session import open_session
from tests.interop.migration import content
from tests.interop.migration.clusters import Filled, words
from tests.interop.migration.conftest import MANY

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@pytest.fixture(scope="module")
def reading(filled: Filled) -> Reading:
    return read_zookeeper(filled.zookeeper)


def test_everything_is_as_kafka_lists_it(filled: Filled, reading: Reading) -> None:
    listed = filled.listed()
    assert reading.cluster_id == listed["cluster_id"]
    assert len(reading.topics or ()) == MANY + 1  # one waits for its deletion
    assert words(reading.topics, "partitions", "replication_factor", "internal") == words(listed["topics"])
    assert words(reading.acls) == words(listed["acls"]) == words(content.ACLS)
    assert words(reading.client_quotas) == words(listed["client_quotas"]) == words(content.QUOTAS)
    assert words(reading.scram_users, "salt", "stored_key", "server_key") == words(listed["scram_users"])
    assert words(reading.broker_configs) == words(listed["broker_configs"])
    assert words(reading.delegation_tokens, "hmac") == words(listed["delegation_tokens"], "hmac")
    assert [each.id for each in reading.registrations or ()] == [0]
    assert reading.deletions == (content.DELETED,)
    assert [entry.what for entry in reading.not_carried] == ["secrets of delegation tokens"]


def test_the_credentials_belong_to_the_passwords(reading: Reading) -> None:
    users = reading.scram_users or ()
    assert len(users) == 7
    for user in users:
        assert user.salt
        hashed = _HASHES[user.mechanism]
        password = content.USERS[user.user].encode()
        salted = hashlib.pbkdf2_hmac(hashed, password, base64.b64decode(user.salt), user.iterations)
        client_key = hmac.digest(salted, b"Client Key", hashed)
        stored = hashlib.new(hashed, client_key).digest()
        assert user.stored_key == base64.b64encode(stored).decode()
        assert user.server_key == base64.b64encode(hmac.digest(salted, b"Server Key", hashed)).decode()


def test_without_a_login_the_denied_parts_are_named(filled: Filled, reading: Reading) -> None:
    public = read_zookeeper(replace(filled.zookeeper, user="", password=""))
    assert (public.topics, public.acls, public.znodes) == (reading.topics, reading.acls, reading.znodes)
    denied = {entry.what: entry.why for entry in public.not_carried if entry.reason == "denied"}
    users = "znode /config/users may not be read"
    assert denied == {
        "SCRAM users": users,
        "client quotas": users,
        "broker configs": "znode /config/brokers may not be read",
        "delegation tokens": "znode /delegation_token/tokens may not be read",
    }
    for part in ("scram_users", "client_quotas", "broker_configs", "delegation_tokens"):
        assert getattr(public, part) is None


def test_a_denied_znode_is_an_error_where_it_is_needed(filled: Filled) -> None:
    with (
        open_session(replace(filled.zookeeper, user="", password="")) as session,
        pytest.raises(UnreachableError, match="doesn't let clients that don't log in read znode /config/users;"),
    ):
        session.get(["/controller", "/config/users"])


def test_a_wrong_password_is_refused(filled: Filled) -> None:
    with pytest.raises(UnreachableError, match="refuses the login of the user kafka; check") as refused:
        read_zookeeper(replace(filled.zookeeper, password="something else"))
    assert refused.value.exit_code == 14


def test_another_chroot_has_no_cluster(filled: Filled) -> None:
    servers = filled.zookeeper.servers
    with pytest.raises(MismatchError, match="so no Kafka cluster; check the chroot"):
        read_zookeeper(replace(filled.zookeeper, connect=f"{servers}/kafka/two"))
    with pytest.raises(MismatchError, match="so no Kafka cluster; check the chroot"):
        read_zookeeper(replace(filled.zookeeper, connect=servers))
