"""Tokens by client credentials, from a provider of the test's own."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import pytest

from kbackup.kafka.admin_protocol.endpoint import LoginError, endpoint_of

HIDDEN = "not-to-be-seen"


@contextmanager
def provider(status: int, answer: bytes, asked: list[tuple[str, dict[str, list[str]]]]) -> Iterator[str]:
    """Answers one request, and notes its credentials and its form. Yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            scheme, _, pair = self.headers["Authorization"].partition(" ")
            assert scheme == "Basic"
            asked.append((base64.b64decode(pair).decode(), parse_qs(form)))
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing goes to stderr."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token?tenant=1"
        thread.join(10)
        assert not thread.is_alive()


def token_of(url: str) -> tuple[str, dict[str, str]]:
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "OIDC",
        "sasl.oauthbearer.client.id": "backup",
        "sasl.oauthbearer.client.secret": HIDDEN,
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.scope": "kafka read",
        "sasl.oauthbearer.extensions": "logicalCluster=x, pool=y",
    }
    login = endpoint_of(properties, None, 5.0).login
    assert login is not None
    assert login.token is not None
    token, extensions = login.token()
    return token, dict(extensions)


def test_a_token() -> None:
    asked: list[tuple[str, dict[str, list[str]]]] = []
    with provider(200, json.dumps({"access_token": "a.b.c", "expires_in": 300}).encode(), asked) as url:
        assert token_of(url) == ("a.b.c", {"logicalCluster": "x", "pool": "y"})
    assert asked == [(f"backup:{HIDDEN}", {"grant_type": ["client_credentials"], "scope": ["kafka read"]})]


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, HIDDEN.encode(), "answered 401"),
        (302, HIDDEN.encode(), "answered 302"),
        (200, b'{"error": "' + HIDDEN.encode() + b'"}', "holds none"),
        (200, b"[]", "holds none"),
        (200, b"<html>" + HIDDEN.encode(), "holds none"),
    ],
)
def test_no_token(status: int, answer: bytes, message: str) -> None:
    with provider(status, answer, []) as url, pytest.raises(LoginError) as raised:
        token_of(url)
    assert message in str(raised.value)
    assert HIDDEN not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "file:///etc/passwd", ""])
def test_unreachable_token_endpoint_is_a_login_error(url: str) -> None:
    with pytest.raises(LoginError):
        token_of(url)
