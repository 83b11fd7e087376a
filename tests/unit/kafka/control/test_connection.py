"""A connection to brokers that are old, slow, hostile, no brokers, or gone."""

from __future__ import annotations

import logging
import random
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorRequest, MetadataRequest, MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse

from kbackup.kafka.control.connection import BrokerConnection, connect
from kbackup.kafka.control.deadline import Deadline
from kbackup.kafka.control.errors import (
    ConnectionEndedError,
    LoginError,
    NoConnectionError,
    NotABrokerError,
    RefusedRequestError,
    RequestError,
    TlsError,
)
from kbackup.kafka.control.settings import settings_of
from scripts.dev.secured import Authority
from tests.unit.kafka.control.raw_broker import (
    Answer,
    Serve,
    answer_of,
    answering,
    framed,
    knows,
    listener,
    logs_in,
    request_of,
    shows_metadata,
)

HIDDEN = "not-to-be-seen"
UNSUPPORTED = 35


def opened_within(seconds: float, address: str, /, **properties: str) -> BrokerConnection:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    settings = settings_of({"bootstrap.servers": address, **named}, None)
    return connect(settings, settings.addresses[0], Deadline(seconds))


def opened(address: str, /, **properties: str) -> BrokerConnection:
    return opened_within(5.0, address, **properties)


@contextmanager
def connected(*answers: Answer, **properties: str) -> Iterator[BrokerConnection]:
    """A connection to a broker that answers so, and ends the connection."""
    with listener(answering(*answers)) as address:
        broker = opened(address, **properties)
        yield broker
        broker.close()


def metadata_of(broker: BrokerConnection, seconds: float = 5.0) -> Any:
    return broker.ask(MetadataRequest(topics=[]), deadline=Deadline(seconds))


def error_of(broker: BrokerConnection) -> RequestError:
    with pytest.raises(RequestError) as raised:
        metadata_of(broker)
    return raised.value


METADATA = answer_of(MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[]), 2)


# What a broker knows.


def test_an_old_broker_is_asked_as_it_understands() -> None:
    asked: list[tuple[int, int]] = []

    def versions(number: int, error: int = 0) -> Answer:
        def answer(request: bytes) -> bytes:
            asked.append(struct.unpack(">hh", request[:4]))
            response = ApiVersionsResponse(version=number, error_code=error, api_keys=[])
            return framed(request, bytes(response.encode()))

        return answer

    with connected(versions(0, UNSUPPORTED), versions(0)) as broker:
        assert broker.versions == {}
        assert broker.features is None
        with pytest.raises(RefusedRequestError, match="too old"):
            broker.ask(DescribeClusterRequest())
    assert asked == [(18, 3), (18, 0)]


def test_features_of_the_first_epoch_count() -> None:
    response = ApiVersionsResponse(error_code=0, api_keys=[], finalized_features_epoch=0, finalized_features=[])
    with connected(answer_of(response, 3)) as broker:
        assert broker.features == {}


def test_the_newest_version_that_both_know_is_used() -> None:
    with connected(knows(FindCoordinatorRequest, newest=99)) as broker:
        assert broker.version_of(FindCoordinatorRequest()) == FindCoordinatorRequest.max_version
        assert broker.version_of(FindCoordinatorRequest(), newest=2) == 2


def test_versions_that_dont_overlap_are_refused_before_anything_is_sent() -> None:
    with (
        connected(knows(MetadataRequest, oldest=98, newest=99)) as broker,
        pytest.raises(RefusedRequestError) as raised,
    ):
        metadata_of(broker)
    assert raised.value.kafka_error().code() == KafkaError.UNSUPPORTED_VERSION


def test_a_broker_that_refuses_the_first_request_is_named_with_its_reason() -> None:
    refused = answer_of(ApiVersionsResponse(error_code=42, api_keys=[]), 0)
    with (
        listener(answering(refused)) as address,
        pytest.raises(
            NoConnectionError, match="doesn't say which requests it knows: Broker: Invalid request"
        ) as raised,
    ):
        opened(address)
    assert address in str(raised.value)
    assert not isinstance(raised.value, LoginError)


# What is no broker, and brokers that are hostile.


def sends(data: bytes) -> Serve:
    def serve(stream: socket.socket) -> None:
        request_of(stream)
        stream.sendall(data)
        time.sleep(0.2)

    return serve


def size(number: int) -> bytes:
    return struct.pack(">i", number)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x50",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        size(256 << 20),
        size((1 << 31) - 1),
        size(-1),
        size(0),
        size(3) + b"abc",
        size(4) + size(99),
        size(8) + size(1),
        size(5) + size(1) + b"\0",
        size(12) + size(1) + b"\0\0" + b"\xff\xff\xff\xff\x7f\x7f",
    ],
    ids=[
        *("HTTP", "TLS", "SSH", "closed", "256 MB", "2 GB", "negative", "empty", "too short", "another's"),
        *("ends early", "cut off", "broken lengths"),
    ],
)
def test_what_does_not_answer_as_a_broker_is_no_broker(data: bytes) -> None:
    with listener(sends(data)) as address, pytest.raises(NotABrokerError) as raised:
        opened_within(2.0, address)
    assert str(raised.value).startswith(f"{address}: ")


def test_a_listener_that_says_nothing_is_left_in_time() -> None:
    with listener(lambda stream: time.sleep(5)) as address:
        began = time.monotonic()
        with pytest.raises(NotABrokerError, match="no answer came in time"):
            opened_within(0.5, address)
        assert time.monotonic() - began < 1.5


def slowly(stream: socket.socket, data: bytes, pause: float) -> None:
    for at in range(len(data)):
        stream.sendall(data[at : at + 1])
        time.sleep(pause)


def test_a_byte_now_and_then_keeps_nobody_waiting_beyond_the_deadline() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        slowly(stream, METADATA(request_of(stream)), 0.2)

    with listener(serve) as address:
        broker = opened(address)
        began = time.monotonic()
        with pytest.raises(ConnectionEndedError, match="in time") as raised:
            metadata_of(broker, seconds=0.7)
        assert time.monotonic() - began < 1.5
    assert raised.value.code == KafkaError._TIMED_OUT
    assert not broker.usable()


def test_an_answer_in_single_bytes_is_read() -> None:
    def serve(stream: socket.socket) -> None:
        slowly(stream, shows_metadata(request_of(stream)), 0.0)
        slowly(stream, METADATA(request_of(stream)), 0.0)

    with listener(serve) as address:
        broker = opened(address)
        assert metadata_of(broker).cluster_id == "c"
        broker.close()


def test_a_connection_may_close_at_any_byte() -> None:
    """Each time it is an error of the connection, whose request may have been carried out."""
    whole = METADATA(b"\0\0\0\0\0\0\0\x02")

    for cut in range(len(whole)):

        def serve(stream: socket.socket, cut: int = cut) -> None:
            stream.sendall(shows_metadata(request_of(stream)))
            stream.sendall(METADATA(request_of(stream))[:cut])

        with listener(serve) as address:
            broker = opened(address)
            with pytest.raises(ConnectionEndedError):
                metadata_of(broker)
            assert not broker.usable()


def test_a_size_alone_takes_no_memory() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        request_of(stream)
        stream.sendall(size(99_999_999) + size(2))
        time.sleep(2)

    with listener(serve) as address:
        broker = opened(address)
        tracemalloc.start()
        with pytest.raises(ConnectionEndedError):
            metadata_of(broker, seconds=0.5)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 5_000_000


def test_garbage_for_an_answer_is_an_error_of_the_connection() -> None:
    """Whatever the bytes are, kafka-python's own errors don't come through."""
    rng = random.Random(7)
    bodies = [rng.randbytes(rng.randrange(200)) for _ in range(300)]
    counted = iter(bodies)

    def serve(stream: socket.socket) -> None:
        stream.sendall(knows(MetadataRequest, newest=13)(request_of(stream)))
        while True:
            stream.sendall(framed(request_of(stream), next(counted)))

    with listener(serve) as address:
        read = 0
        for _ in bodies:
            broker = opened(address)
            try:
                metadata_of(broker)
                read += 1  # some bytes are a response
            except RequestError:
                pass
            broker.close()
    assert read < len(bodies) / 2


def test_an_answer_to_another_request_closes_the_connection() -> None:
    def other(request: bytes) -> bytes:
        return METADATA(b"\0\0\0\0\0\0\0\x63")

    with connected(shows_metadata, other) as broker:
        error = error_of(broker)
    assert isinstance(error, NotABrokerError)
    assert "another request" in str(error)
    assert not broker.usable()


def test_a_certainly_unsent_request_is_told_from_one_that_may_be_done() -> None:
    with connected(shows_metadata) as broker:
        first, second = error_of(broker), error_of(broker)
    assert isinstance(first, ConnectionEndedError)
    assert isinstance(second, NoConnectionError)
    assert not isinstance(second, ConnectionEndedError)


def test_requests_that_follow_an_error_of_the_connection_fail_with_it() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        first, *_ = [request_of(stream) for _ in range(3)]
        stream.sendall(METADATA(first))

    with listener(serve) as address:
        broker = opened(address)
        pending = []
        for _ in range(3):
            request = MetadataRequest(topics=[])
            pending.append(broker.send(request, broker.encode(request), Deadline(5)))
        assert broker.receive(pending[0]).cluster_id == "c"
        for each in pending[1:]:
            with pytest.raises(ConnectionEndedError):
                broker.receive(each)


def test_each_pipelined_request_has_its_time_from_when_the_one_before_is_answered() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        for _ in range(4):
            request = request_of(stream)
            time.sleep(0.35)
            stream.sendall(METADATA(request))

    with listener(serve) as address:
        broker = opened(address, socket_timeout_ms="1000")
        pending = []
        for _ in range(4):
            request = MetadataRequest(topics=[])
            pending.append(broker.send(request, broker.encode(request), Deadline(10)))
        assert [broker.receive(each).cluster_id for each in pending] == ["c"] * 4
        broker.close()


def test_an_idle_connection_that_the_broker_closed_is_not_usable() -> None:
    with connected(shows_metadata, METADATA) as broker:
        metadata_of(broker)
        for _ in range(100):
            if not broker.usable():
                break
            time.sleep(0.02)
        assert not broker.usable()


def test_a_connection_that_was_idle_for_long_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        time.sleep(3)

    with listener(serve) as address:
        broker = opened(address, connections_max_idle_ms="300")
        assert broker.usable()
        time.sleep(0.35)
        assert not broker.usable()
        broker.close()


def test_usable_works_with_descriptors_beyond_a_thousand() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        time.sleep(3)

    with listener(serve) as address:
        held = [socket.socket() for _ in range(1100)]
        try:
            broker = opened(address)
        finally:
            for each in held:
                each.close()
        assert broker.fileno() > 1024
        assert broker.usable()
        broker.close()


def test_an_interrupt_in_the_middle_of_an_answer_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(shows_metadata, METADATA) as broker:
        real = broker._stream

        class Interrupted:
            def recv(self, count: int) -> bytes:
                raise KeyboardInterrupt

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        monkeypatch.setattr(broker, "_stream", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            metadata_of(broker)
        assert not broker.usable()


# Addresses.


@pytest.mark.parametrize(
    ("host", "port"),
    [("", 9092), ("a", 0), ("a", -1), ("a", 70000), ("x" * 300, 9), ("a\0b", 9), ("no.such.invalid", 9)],
)
def test_absurd_addresses_are_errors_of_the_name(host: str, port: int) -> None:
    settings = settings_of({"bootstrap.servers": "h:1"}, None)
    with pytest.raises(NoConnectionError) as raised:
        connect(settings, (host, port), Deadline(5))
    assert raised.value.code == KafkaError._RESOLVE


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(answering(shows_metadata)) as address:
        port = int(address.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.9", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        opened(f"kafka.example.com:{port}").close()


def test_only_addresses_of_the_family_that_is_named_are_tried() -> None:
    with listener(answering(shows_metadata), host="::1") as address:
        opened(address).close()
        with pytest.raises(NoConnectionError):
            opened(address, broker_address_family="v4")


def test_a_socket_has_the_options_of_the_settings() -> None:
    with connected(shows_metadata, socket_keepalive_enable="true") as broker:
        stream = broker._stream
        assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# TLS.


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server_tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    own = authority.issue("server")
    file = tmp_path / "server.pem"
    file.write_text(own.certificate + own.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def test_answers_come_through_tls(authority: Authority, server_tls: ssl.SSLContext) -> None:
    """TLS 1.3 sends messages of its own after the handshake: the connection stays usable."""

    def serve(stream: socket.socket) -> None:
        stream.sendall(shows_metadata(request_of(stream)))
        stream.sendall(METADATA(request_of(stream)))
        request_of(stream)

    with listener(serve, server_tls) as address:
        broker = opened(address, security_protocol="ssl", ssl_ca_pem=authority.certificate)
        assert broker.usable()
        assert metadata_of(broker).cluster_id == "c"
        assert broker.usable()
        broker.close()


def test_an_authority_that_nobody_trusts_is_an_error_of_tls(server_tls: ssl.SSLContext) -> None:
    with (
        listener(answering(shows_metadata), server_tls) as address,
        pytest.raises(TlsError, match="certificate verify failed"),
    ):
        opened(address, security_protocol="ssl", ssl_ca_pem=Authority("another").certificate)


def test_tls_against_a_plain_listener_says_so() -> None:
    with listener(lambda stream: None) as address, pytest.raises(TlsError, match="ended in the TLS handshake"):
        opened(address, security_protocol="ssl")
    with (
        listener(lambda stream: stream.sendall(b"plain text")) as address,
        pytest.raises(TlsError, match=r"(?i)wrong.version.number"),
    ):
        opened(address, security_protocol="ssl")


def test_a_plain_client_at_a_tls_listener_finds_no_broker(server_tls: ssl.SSLContext) -> None:
    with listener(answering(shows_metadata), server_tls) as address, pytest.raises(NotABrokerError):
        opened(address)


def test_a_handshake_that_never_ends_is_left_in_time(authority: Authority) -> None:
    with listener(lambda stream: time.sleep(5)) as address:
        began = time.monotonic()
        with pytest.raises(NoConnectionError):
            opened_within(0.5, address, security_protocol="ssl", ssl_ca_pem=authority.certificate)
        assert time.monotonic() - began < 1.5


# Logins.

LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "alice", "sasl_password": HIDDEN}


def handshake(mechanism: str, error: int = 0) -> Answer:
    return answer_of(SaslHandshakeResponse(error_code=error, mechanisms=[mechanism]), 1)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_that_is_refused_says_no_secret(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="kbackup")
    refused = SaslAuthenticateResponse(error_code=58, error_message="invalid credentials", auth_bytes=b"")
    with (
        listener(answering(logs_in, handshake(mechanism), answer_of(refused, 1))) as address,
        pytest.raises(LoginError, match="invalid credentials") as raised,
    ):
        opened(address, sasl_mechanism=mechanism, **LOGIN)
    assert HIDDEN not in str(raised.value) + caplog.text
    assert not caplog.records


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_a_login_leaves_nothing_in_any_log(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="kbackup")
    accepted = answer_of(SaslAuthenticateResponse(error_code=0, auth_bytes=b""), 1)
    own = {"enable_sasl_oauthbearer_unsecure_jwt": "true", "sasl_oauthbearer_config": "principal=alice"}
    with connected(logs_in, handshake(mechanism), accepted, sasl_mechanism=mechanism, **LOGIN, **own, debug="all"):
        pass
    assert [record for record in caplog.records if record.name != "asyncio"] == []


def test_a_mechanism_that_is_not_enabled_is_named_with_those_that_are() -> None:
    with (
        listener(answering(logs_in, handshake("SCRAM-SHA-512", error=33))) as address,
        pytest.raises(LoginError, match="no login by PLAIN, only by SCRAM-SHA-512"),
    ):
        opened(address, sasl_mechanism="PLAIN", **LOGIN)


@pytest.mark.parametrize("challenge", [b"\xff", b"r={nonce},s=Y,i=4096", b"r={nonce},s=YQ==,i=many"])
def test_an_answer_to_a_login_that_cant_be_read_is_named(challenge: bytes) -> None:
    mechanism = "SCRAM-SHA-256"

    def challenged(request: bytes) -> bytes:
        nonce = request.rpartition(b"r=")[2].rstrip(b"\0")
        answer = SaslAuthenticateResponse(auth_bytes=challenge.replace(b"{nonce}", nonce))
        return framed(request, bytes(answer.encode(version=1)))

    with listener(answering(logs_in, handshake(mechanism), challenged)) as address, pytest.raises(LoginError) as raised:
        opened(address, sasl_mechanism=mechanism, **LOGIN)
    assert str(raised.value) == f"{address}: the broker's answer to a SCRAM-SHA-256 login can't be read"


def test_a_login_that_is_never_answered_is_left_in_time() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(logs_in(request_of(stream)))
        time.sleep(5)

    with listener(serve) as address:
        began = time.monotonic()
        with pytest.raises(NoConnectionError, match="in time"):
            opened(address, sasl_mechanism="PLAIN", socket_connection_setup_timeout_ms="500", **LOGIN)
        assert time.monotonic() - began < 1.5


def test_a_login_is_used_for_most_of_its_lifetime_alone() -> None:
    def serve(stream: socket.socket) -> None:
        stream.sendall(logs_in(request_of(stream)))
        stream.sendall(handshake("PLAIN")(request_of(stream)))
        accepted = SaslAuthenticateResponse(error_code=0, auth_bytes=b"", session_lifetime_ms=500)
        stream.sendall(answer_of(accepted, 1)(request_of(stream)))
        time.sleep(3)

    with listener(serve) as address:
        broker = opened(address, sasl_mechanism="PLAIN", **LOGIN)
        assert broker.usable()
        time.sleep(0.42)
        assert not broker.usable()
        broker.close()


def test_threads_that_connect_at_once_share_one_context_of_tls(
    authority: Authority, server_tls: ssl.SSLContext
) -> None:
    with listener(answering(shows_metadata), server_tls) as address:
        properties = {"security.protocol": "ssl", "ssl.ca.pem": authority.certificate}
        settings = settings_of({"bootstrap.servers": address, **properties}, None)
        made: list[BrokerConnection] = []

        def make() -> None:
            made.append(connect(settings, settings.addresses[0], Deadline(10)))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(made) == 8
        for each in made:
            each.close()


def test_a_request_for_a_login_is_one_that_the_broker_knows() -> None:
    with listener(answering(knows(SaslAuthenticateRequest))) as address, pytest.raises(LoginError, match="too old"):
        opened(address, sasl_mechanism="PLAIN", **LOGIN)
