"""What users read of brokers that don't take us: the words and hints of `Connection.error` for our own connections."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from kbackup.errors import KbackupError, UnreachableError
from kbackup.kafka.client import Connection
from kbackup.kafka.control import router as routing
from kbackup.kafka.control.errors import RequestError
from kbackup.kafka.control.router import Router
from scripts.dev.process import free_ports
from scripts.dev.secured import Authority
from tests.unit.kafka.control.raw_broker import answer_of, answering, listener, logs_in, shows_metadata

DOING = "describing the cluster"


def words(address: str, /, **properties: str) -> KbackupError:
    return words_within(1.0, address, **properties)


def words_within(seconds: float, address: str, /, **properties: str) -> KbackupError:
    """The error of a first request."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    connection = Connection({"bootstrap.servers": address, **named}, "source")
    router = Router(connection)
    with pytest.raises(RequestError) as raised:
        router.metadata([], seconds=seconds)
    router.close()
    return routing.explained(connection, raised.value, DOING)


def test_a_closed_port_refuses_the_connection() -> None:
    (port,) = free_ports(1)
    error = words(f"127.0.0.1:{port}")
    assert isinstance(error, UnreachableError)
    assert f"source cluster at 127.0.0.1:{port} did not answer {DOING}: " in error.message
    assert "Connection refused" in error.message
    assert error.hint == "check that it is running and can be reached from here"


def test_an_unknown_host_is_named() -> None:
    error = words("no.such.invalid:9092")
    assert isinstance(error, UnreachableError)
    assert "did not answer" in error.message
    assert "no.such.invalid:9092: " in error.message


def test_a_listener_that_says_nothing_is_no_broker() -> None:
    with listener(lambda stream: time.sleep(3)) as address:
        error = words_within(0.5, address)
    assert error.message.endswith("it accepts connections, but answers none as a broker does")
    assert error.hint.startswith("check security.protocol (a listener with TLS needs SSL or SASL_SSL)")


def test_a_listener_that_talks_something_else_is_no_broker() -> None:
    with listener(lambda stream: stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        error = words(address)
    assert error.message.endswith("it accepts connections, but answers none as a broker does")


@pytest.fixture
def server_tls(tmp_path: Path) -> ssl.SSLContext:
    own = Authority().issue("server")
    file = tmp_path / "server.pem"
    file.write_text(own.certificate + own.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def test_plain_text_to_a_listener_with_tls_has_the_hint_for_it(server_tls: ssl.SSLContext) -> None:
    with listener(answering(shows_metadata), server_tls) as address:
        error = words(address)
    assert "a listener with TLS needs SSL or SASL_SSL" in error.hint


def test_tls_to_a_plain_listener_has_the_hint_for_it() -> None:
    for serve in (lambda stream: None, lambda stream: stream.sendall(b"plain text")):
        with listener(serve) as address:
            error = words(address, security_protocol="SSL")
        assert "denied access" in error.message
        assert error.hint == "set security.protocol to PLAINTEXT or SASL_PLAINTEXT: this listener has no TLS"


def test_an_authority_that_nobody_trusts_has_the_hint_for_it(server_tls: ssl.SSLContext) -> None:
    with listener(answering(shows_metadata), server_tls) as address:
        error = words(address, security_protocol="SSL")
    assert "denied access" in error.message
    assert "certificate verify failed" in error.message
    assert "is ssl.ca.location the authority" in error.hint


def test_a_refused_login_shows_at_once() -> None:
    shaken = answer_of(SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]), 1)
    refused = SaslAuthenticateResponse(error_code=58, error_message="invalid credentials", auth_bytes=b"")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "alice"}
    with listener(answering(logs_in, shaken, answer_of(refused, 1))) as address:
        began = time.monotonic()
        error = words_within(60, address, sasl_password="not-to-be-seen", **login)
        assert time.monotonic() - began < 2
    assert isinstance(error, UnreachableError)
    assert error.message.startswith(f"source cluster at {address} denied access {DOING}: ")
    assert error.message.endswith("invalid credentials")
    assert error.hint == "is sasl.mechanism right, and are user and password, or the token?"
    assert "not-to-be-seen" not in error.message + error.hint


def test_a_provider_without_a_token_is_a_denied_access() -> None:
    properties = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_method": "oidc",
        "sasl_oauthbearer_client_id": "a",
        "sasl_oauthbearer_client_secret": "not-to-be-seen",
        "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:1/token",
    }
    shaken = answer_of(SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"]), 1)
    with listener(answering(logs_in, shaken)) as address:
        error = words(address, **properties)
    assert "denied access" in error.message
    assert "no token: 127.0.0.1 did not answer" in error.message


def test_an_answer_that_came_too_late_is_no_answer() -> None:
    def serve(stream: object) -> None:
        answering(shows_metadata)(stream)  # type: ignore[arg-type]
        time.sleep(2)

    with listener(serve) as address:
        error = words_within(0.5, address)
    assert isinstance(error, UnreachableError)
    assert "did not answer" in error.message
    assert "no answer came in time" in error.message


def test_the_code_for_no_broker_is_the_one_of_the_control_plane() -> None:
    from kbackup.kafka import client
    from kbackup.kafka.control import errors

    assert client._NOT_A_BROKER == errors.NOT_A_BROKER != KafkaError._BAD_MSG
