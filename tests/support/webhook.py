"""A webhook on the loopback, for tests: it keeps what it is sent, and answers with chosen codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class FakeWebhook:
    """`answers` are the codes of the next answers; then 204."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/T0K3N?key=s3cret"


@contextmanager
def webhook(*answers: int) -> Iterator[FakeWebhook]:
    fake = FakeWebhook(answers=[*answers])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fake.requests.append(Request(self.path, dict(self.headers), body))
            code = fake.answers.pop(0) if fake.answers else 204
            self.send_response(code)
            if code in (301, 302):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
