"""A connection to brokers that are old, no brokers, or gone."""

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

from kbackup.kafka.admin_protocol.connection import connect
from kbackup.kafka.admin_protocol.endpoint import NoConnectionError, endpoint_of
from kbackup.kafka.admin_protocol.session import open_broker
from kbackup.kafka.client import Connection

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


def refused_by(address: str, **login: str) -> str:
    """Return why there is no connection."""
    with pytest.raises(NoConnectionError) as raised:
        open_broker(Connection({"bootstrap.servers": address, **login}, "source"))
    return str(raised.value)


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
        why = refused_by(address)
    assert address in why


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
    with broker(
        knows(SaslHandshakeRequest, SaslAuthenticateRequest),
        answer_of(SaslHandshakeResponse(error_code=0, mechanisms=[mechanism]), 1),
        answer_of(refused, 1),
    ) as address:
        why = refused_by(address, **login)
    assert "invalid credentials" in why
    assert "not-to-be-seen" not in why + caplog.text


@pytest.mark.parametrize("challenge", [b"\xff", b"r={nonce},s=Y,i=4096", b"r={nonce},s=YQ==,i=many"])
def test_an_answer_to_a_login_that_cant_be_read(challenge: bytes) -> None:
    mechanism = "SCRAM-SHA-256"

    def challenged(request: bytes) -> bytes:
        nonce = request.rpartition(b"r=")[2].rstrip(b"\0")
        answer = SaslAuthenticateResponse(auth_bytes=challenge.replace(b"{nonce}", nonce))
        return framed(request, bytes(answer.encode(version=1)))

    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice"}
    with broker(
        knows(SaslHandshakeRequest, SaslAuthenticateRequest),
        answer_of(SaslHandshakeResponse(error_code=0, mechanisms=[mechanism]), 1),
        challenged,
    ) as address:
        why = refused_by(address, **login)
    assert why.endswith(f"{address}: the broker's answer to a SCRAM-SHA-256 login can't be read")


def test_the_next_address_is_tried() -> None:
    with broker(versions(3)) as address:
        open_broker(Connection({"bootstrap.servers": f"127.0.0.1:1,{address}"}, "source")).close()
    with pytest.raises(NoConnectionError, match=r"127.0.0.1:1: .*"):
        connect(endpoint_of({"bootstrap.servers": "127.0.0.1:1"}, None, 5.0))
