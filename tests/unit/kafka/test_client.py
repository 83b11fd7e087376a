"""Errors and hints made of a client's errors; and tokens from a function of the user's."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kbackup.errors import ClusterError, UnreachableError, UsageError
from kbackup.kafka.client import Connection, with_admin
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.errors import LoginError
from kbackup.kafka.control.tokens import user_tokens
from kbackup.kafka.oauth import OAuthToken, Tokens
from kbackup.kafka.produce import BlockProducer
from kbackup.native.contract import CommittedProgress
from kbackup.native.property_check import CALLBACK
from kbackup.native.waiting import Waiting
from kbackup.types import TopicPartition

SOURCE = {"bootstrap.servers": "b:1"}
ALERT = "ssl://b:1/bootstrap: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate"


@pytest.fixture
def connection() -> Connection:
    return Connection(SOURCE, "source")


@pytest.mark.parametrize(
    ("code", "doing", "right"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "reading configs of topic t", "DescribeConfigs on the topic"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "reading t-0 from 0 to 9", "Read on the topic"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "delivering the record of t-0", "Write on the topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "setting offsets of group g", "Read on the group"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "listing consumer groups", "Describe on the cluster"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "starting transactions", "Write on transactional ids"),
    ],
)
def test_denials_name_the_missing_right(code: int, doing: str, right: str, connection: Connection) -> None:
    error = connection.error(KafkaError(code), doing)
    assert isinstance(error, UnreachableError)
    assert f"source cluster at b:1 denied access {doing}" in error.message
    assert f"(it takes {right}" in error.message
    assert "security.md" in error.hint


@pytest.mark.parametrize(
    ("heard", "hint"),
    [
        (KafkaError(KafkaError._AUTHENTICATION, "invalid credentials"), "sasl.mechanism"),
        (KafkaError(KafkaError._SSL, "certificate verify failed"), "ssl.ca.location"),
        (KafkaError(KafkaError._TRANSPORT, ALERT), "ssl.ca.location"),
        (KafkaError(KafkaError._SSL, "SSL routines::wrong version number"), "PLAINTEXT or SASL_PLAINTEXT"),
    ],
)
def test_denied_access_names_the_error_of_the_client(heard: KafkaError, hint: str, connection: Connection) -> None:
    assert not connection.locked_out
    connection.heard(heard)
    connection.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert connection.locked_out
    error = connection.error(KafkaError(KafkaError._TRANSPORT), "")
    assert isinstance(error, UnreachableError)
    assert error.message == f"source cluster at b:1 denied access: {heard.str()}"
    assert hint in error.hint


def test_connections_without_an_answer_are_said_in_plain_words(connection: Connection) -> None:
    connection.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "0/2 brokers are down"))
    error = connection.error(KafkaError(KafkaError._TRANSPORT), "")
    assert error.message == (
        "source cluster at b:1 did not answer: it accepts connections, but answers none as a broker does"
    )
    assert error.hint.startswith("check security.protocol")


def test_timeouts_are_not_denied_access(connection: Connection) -> None:
    connection.heard(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    assert not connection.locked_out
    error = connection.error(KafkaError(KafkaError._TIMED_OUT), "")
    assert "did not answer" in error.message
    assert "connection refused" in error.message
    assert isinstance(connection.error(KafkaError(KafkaError.INVALID_REQUEST), ""), ClusterError)


def test_partitions_without_leaders_are_no_answer(connection: Connection) -> None:
    error = connection.error(KafkaError(KafkaError._NOENT, "No leaders found"), "asking for offsets of t-0")
    assert isinstance(error, UnreachableError)
    assert "did not answer asking for offsets of t-0: No leaders found" in error.message


@pytest.mark.parametrize(("doing", "named"), [("starting transactions", True), ("describing topic t", False)])
def test_transactions_that_do_not_start_name_their_replication_factor(
    doing: str, named: bool, connection: Connection
) -> None:
    """A cluster with fewer brokers than that can't make `__transaction_state`, and gives no other answer."""
    error = connection.error(KafkaError(KafkaError._TIMED_OUT), doing)
    assert isinstance(error, UnreachableError)
    assert "check that it is running" in error.hint
    assert ("transaction.state.log.replication.factor" in error.hint) is named


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module `ours`, to put functions into."""
    module = ModuleType("ours")
    monkeypatch.setitem(sys.modules, "ours", module)
    return module


@pytest.mark.exhaustive
def test_a_token_is_renewed_while_nobody_polls(ours: ModuleType) -> None:
    """From a thread of librdkafka's: a client may wait for a transaction, or for nothing."""
    renewed = threading.Event()
    given: list[float] = []

    def give(config: str) -> tuple[str, float]:
        given.append(time.time())
        if len(given) > 1:
            renewed.set()
        return "t", time.time() + 2

    vars(ours)["give"] = give
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    connection = Connection({"bootstrap.servers": "127.0.0.1:9", **login, CALLBACK: "ours:give"}, "source")
    from kbackup.native.client import Handle

    handle = Handle(connection, 1, {})
    assert renewed.wait(60)
    handle.close()


def test_a_callback_is_no_property_of_librdkafka(ours: ModuleType) -> None:
    until = time.time() + 100
    vars(ours)["give"] = lambda config: ("t", until, "me", {"cluster": config})
    connection = Connection({**SOURCE, CALLBACK: "ours:give"}, "source")
    assert CALLBACK not in connection.settings({})
    assert connection.config({})["oauth_cb"]("x") == ("t", until, "me", {"cluster": "x"})
    assert connection.tokens is not None
    assert connection.tokens("x") == OAuthToken("t", until, "me", {"cluster": "x"})


def test_admin_properties_are_those_of_the_admin_client() -> None:
    """Real clients are made: librdkafka takes no property that it does not know."""
    carried = with_admin({**SOURCE, "client.id": "reads"}, {**SOURCE, "client.id": "asks"})
    connection = Connection(carried, "source")
    assert connection.properties == {**SOURCE, "client.id": "reads"}
    assert connection.consumer({"group.id": "none"}) is not None
    assert Cluster(carried, "source").connection.properties == {**SOURCE, "client.id": "asks"}
    assert Cluster(SOURCE, "source").connection.properties == SOURCE


@pytest.mark.parametrize("name", ["ours", "ours:", ":give", "ours:nothing", "no.such.module:give", "ours:number", ""])
def test_a_callback_that_is_not_there(name: str, ours: ModuleType) -> None:
    vars(ours)["number"] = 1
    with pytest.raises(UsageError, match=rf"\[target\] {CALLBACK} = ") as raised:
        Tokens(name, "target")
    assert "module:function" in raised.value.hint


@pytest.mark.parametrize(
    "answer", [None, "token", ("t",), ("", 2e9), (1, 2e9), ("t", "soon"), ("t", 1.0), (1, 2, 3, 4, 5)]
)
def test_an_answer_that_is_no_token(answer: object, ours: ModuleType) -> None:
    vars(ours)["give"] = lambda config: answer
    tokens = Tokens("ours:give", "source")
    with pytest.raises(ValueError, match="its"):
        tokens("hush")
    assert tokens.failure.startswith("ours:give raised ValueError: its ")


def test_a_failure_is_told_without_what_the_token_is_made_from(ours: ModuleType) -> None:
    def give(config: str) -> OAuthToken:
        if config == "good":
            return OAuthToken("t", time.time() + 9)
        raise ConnectionError(f"401 for https://idp/?secret={config}")

    vars(ours)["give"] = give
    connection = Connection({**SOURCE, CALLBACK: "ours:give", "sasl.oauthbearer.config": "hush"}, "source")
    source = user_tokens(connection)
    assert source is not None
    with pytest.raises(LoginError) as raised:
        source()
    error = connection.error(raised.value.kafka_error(), "")
    assert isinstance(error, UnreachableError)
    assert error.message == (
        "no token to log in to the source cluster at b:1: ours:give raised ConnectionError: 401 for https://idp/?secret=********"
    )
    assert raised.value.__suppress_context__
    assert connection.tokens is not None
    connection.tokens("good")
    assert connection.tokens.failure == ""


# A call that never comes back is given up, and its producer with it.


def test_a_call_that_ends() -> None:
    done: list[int] = []
    assert Waiting(lambda: done.append(1)).ended(60)
    assert done == [1]


def test_errors_of_a_call_are_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Waiting(fail).ended(60)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_call_that_does_not(released: threading.Event) -> None:
    assert not Waiting(released.wait).ended(0.01)


def test_a_producer_whose_progress_is_never_taken(released: threading.Event) -> None:
    class Deaf:
        """A sink that hangs, and must not be asked for anything else then."""

        def begin(self) -> None: ...

        def send_progress(self, *_: object) -> None:
            released.wait()

    deaf: Any = Deaf()
    servers = {"bootstrap.servers": "nowhere:1"}
    producer = BlockProducer(servers, "id", "group", sink=lambda *_: deaf, progress_seconds=0.01)
    with pytest.raises(ClusterError, match="did not take the progress"):
        producer.commit_alone({TopicPartition("t", 0): CommittedProgress(5, "note")})
    producer.close()
