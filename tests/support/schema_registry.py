"""A schema registry on the loopback, for tests: the REST paths of Confluent's that clients use, and its error codes."""

from __future__ import annotations

import json
import re
import ssl
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

JSON = "application/vnd.schemaregistry.v1+json"


@dataclass
class FakeRegistry:
    """Gives ids from 1 on. `authorization` is the header that it wants; `broken` a status that it answers with in any
    case. `asked` has each request's path."""

    authorization: str | None = None
    certificate: tuple[Path, Path] | None = None
    broken: int | None = None
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any] | None) -> None:
                registry.asked.append(self.path)
                status, answer = registry.answer(self.path, self.headers["Authorization"], body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", JSON)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, authorization: str | None, body: dict[str, Any] | None) -> tuple[int, Any]:
        if self.broken is not None:
            return self.broken, {"error_code": 50001, "message": "the store is away"}
        if self.authorization is not None and authorization != self.authorization:
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        parts = urlsplit(path)
        names = [unquote(name) for name in parts.path.strip("/").split("/")]
        match names:
            case ["schemas", "ids", number] if number.isdigit():
                return self._schema(int(number))
            case ["schemas", "guids", guid]:
                known = [n for n, _ in enumerate(self.schemas, 1) if self._guid(n) == guid]
                return self._schema(known[0] if known else 0)
            case ["subjects", subject, "versions"] if body is not None:
                return 200, self.register(subject, body)
            case ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case ["subjects", subject] if body is not None:
                return 200, self.register(subject, body)
        return 404, {"error_code": 404, "message": f"HTTP 404 {parse_qs(parts.query)}"}

    def register(self, subject: str, schema: dict[str, Any]) -> dict[str, Any]:
        kept = {key: schema[key] for key in ("schema", "schemaType", "references") if schema.get(key)}
        if kept not in self.schemas:
            self.schemas.append(kept)
        number = self.schemas.index(kept) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return {
            "subject": subject,
            "version": versions.index(number) + 1,
            "id": number,
            "guid": self._guid(number),
            **kept,
        }

    def _schema(self, number: int) -> tuple[int, Any]:
        if not 0 < number <= len(self.schemas):
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"guid": self._guid(number), **self.schemas[number - 1]}

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        if not re.fullmatch(r"[1-9]\d*", version) or int(version) > len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        number = versions[int(version) - 1]
        return 200, {"subject": subject, "version": int(version), "id": number, **self.schemas[number - 1]}

    @staticmethod
    def _guid(number: int) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, str(number)))
