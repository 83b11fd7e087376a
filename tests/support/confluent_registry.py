"""A schema registry of tests that keeps ids and versions in mode IMPORT, as Confluent's documents and source say it.

It stands for these documents, not for the product, which the public repositories don't have: what is tested against it
alone is not known to work with Confluent's server. It reads no schema, so it finds nothing incompatible or invalid, and
`normalize` does nothing.
"""

from __future__ import annotations

import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_CONTENT = ("schemaType", "schema", "references", "metadata", "ruleSet")
_LEVELS = {each + also for each in ("BACKWARD", "FORWARD", "FULL") for also in ("", "_TRANSITIVE")} | {"NONE"}
_MODES = {"READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"}
_GLOBAL = ""
_DEFAULTS: dict[str, dict[str, Any]] = {"config": {"compatibilityLevel": "BACKWARD"}, "mode": {"mode": "READWRITE"}}


class RefusedError(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Version:
    subject: str
    number: int
    id: int
    content: dict[str, Any]
    deleted: bool = False

    @property
    def guid(self) -> str:
        """The same for the same content anywhere."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(self.content, sort_keys=True)))

    @property
    def answer(self) -> dict[str, Any]:
        told = {"subject": self.subject, "version": self.number, "id": self.id, "guid": self.guid, **self.content}
        return told | ({"deleted": True} if self.deleted else {})


def context_of(subject: str) -> str:
    return subject.split(":")[1] if subject.startswith(":.") else "."


def _without_guids(answer: Any) -> Any:
    """Return an answer, or a list of answers, as registries without GUIDs give it."""
    if isinstance(answer, list):
        return [_without_guids(each) for each in answer]
    if isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name != "guid"}
    return answer


@dataclass
class ConfluentRegistry:
    """A context manager. Subjects outside of the default context have names like `:.context:subject`.

    `authorization` is the header that it demands. The other fields are faults: `failures` are statuses of the next
    answers; `huge` the bytes of each answer; `lost` the number of writes that take effect and get no answer;
    `page` how many items a list has at most, of all that there are; without `guids` it gives none, as before release 8.
    """

    authorization: str | None = None
    certificate: tuple[Path, Path] | None = None
    failures: list[int] = field(default_factory=list)
    huge: int = 0
    lost: int = 0
    page: int = 1 << 31
    guids: bool = True
    subjects: dict[str, dict[int, Version]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=lambda: {_GLOBAL: _DEFAULTS["config"]})
    modes: dict[str, dict[str, Any]] = field(default_factory=lambda: {_GLOBAL: _DEFAULTS["mode"]})
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""

    def __post_init__(self) -> None:
        self._lock, self._last_ids = threading.Lock(), dict[str, int]()

    def __enter__(self) -> Self:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                registry.serve(self)

            do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self._server.server_port}"

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        data = request.rfile.read(int(request.headers["Content-Length"] or 0))
        with self._lock:
            self.asked.append(f"{request.command} {request.path}")
            status, answer = 200, None
            try:
                answer = self._checked(request, json.loads(data) if data else {})
            except RefusedError as refusal:
                status, answer = refusal.status, {"error_code": refusal.code, "message": str(refusal)}
            if request.command != "GET" and self.lost and status == 200:
                self.lost -= 1
                request.close_connection = True
                return
        if not self.guids:
            answer = _without_guids(answer)
        body = json.dumps(answer).encode()
        size = max(len(body), self.huge)
        request.send_response(status)
        request.send_header("Content-Type", _MEDIA_TYPE)
        request.send_header("Content-Length", str(size))
        request.end_headers()
        try:
            request.wfile.write(body)
            for rest in range(size - len(body), 0, -(1 << 20)):
                request.wfile.write(b" " * min(rest, 1 << 20))
        except ConnectionError:  # the client has had enough
            request.close_connection = True

    def _checked(self, request: BaseHTTPRequestHandler, body: dict[str, Any]) -> Any:
        if self.failures:
            raise RefusedError(self.failures.pop(0), 50001, "the store is away")
        if self.authorization not in (None, request.headers["Authorization"]):
            raise RefusedError(401, 40101, "Unauthorized")
        answer = self.answer(request.command, request.path, body)
        if request.command != "GET" or not isinstance(answer, list):
            return answer
        query = parse_qs(urlsplit(request.path).query)
        first, limit = (int(query.get(name, ["-1"])[-1]) for name in ("offset", "limit"))
        return answer[max(first, 0) :][: self.page if limit < 0 else min(limit, self.page)]

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request, or `RefusedError`."""
        parts = urlsplit(path)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        names = [unquote(name) for name in parts.path.strip("/").split("/")]
        context = "."
        if names[0] == "contexts" and len(names) > 2:
            context, names = names[1].strip(":"), names[2:]
        if len(names) > 1 and names[0] in ("subjects", "config", "mode"):
            names[1] = _qualified(names[1], context)
        prefix = query.get("subjectPrefix", ":*:")
        yes = {name for name, value in query.items() if value.lower() == "true"}
        match method, *names:
            case "GET", "contexts":
                return [".", *sorted({context_of(name) for name in self.subjects} - {"."})]
            case "GET", "subjects":
                return list(self._seen(prefix, "deleted" in yes))
            case "GET", "schemas":
                found = self._seen(prefix, "deleted" in yes).values()
                return [version.answer for each in found for version in (each[-1:] if "latestOnly" in yes else each)]
            case "GET", "schemas", "types":
                return ["JSON", "PROTOBUF", "AVRO"]
            case "GET", "schemas", "ids", number, *rest if number.isdigit():
                return self._by_id(
                    int(number), context_of(query.get("subject", f":{context}:")), rest, "deleted" in yes
                )
            case "GET", "schemas", "guids", guid, *rest:
                same = [version for version in self._all() if version.guid == guid]
                if not same:
                    raise RefusedError(404, 40403, f"Schema {guid} not found")
                pairs = sorted({(context_of(version.subject), version.id) for version in same})
                return [{"context": c, "id": n} for c, n in pairs] if rest else {"guid": guid, **same[0].content}
            case "POST", "subjects", subject, "versions":
                return self.register(subject, body)
            case "POST", "subjects", subject:
                same = [v for v in self._versions(subject, "deleted" in yes) if v.content == _content(body)]
                if not same:
                    raise RefusedError(404, 40403, "Schema not found")
                return same[-1].answer
            case "GET", "subjects", subject, "versions":
                return [version.number for version in self._versions(subject, "deleted" in yes)]
            case "GET", "subjects", subject, "versions", number, *rest:
                version = self._version(subject, number, "deleted" in yes)
                if rest == ["referencedby"]:
                    return sorted({each.id for each in self._referring(version)})
                return json.loads(version.content["schema"]) if rest else version.answer
            case "DELETE", "subjects", subject, *rest:
                return self._delete(subject, rest[1] if rest else None, "permanent" in yes)
            case _, ("config" | "mode") as kind, *rest if len(rest) < 2:
                return self._setting(kind, method, "".join(rest), body, yes)
        raise RefusedError(404, 404, "HTTP 404 Not Found")

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Register a version as `POST /subjects/…/versions` does it."""
        content, mode, context = _content(body), self._in_scope(self.modes, subject)["mode"], context_of(subject)
        number, wanted = body.get("version") or 0, body.get("id", -1)
        about = f"Subject {subject} in context {context} is"
        if mode.startswith("READONLY"):
            raise RefusedError(422, 42205, f"{about} in read-only mode")
        if wanted >= 0 and mode != "IMPORT":
            raise RefusedError(422, 42205, f"{about} not in import mode")
        if wanted < 0 and mode == "IMPORT":
            raise RefusedError(422, 42205, f"{about} not in read-write mode")
        known = self.subjects.get(subject, {})
        for version in known.values():
            asked = number in (0, version.number) and wanted in (-1, version.id)
            if asked and not version.deleted and version.content == content:
                return version.answer
        for reference in content.get("references", ()):
            try:
                self._version(_qualified(reference["subject"], context), str(reference["version"]), deleted=False)
            except RefusedError as missing:
                raise RefusedError(422, 42201, f"Invalid schema: no reference {reference}") from missing
        following = max(known, default=0) + 1
        if number not in (0, following) and mode != "IMPORT":
            raise RefusedError(422, 42201, "Version is not one more than previous version")
        ids = {version.id: version.content for version in self._all() if context_of(version.subject) == context}
        if wanted in ids and ids[wanted] != content:
            raise RefusedError(
                422, 42205, f"Overwrite new schema with id {wanted} in context {context} is not permitted."
            )
        same = [known_id for known_id, other in ids.items() if other == content]
        new = wanted if wanted >= 0 else same[0] if same else self._last_ids.get(context, 0) + 1
        for old in [v.number for v in known.values() if v.deleted and v.id == new]:
            del known[old]
        return self.put(subject, number or following, new, content).answer

    def put(self, subject: str, number: int, schema_id: int, content: dict[str, Any], deleted: bool = False) -> Version:
        """Put a version there without any check: references may miss or go in a circle."""
        version = Version(subject, number, schema_id, _content(content), deleted)
        self.subjects[subject] = dict(sorted({**self.subjects.get(subject, {}), number: version}.items()))
        context = context_of(subject)
        self._last_ids[context] = max(self._last_ids.get(context, 0), schema_id)
        return version

    def _all(self) -> Iterator[Version]:
        return (version for versions in self.subjects.values() for version in versions.values())

    def _seen(self, prefix: str, deleted: bool) -> dict[str, list[Version]]:
        """The versions of each subject that has some."""
        found: dict[str, list[Version]] = {}
        for version in self._all():
            name = version.subject if version.subject.startswith(":.") else f":.:{version.subject}"
            wanted = prefix if prefix.startswith(":") else f":.:{prefix}"
            if (deleted or not version.deleted) and (prefix == ":*:" or name.startswith(wanted)):
                found.setdefault(version.subject, []).append(version)
        return dict(sorted(found.items()))

    def _versions(self, subject: str, deleted: bool) -> list[Version]:
        found = [version for version in self.subjects.get(subject, {}).values() if deleted or not version.deleted]
        if not found:
            raise RefusedError(404, 40401, f"Subject '{subject}' not found.")
        return found

    def _version(self, subject: str, number: str, deleted: bool) -> Version:
        found = self._versions(subject, deleted)
        if number not in ("latest", "-1"):
            found = [version for version in found if str(version.number) == number]
        if not found:
            raise RefusedError(404, 40402, f"Version {number} not found.")
        return found[-1]

    def _by_id(self, number: int, context: str, asked: list[str], deleted: bool) -> Any:
        found = [version for version in self._all() if version.id == number and context_of(version.subject) == context]
        if not found:
            raise RefusedError(404, 40403, f"Schema {number} not found")
        seen = [version for version in found if deleted or not version.deleted]
        match asked:
            case ["versions"]:
                return [{"subject": version.subject, "version": version.number} for version in seen]
            case ["subjects"]:
                return sorted({version.subject for version in seen})
        return {"guid": found[0].guid, **found[0].content}

    def _referring(self, to: Version) -> list[Version]:
        def refers(version: Version) -> bool:
            return any(
                (_qualified(each["subject"], context_of(version.subject)), each["version"]) == (to.subject, to.number)
                for each in version.content.get("references", ())
            )

        return [version for version in self._all() if not version.deleted and refers(version)]

    def _delete(self, subject: str, number: str | None, permanent: bool) -> Any:
        going = self._versions(subject, deleted=True) if number is None else [self._version(subject, number, True)]
        about = f"Subject '{subject}'" + ("" if number is None else f" Version {number}")
        code = 40404 if number is None else 40406
        if permanent and not all(version.deleted for version in going):
            raise RefusedError(404, code + 1, f"{about} was not deleted first before being permanently deleted")
        if not permanent and all(version.deleted for version in going):
            raise RefusedError(404, code, f"{about} was soft deleted. Set permanent=true to delete permanently")
        if any(self._referring(version) for version in going):
            raise RefusedError(422, 42206, f"One or more references exist to the schema {about}")
        for version in going:
            version.deleted = True
            if permanent:
                del self.subjects[subject][version.number]
        return [version.number for version in going] if number is None else going[0].number

    def _in_scope(self, settings: dict[str, dict[str, Any]], subject: str) -> dict[str, Any]:
        scopes = (subject, f":{context_of(subject)}:", _GLOBAL)
        return next(settings[scope] for scope in scopes if scope in settings)

    def _setting(self, kind: str, method: str, scope: str, body: dict[str, Any], yes: set[str]) -> Any:
        kept, code = (self.configs, 40408) if kind == "config" else (self.modes, 40409)
        if method == "PUT":
            if kind == "mode":
                self._check_mode(body.get("mode"), scope, "force" in yes)
            elif body.get("compatibility", "NONE") not in _LEVELS:
                raise RefusedError(422, 42203, "Invalid compatibility level")
            renamed = {"compatibilityLevel" if name == "compatibility" else name: each for name, each in body.items()}
            kept[scope] = kept.get(scope, {}) | renamed
            return body
        if scope not in kept and (method == "DELETE" or "defaultToGlobal" not in yes):
            told = (404, 40401, f"Subject '{scope}' not found.") if method == "DELETE" else None
            raise RefusedError(
                *(told or (404, code, f"Subject '{scope}' does not have subject-level {kind} configured"))
            )
        found = self._in_scope(kept, scope)
        if method == "DELETE":
            kept.pop(scope)
            kept.setdefault(_GLOBAL, _DEFAULTS[kind])
        return found

    def _check_mode(self, mode: str | None, scope: str, force: bool) -> None:
        if mode not in _MODES:
            raise RefusedError(422, 42204, "Invalid mode")
        if mode != "IMPORT" or force or self._in_scope(self.modes, scope)["mode"] == "IMPORT":
            return
        within = [v for v in self._all() if scope in (_GLOBAL, v.subject, f":{context_of(v.subject)}:")]
        if not all(version.deleted for version in within):
            raise RefusedError(422, 42205, "Cannot import since found existing subjects")
        for version in within:  # soft-deleted ones go for good
            del self.subjects[version.subject][version.number]


def _content(body: dict[str, Any]) -> dict[str, Any]:
    found = {name: body[name] for name in _CONTENT if body.get(name)}
    return {name: each for name, each in found.items() if (name, each) != ("schemaType", "AVRO")}


def _qualified(subject: str, context: str) -> str:
    if subject.startswith(":.:"):
        return subject.removeprefix(":.:") or subject
    return subject if context == "." or subject.startswith(":.") else f":{context}:{subject}"
