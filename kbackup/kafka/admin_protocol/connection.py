"""A connection to one broker: TLS, a SASL login, and one request after another. Nothing that it carries is logged.

kafka-python makes the messages. Its own connections are not used: they log requests, passwords and tokens of logins
included, its SCRAM fails for users with a comma or an equals sign in the name, and an admin client needs a thread.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Generator
from typing import Any

from confluent_kafka import KafkaError
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from kbackup.kafka.admin_protocol.endpoint import (
    Endpoint,
    Login,
    LoginError,
    NoConnectionError,
    RefusedRequestError,
    tls_context,
)

_LARGEST = 256 << 20  # bytes of an answer
_SOFTWARE = {"client_software_name": "kbackup", "client_software_version": "1"}
_VERSIONS_WITH_FEATURES = 3  # brokers since 2.4; older ones answer by version 0


def connect(endpoint: Endpoint) -> BrokerConnection:
    """Return a connection that is logged in, to the first address that takes it. `NoConnectionError` if none does."""
    try:
        context = tls_context(endpoint.tls) if endpoint.tls is not None else None
    except (OSError, ValueError) as error:
        raise NoConnectionError(f"certificates or keys can't be used: {error}") from error
    failures: list[str] = []
    for host, port in endpoint.addresses:
        try:
            return _open(endpoint, host, port, context)
        except (OSError, NoConnectionError, LoginError) as error:
            failures.append(f"{host}:{port}: {error}")
        except RefusedRequestError as error:
            failures.append(f"{host}:{port}: {error.kafka_error().str()}")
    raise NoConnectionError("; ".join(failures) or "bootstrap.servers names no address")


def _open(endpoint: Endpoint, host: str, port: int, context: ssl.SSLContext | None) -> BrokerConnection:
    stream = socket.create_connection((host, port), timeout=endpoint.timeout)
    try:
        if context is not None:
            stream = context.wrap_socket(stream, server_hostname=host)
        broker = BrokerConnection(stream, endpoint.client_id)
        broker.learn_versions()
        broker.log_in(endpoint)
    except BaseException:
        stream.close()
        raise
    return broker


class BrokerConnection:
    """Made by `connect`. `versions` has the oldest and the newest version of each request that the broker knows, by
    apiKey. `features` has the levels of finalized features by name; None if the broker returns none."""

    def __init__(self, stream: socket.socket, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._sent = 0
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] | None = None

    def close(self) -> None:
        self._stream.close()

    def ask(self, request: Any, newest: int | None = None) -> Any:
        """Return the response to a request, in the newest version that both sides know, at most `newest`.

        `RefusedRequestError` if the response holds an error for the whole, or the broker doesn't know the request."""
        low, high = self.versions.get(request.API_KEY, (0, -1))
        version = min(high, request.max_version if newest is None else newest)
        if version < low:
            raise RefusedRequestError(KafkaError.UNSUPPORTED_VERSION, "the brokers are too old for it")
        response = self._exchange(request, version)
        if code := getattr(response, "error_code", 0):
            raise RefusedRequestError(code, getattr(response, "error_message", "") or "")
        return response

    def learn_versions(self) -> None:
        """Ask the broker for the versions that it supports: the first request of a connection."""
        response = self._exchange(ApiVersionsRequest(**_SOFTWARE), _VERSIONS_WITH_FEATURES)
        if response.error_code == KafkaError.UNSUPPORTED_VERSION:
            response = self._exchange(ApiVersionsRequest(), 0)
        if response.error_code:
            raise RefusedRequestError(response.error_code)
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.features = {f.name: f.max_version_level for f in response.finalized_features or ()}

    def log_in(self, endpoint: Endpoint) -> None:
        if endpoint.login is None:
            return
        self.ask(SaslHandshakeRequest(mechanism=endpoint.login.mechanism))
        talk = conversation(endpoint.login)
        message = next(talk)
        while True:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=message))
            try:
                message = talk.send(answer.auth_bytes or b"")
            except StopIteration:
                return
            except ValueError:  # text, numbers or base64 that are none
                raise LoginError(f"the broker's answer to a {endpoint.login.mechanism} login can't be read") from None

    def _exchange(self, request: Any, version: int) -> Any:
        self._sent += 1
        request.with_header(correlation_id=self._sent, client_id=self._client_id)
        try:
            self._stream.sendall(request.encode(version=version, header=True, framed=True))
            (size,) = struct.unpack(">i", self._receive(4))
            if not 0 < size <= _LARGEST:
                raise NoConnectionError("the answer is not Kafka's: is security.protocol right?")
            data = self._receive(size)
        except OSError as error:
            raise NoConnectionError(f"the connection ended: {error}") from error
        (correlation,) = struct.unpack(">i", data[:4])
        if correlation != self._sent:
            raise NoConnectionError("the answer is not Kafka's: is security.protocol right?")
        try:
            return request.header.get_response_class().decode(bytes(data), header=True)
        except (ValueError, IndexError, struct.error) as error:
            raise NoConnectionError(f"the answer to {type(request).__name__} can't be read") from error

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        at = 0
        while at < size:
            count = self._stream.recv_into(memoryview(data)[at:])
            if not count:
                raise NoConnectionError("the broker closed the connection: is security.protocol right?")
            at += count
        return data


# The client's half of a SASL login: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628).


Conversation = Generator[bytes, bytes, None]
"""Yields the client's messages, and takes the broker's answers."""

_MOST_ITERATIONS = 10_000_000


def conversation(login: Login) -> Conversation:
    """Return the client's half of a login. It raises `LoginError` if the broker's half is not what it must be."""
    if login.mechanism == "PLAIN":
        yield b"\0" + login.user.encode() + b"\0" + login.password.encode()
    elif login.mechanism == "OAUTHBEARER":
        if login.token is None:
            raise LoginError("no function gives a token")
        token, extensions = login.token()
        pairs = "".join(f"\x01{name}={value}" for name, value in extensions.items())
        refusal = yield f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()
        if refusal:
            yield b"\x01"  # the broker then says why
    else:
        yield from _scram(login, login.mechanism.removeprefix("SCRAM-").replace("-", "").lower())


def _scram(login: Login, digest: str) -> Conversation:
    """`digest` is the name of a hash in `hashlib`."""
    user = login.user.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_hex(16)
    first = f"n={user},r={nonce}"
    answer = (yield f"n,,{first}".encode()).decode()
    challenge = _fields(answer)
    if not challenge.get("r", "").startswith(nonce) or not {"s", "i"} <= challenge.keys():
        raise LoginError("the broker's answer to a SCRAM login is not one to this login")
    if not 0 < (rounds := int(challenge["i"])) <= _MOST_ITERATIONS:
        raise LoginError(f"the broker asks for {rounds} iterations")
    salted = hashlib.pbkdf2_hmac(digest, login.password.encode(), base64.b64decode(challenge["s"]), rounds)
    client = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={challenge['r']}"
    signed = f"{first},{answer},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, client).digest(), signed, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature, strict=True))).decode()
    verdict = _fields((yield f"{last},p={proof}".encode()).decode())
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(base64.b64decode(verdict.get("v", "")), expected):
        raise LoginError("the broker can't prove that it knows the SCRAM user")


def _fields(message: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in message.split(",") if "=" in pair)
