"""A connection to brokers that are old, no brokers, or gone; and what a session tells of it."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka.record.default_records import DefaultRecordBatchBuilder

from kbackup.kafka.admin_protocol import connection
from kbackup.kafka.admin_protocol.connection import LogBatch, connect
from kbackup.kafka.admin_protocol.endpoint import NoConnectionError, RefusedRequestError, endpoint_of
from kbackup.kafka.admin_protocol.session import admin_session
from kbackup.kafka.client import Connection
from kbackup.kafka.security import Unavailable

VERSIONS = ApiVersionsResponse
UNSUPPORTED = 35

Answer = Callable[[bytes], bytes]
"""The bytes that a broker sends back for a request without its length."""


@contextmanager
def broker(*answers: Answer) -> Iterator[str]:
    """Gives each answer once, and ends the connection. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            stream, _ = listening.accept()
            with stream, stream.makefile("rb") as requests:
                for answer in answers:
                    (size,) = struct.unpack(">i", requests.read(4))
                    stream.sendall(answer(requests.read(size)))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def framed(request: bytes, body: bytes) -> bytes:
    """A response to the request, in a header without tagged fields."""
    correlation = request[4:8]
    return struct.pack(">i", len(correlation) + len(body)) + correlation + body


def versions(number: int, error: int = 0, *, features: bool = False) -> Answer:
    def answer(request: bytes) -> bytes:
        assert struct.unpack(">hh", request[:4]) == (18, 0 if number == 0 and not error else 3)
        more = {"finalized_features_epoch": 0, "finalized_features": []} if features else {}
        body = VERSIONS(version=number, error_code=error, api_keys=[], **more).encode()
        return framed(request, bytes(body))

    return answer


def answer_of(response: Any, version: int) -> Answer:
    return lambda request: framed(request, bytes(response.encode(version=version)))


def knows(*requests: Any) -> Answer:
    """The broker knows the first versions of these."""
    keys = [VERSIONS.ApiVersion(api_key=each.API_KEY, min_version=0, max_version=1) for each in requests]
    return answer_of(VERSIONS(version=3, error_code=0, api_keys=keys), 3)


def session_of(address: str) -> Unavailable | None:
    """Why there is no session; None where there is one."""
    with admin_session(Connection({"bootstrap.servers": address}, "source")) as session:
        return session if isinstance(session, Unavailable) else None


def test_an_old_broker_is_asked_as_it_understands() -> None:
    with (
        broker(versions(0, UNSUPPORTED), versions(0)) as address,
        admin_session(Connection({"bootstrap.servers": address}, "source")) as session,
    ):
        assert not isinstance(session, Unavailable)
        quotas, features = session.client_quotas(), session.features()
        refused = session.set_default_broker_configs({"a": "1"})
    assert isinstance(quotas, Unavailable)
    assert (quotas.reason, "too old" in quotas.why) == ("not supported", True)
    assert isinstance(features, Unavailable)
    assert "too old" in refused["a"]


def test_features_of_the_first_epoch_count() -> None:
    with (
        broker(versions(3, features=True)) as address,
        closing(connect(endpoint_of({"bootstrap.servers": address}, None, 5.0))) as connection,
    ):
        assert connection.features == {}


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda request: b"",
        lambda request: framed(b"\0\0\0\0\0\0\0\x63", b""),
        lambda request: framed(request, b"\0"),
    ],
    ids=["HTTP", "closed", "another's", "cut off"],
)
def test_other_servers_are_refused(answer: Answer) -> None:
    with broker(answer) as address:
        told = session_of(address)
    assert told is not None
    assert told.reason == "failed"
    assert address in told.why


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_that_is_refused_says_no_secret(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = SaslAuthenticateResponse(error_code=58, error_message="invalid credentials", auth_bytes=b"")
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": "not-to-be-seen",
    }
    with (
        broker(
            knows(SaslHandshakeRequest, SaslAuthenticateRequest),
            answer_of(SaslHandshakeResponse(error_code=0, mechanisms=[mechanism]), 1),
            answer_of(refused, 1),
        ) as address,
        admin_session(Connection({"bootstrap.servers": address, **login}, "source")) as session,
    ):
        assert isinstance(session, Unavailable)
    assert "invalid credentials" in session.why
    assert "not-to-be-seen" not in session.why + caplog.text


@pytest.mark.parametrize("challenge", [b"\xff", b"r={nonce},s=Y,i=4096", b"r={nonce},s=YQ==,i=many"])
def test_an_answer_to_a_login_that_cant_be_read(challenge: bytes) -> None:
    mechanism = "SCRAM-SHA-256"

    def challenged(request: bytes) -> bytes:
        nonce = request.rpartition(b"r=")[2].rstrip(b"\0")
        answer = SaslAuthenticateResponse(auth_bytes=challenge.replace(b"{nonce}", nonce))
        return framed(request, bytes(answer.encode(version=1)))

    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice"}
    with (
        broker(
            knows(SaslHandshakeRequest, SaslAuthenticateRequest),
            answer_of(SaslHandshakeResponse(error_code=0, mechanisms=[mechanism]), 1),
            challenged,
        ) as address,
        admin_session(Connection({"bootstrap.servers": address, **login}, "source")) as session,
    ):
        assert isinstance(session, Unavailable)
    assert session.why.endswith(f"{address}: the broker's answer to a SCRAM-SHA-256 login can't be read")


def test_the_next_address_is_tried() -> None:
    with broker(versions(3)) as address:
        assert session_of(f"127.0.0.1:1,{address}") is None
    with pytest.raises(NoConnectionError, match=r"127.0.0.1:1: .*"):
        connect(endpoint_of({"bootstrap.servers": "127.0.0.1:1"}, None, 5.0))


def test_newest_version_of_a_request() -> None:
    def answer(request: bytes) -> bytes:
        keys = [VERSIONS.ApiVersion(api_key=1, min_version=4, max_version=17)]
        return framed(request, bytes(VERSIONS(version=3, error_code=0, api_keys=keys).encode()))

    with broker(answer) as address, admin_session(Connection({"bootstrap.servers": address}, "source")) as session:
        assert not isinstance(session, Unavailable)
        assert session.fetch_version() == 17
        moving = session.reassignments()
    assert isinstance(moving, Unavailable)
    assert moving.reason == "not supported"


def test_a_batch_that_becomes_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = DefaultRecordBatchBuilder(2, 1, False, -1, -1, -1, 1 << 20)
    builder.append(0, 0, b"key", bytes(100_000), [])
    batch = LogBatch(0, 0, 0, False, False, data=bytes(builder.build()))
    assert [(key, value) for _, key, value in batch.records()] == [(b"key", bytes(100_000))]
    monkeypatch.setattr(connection, "_MOST_PLAIN", 99_999)
    with pytest.raises(RefusedRequestError):
        list(batch.records())
