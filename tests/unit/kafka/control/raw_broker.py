"""A broker of bytes: what it sends, and when, is up to the test; it need not be Kafka's."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

Answer = Callable[[bytes], bytes]
"""The bytes that a broker sends back for a request without its length."""

Serve = Callable[[socket.socket], None]
"""What is done with a connection; it is closed afterwards."""


@contextmanager
def listener(serve: Serve, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of something that serves every connection in a thread."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)

    def each(stream: socket.socket) -> None:
        with suppress(OSError):
            if tls is not None:
                stream = tls.wrap_socket(stream, server_side=True)
            serve(stream)
        stream.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                stream, _ = listening.accept()
                stream.settimeout(30)
                threading.Thread(target=each, args=(stream,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"{shown}:{listening.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def answering(*answers: Answer) -> Serve:
    """Gives each answer once a connection, and ends the connection."""

    def serve(stream: socket.socket) -> None:
        for answer in answers:
            stream.sendall(answer(request_of(stream)))

    return serve


def request_of(stream: socket.socket) -> bytes:
    """Return the next request, without its length. Raise `ConnectionError` at the end."""
    head = stream.recv(4)
    if len(head) < 4:
        raise ConnectionError
    (size,) = struct.unpack(">i", head)
    data = b""
    while len(data) < size:
        data += stream.recv(size - len(data))
    return data


def framed(request: bytes, body: bytes) -> bytes:
    """A response to the request, in a header without tagged fields."""
    correlation = request[4:8]
    return struct.pack(">i", len(correlation) + len(body)) + correlation + body


def answer_of(response: Any, version: int) -> Answer:
    def answer(request: bytes) -> bytes:
        return framed(request, bytes(response.encode(version=version)))

    return answer


def knows(*requests: Any, newest: int = 1, oldest: int = 0) -> Answer:
    """The broker knows these requests, in the first versions."""
    entry = ApiVersionsResponse.ApiVersion
    keys = [entry(api_key=each.API_KEY, min_version=oldest, max_version=newest) for each in requests]
    return answer_of(ApiVersionsResponse(error_code=0, api_keys=keys), 3)


logs_in = knows(SaslHandshakeRequest, SaslAuthenticateRequest)
shows_metadata = knows(ApiVersionsRequest, MetadataRequest, newest=2)
