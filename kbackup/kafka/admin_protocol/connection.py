"""A connection to one broker: TLS, login, and one request after another. Nothing that it carries is ever logged."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any, Self

from confluent_kafka import KafkaError

from kbackup.kafka.admin_protocol.endpoint import Endpoint
from kbackup.kafka.admin_protocol.errors import LoginError, NoConnectionError, RefusedRequestError
from kbackup.kafka.admin_protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kbackup.kafka.admin_protocol.sasl import conversation
from kbackup.kafka.admin_protocol.tls import tls_context

_LARGEST = 256 << 20  # bytes of an answer
_SOFTWARE = {"client_software_name": "kbackup", "client_software_version": "1"}
_VERSIONS_WITH_FEATURES = 3  # brokers since 2.4; older ones answer by version 0


class BrokerConnection:
    """Made by `connect`. `features` are the finalized ones, by name; None where the broker says nothing of them."""

    def __init__(self, stream: socket.socket, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._sent = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    def ask(self, request: Any, newest: int | None = None) -> Any:
        """The response to a request of `messages`, in the newest version that both sides know, at most `newest`.

        `RefusedRequestError` where the response holds an error for the whole, or the broker doesn't know the request.
        """
        low, high = self._versions.get(request.API_KEY, (0, -1))
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
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.features = {f.name: f.max_version_level for f in response.finalized_features or ()}

    def newest_version(self, api_key: int) -> int:
        """The newest version of a request that the broker knows; -1 where it doesn't know the request."""
        return self._versions.get(api_key, (0, -1))[1]

    def log_in(self, endpoint: Endpoint) -> None:
        if endpoint.login is None:
            return
        self.ask(SaslHandshakeRequest(mechanism=endpoint.login.mechanism))
        talk = conversation(endpoint.login)
        said = next(talk)
        while True:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=said))
            try:
                said = talk.send(answer.auth_bytes or b"")
            except StopIteration:
                return

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
            return RESPONSES[type(request)].decode(bytes(data), version=version, header=True)
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


def connect(endpoint: Endpoint) -> BrokerConnection:
    """A connection that is logged in, to the first address that takes it; `NoConnectionError` where none does."""
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
            words = error.words or KafkaError(error.code).str()
            failures.append(f"{host}:{port}: {words}")
    raise NoConnectionError(_listed(failures))


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


def _listed(failures: Sequence[str]) -> str:
    return "; ".join(failures) or "bootstrap.servers names no address"
