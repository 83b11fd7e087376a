"""A schema registry, by the REST API that Confluent published and others serve: read, and written to by restores.

Its answers are a stranger's: their size and time are bounded, and each is checked before it is used."""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

import certifi
import httpx2 as httpx
import msgspec
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2

from kbackup.errors import RefusedError, UndecodableError, UnreachableError, UsageError
from kbackup.schemas.base import (
    RegistryOptions,
    Schema,
    SchemaReference,
    SchemaVersion,
    SubjectSettings,
    context_of,
    qualified,
    schema_of,
)
from kbackup.util.plain_http import warn_of_plain_http

BUILT_IN = {
    file.name: base64.b64encode(file.serialized_pb).decode() for file in (meta_pb2.DESCRIPTOR, decimal_pb2.DESCRIPTOR)
}
"""The files that Protobuf schemas import without naming them as references: every registry has them."""
_SECONDS = 20
_WHOLE_SECONDS = 120  # for an answer that comes slowly
_MOST_BYTES = 64 << 20  # of an answer
_TRIES_AGAIN = 2
_PAUSE = 0.5  # s
_DENIED = (401, 403)
_BUSY = (408, 429)
_NOT_THERE = (40401, 40402, 40403, 40404, 40406, 40408, 40409)
"""The registry's own codes: no such subject, version, schema; deleted already; nothing is set."""
_TYPES = "application/vnd.schemaregistry.v1+json, application/json"

T = TypeVar("T")
Query = Mapping[str, str | bool]


class _Answer(msgspec.Struct):
    """A version of a subject, or the schema of an id, as registries answer."""

    schema: str
    subject: str = ""
    version: int = 0
    id: int = 0
    guid: str | None = None
    schema_type: str | None = msgspec.field(name="schemaType", default=None)
    references: list[SchemaReference] | None = None
    metadata: dict[str, Any] | None = None
    rules: dict[str, Any] | None = msgspec.field(name="ruleSet", default=None)


class _Place(msgspec.Struct, frozen=True):
    subject: str
    version: int


class _Id(msgspec.Struct):
    """The id that a registered schema has, or one that a GUID has in a context."""

    id: int
    context: str = "."


class _FoundVersion(msgspec.Struct):
    content_id: int = msgspec.field(name="contentId")


class _Found(msgspec.Struct):
    """What Apicurio's own protocol answers to a search for versions."""

    versions: list[_FoundVersion]


class _Mode(msgspec.Struct):
    mode: str | None = None


class _Error(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class RegistryRefusedError(RefusedError):
    """The registry refuses what is written; `code` is the registry's own error code."""

    def __init__(self, message: str, hint: str, code: int) -> None:
        super().__init__(message, hint)
        self.code = code


class SchemaRegistry:
    """A client; thread-safe. `UnreachableError` if it can't be reached, denies access or is no registry.

    Subjects of other contexts than the default one are `:.context:subject`."""

    def __init__(self, options: RegistryOptions, section: str = "schema_registry") -> None:
        """`section` of the configuration has the options; hints name it."""
        options.check(section)
        self.url = options.url
        self._section = section
        self._urls = [url.strip().rstrip("/") for url in options.url.split(",")]
        tls = _tls_context(options, section)
        secret = ""
        login = None
        headers: dict[str, str] = {}
        if options.token:
            secret = "token"  # noqa: S105 (the name of the option)
            headers["Authorization"] = f"Bearer {options.token}"
        if options.user:
            secret = "password"  # noqa: S105 (the name of the option)
            login = httpx.BasicAuth(options.user, options.password)
        if secret:
            for url in self._urls:
                warn_of_plain_http(f"the {secret} of {section}", url)
        self._client = httpx.Client(verify=tls, auth=login, headers=headers, timeout=_SECONDS)
        self._schemas: dict[int | str, Schema] = {}
        self._referred = cache(self.version)

    def contexts(self) -> list[str]:
        """Return '' for the default context, and `:.context:` for each other one."""
        names = self._every(str, "/contexts")
        # The default context is "." or ":.:" where a registry lists it, and it is returned where none does.
        others = [f":{name.strip(':')}:" for name in names if name.strip(":.")]
        return ["", *sorted(others)]

    def subjects(self, deleted: bool = False) -> list[str]:
        """Return the subjects of all contexts; with `deleted` also those that are softly deleted."""
        return self._every(str, "/subjects", subjectPrefix=":*:", deleted=deleted)

    def versions(self, subject: str, deleted: bool = False) -> list[int]:
        """Return a subject's versions, [] if there is no such subject."""
        return self._every(int, f"/subjects/{_quoted(subject)}/versions", deleted=deleted)

    def version(self, subject: str, number: int) -> SchemaVersion | None:
        """Return a version, also a deleted one; the answer does not say whether the version is deleted."""
        answer = self._read(_Answer, f"/subjects/{_quoted(subject)}/versions/{number}", deleted=True)
        if answer is None:
            return None
        return _version_of(answer, subject, number)

    def places(self, schema_id: int | str, context: str = "") -> list[tuple[str, int]]:
        """Return the subjects and versions of an id or a GUID, also deleted ones."""
        if isinstance(schema_id, str):
            # A GUID is the same in all contexts; an id is a schema's own in each.
            found: list[tuple[str, int]] = []
            for each in self._read(list[_Id], f"/schemas/guids/{_quoted(schema_id)}/ids") or []:
                of_context = "" if each.context == "." else f":{each.context}:"
                found += self.places(each.id, of_context)
            return found
        query: dict[str, str | bool] = {"deleted": True}
        if context:
            query["subject"] = context
        places = self._every(_Place, f"/schemas/ids/{schema_id}/versions", **query)
        return [(place.subject, place.version) for place in places]

    def content_of(self, global_id: int) -> int | None:
        """Return the id that the version with one of Apicurio's global ids has in Confluent's protocol, that of its
        content; 0 if there is no such version. None if the registry is not Apicurio's by its URL, or does not serve
        Apicurio's own protocol there."""
        for url in self._urls:
            root, ccompat, _ = url.partition("/apis/ccompat/")
            if not ccompat:
                return None
            try:
                query = {"globalId": str(global_id)}
                status, answer = self._send("GET", f"{root}/apis/registry/v3/search/versions", None, query)
                if status < 300:
                    found = msgspec.json.decode(answer, type=_Found).versions
                    return found[0].content_id if found else 0
            except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, UnicodeDecodeError):
                # The next of several URLs may answer.
                continue
        return None

    def settings(self, subject: str) -> SubjectSettings:
        """Return what is set for a subject, a context (`:.context:`), or ('') for all."""
        at = _settings_path(subject)
        config = self._read(dict[str, Any], f"/config{at}")
        answer = self._read(_Mode, f"/mode{at}")
        mode = None
        if answer is not None:
            mode = answer.mode
        return SubjectSettings(subject=subject, config=config, mode=mode)

    def set_config(self, subject: str, config: Mapping[str, Any] | None) -> None:
        """Set the compatibility and what goes with it; None deletes the subject's own: those for all hold then."""
        body = None
        if config is not None:
            body = dict(config)
            # Registries take this setting by another name than they return it by.
            if "compatibilityLevel" in body:
                body["compatibility"] = body.pop("compatibilityLevel")
        self._set("config", subject, body)

    def set_mode(self, subject: str, mode: str | None, force: bool = False) -> None:
        """Set the mode; None deletes the subject's own, so that the mode for all holds."""
        body = None
        if mode is not None:
            body = {"mode": mode}
        self._set("mode", subject, body, force=force)

    def _set(self, what: str, subject: str, body: Mapping[str, Any] | None, **query: str | bool) -> None:
        method = "DELETE" if body is None else "PUT"
        self._ask(method, f"/{what}{_settings_path(subject)}", body, query)

    def register(self, version: SchemaVersion, keep: bool) -> int:
        """Register a schema under its subject; `keep` asks for its version and id, which takes the mode IMPORT. Return
        the id that it has now: registries may give another one. `RegistryRefusedError` if it isn't taken."""
        body = _body(version)
        if keep:
            body |= {"version": version.version, "id": version.id}
        answer = self._ask("POST", f"/subjects/{_quoted(version.subject)}/versions", body)
        return self._checked(_Id, answer).id

    def lookup(self, version: SchemaVersion) -> SchemaVersion | None:
        """Return the version of the same subject with the same schema, also a deleted one; None if there is none."""
        path = f"/subjects/{_quoted(version.subject)}"
        answer = self._ask("POST", path, _body(version), {"deleted": True})
        if answer is None:
            return None
        found = self._checked(_Answer, answer)
        return _version_of(found, version.subject, 0)

    def delete(self, subject: str, number: int, permanent: bool = False) -> None:
        """Delete a version: softly, or what was deleted softly for good. One that is gone already is no error."""
        self._ask("DELETE", f"/subjects/{_quoted(subject)}/versions/{number}", None, {"permanent": permanent})

    def schema(self, schema_id: int | str) -> Schema:
        """Return the schema of an id or GUID with all schemas that it refers to.

        `UndecodableError` if the registry lacks one of them.
        """
        if schema_id not in self._schemas:
            place = f"ids/{schema_id}" if isinstance(schema_id, int) else f"guids/{_quoted(schema_id)}"
            found = self._read(_Answer, f"/schemas/{place}")
            if found is None:
                raise UndecodableError(f"the registry has no schema {schema_id}")
            version = _version_of(found, found.subject, 0)
            self._schemas[schema_id] = schema_of(version, self._needed, BUILT_IN, f"schema {schema_id}")
        return self._schemas[schema_id]

    def _needed(self, version: SchemaVersion, reference: SchemaReference) -> SchemaVersion:
        subject = qualified(reference.subject, context_of(version.subject))
        found = self._referred(subject, reference.version)
        if found is None:
            raise UndecodableError(f"the registry has no {subject} version {reference.version}, which others refer to")
        return found

    def _every(self, kind: type[T], path: str, **query: str | bool) -> list[T]:
        """Return a whole list, however many parts the registry gives it in."""
        found: dict[T, None] = {}
        while True:
            # A registry may bound its answers and not say so. Thus this asks on until an answer has nothing new: an
            # empty one, or the same list again from a registry that ignores the offset.
            part: list[T] | None = self._read(list[kind], path, offset=str(len(found)), **query)  # type: ignore[valid-type]
            if not part or found.keys() >= set(part):
                return list(found)
            found |= dict.fromkeys(part)

    def _read(self, kind: type[T], path: str, **query: str | bool) -> T | None:
        """Return the answer, checked; None if there is no such thing."""
        answer = self._ask("GET", path, query=query)
        if answer is None:
            return None
        return self._checked(kind, answer)

    def _checked(self, kind: type[T], answer: bytes | None) -> T:
        try:
            return msgspec.json.decode(answer or b"", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._strange() from error

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Query | None = None
    ) -> bytes | None:
        """Return the answer's bytes, None where the registry says that there is no such thing. Every request may be
        sent again: to register, set or delete the same thing twice changes nothing more."""
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
        urls = self._urls * (1 + _TRIES_AGAIN)
        for number, url in enumerate(urls, 1):
            is_last = number == len(urls)
            try:
                status, answer = self._send(method, url + path, content, query or {})
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if is_last:
                    raise UnreachableError(
                        f"the schema registry {self.url} can't be reached: {str(error) or type(error).__name__}",
                        f"check the URL, and that {self._section}.ca_bundle holds the issuer of its certificate",
                    ) from error
            else:
                if status < 300:
                    return answer
                if is_last or not _may_pass(status):
                    self._check(method, status, answer, path)
                    return None
            # Pause only after a round of all URLs: another server may answer at once.
            if number % len(self._urls) == 0:
                time.sleep(_PAUSE)
        raise AssertionError  # the last try returns or raises

    def _send(self, method: str, url: str, content: bytes | None, query: Query) -> tuple[int, bytes]:
        headers = {"Accept": _TYPES}
        if content is not None:
            headers["Content-Type"] = "application/json"
        # The client's own timeout is for each read, so an answer of one byte now and then would never end.
        until = time.monotonic() + _WHOLE_SECONDS
        data = bytearray()
        with self._client.stream(method, url, content=content, params=query, headers=headers) as response:
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > _MOST_BYTES or time.monotonic() > until:
                    raise UnreachableError(
                        f"an answer of the schema registry {self.url} is larger than {_MOST_BYTES >> 20} MiB, or does "
                        f"not end in {_WHOLE_SECONDS} s",
                        f"check what answers at {self._section}.url",
                    )
        return response.status_code, bytes(data)

    def _check(self, method: str, status: int, answer: bytes, path: str) -> None:
        """Raise the error of a refused request, but none if the answer only says that something is not there."""
        try:
            refusal = msgspec.json.decode(answer, type=_Error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            refusal = _Error()
        if refusal.error_code in _NOT_THERE:
            return
        # A registry without contexts or GUIDs has no such path, and answers 404 without a code of a registry's.
        if status == 404 and path.startswith(("/contexts", "/schemas/guids")):
            return
        if status in _DENIED:
            raise UnreachableError(
                f"the schema registry {self.url} denies access: HTTP status {status}",
                f"set {self._section}.user and {self._section}.password, or {self._section}.token",
            )
        words = f"{refusal.message[:500]} (HTTP status {status})"
        if _may_pass(status):
            raise UnreachableError(
                f"the schema registry {self.url} fails: {words}", "try again later, or decode by schema files"
            )
        # Only a registry gives a code of its own; an error of any other server is no refusal of what is written.
        if refusal.error_code and method != "GET":
            raise RegistryRefusedError(
                f"the schema registry {self.url} refuses {method} {path}: {words}",
                "see what it has there: kbackup schemas diff",
                refusal.error_code,
            )
        raise self._strange()

    def _strange(self) -> UnreachableError:
        return UnreachableError(
            f"what answers at {self.url} is no schema registry", f"check {self._section}.url, its path too"
        )


def _tls_context(options: RegistryOptions, section: str) -> ssl.SSLContext:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Loading the authorities takes 50 ms, which a plain HTTP registry need not cost.
        if "https:" in options.url:
            context = ssl.create_default_context(cafile=options.ca_bundle or certifi.where())
        if options.client_certificate:
            password = options.client_key_password or None
            context.load_cert_chain(options.client_certificate, options.client_key or None, password)
    except (OSError, ValueError) as error:  # a file that is not there, or no certificate
        raise UsageError(
            f"the schema registry's certificates can't be used: {error}",
            f"set {section}.ca_bundle, client_certificate and client_key to PEM files",
        ) from error
    return context


def _may_pass(status: int) -> bool:
    """Return True for a status of a registry that may answer otherwise a moment later."""
    return status >= 500 or status in _BUSY


def _settings_path(subject: str) -> str:
    """Return the end of the path of a subject's settings; '' is for those of all subjects."""
    return f"/{_quoted(subject)}" if subject else ""


def _quoted(name: str) -> str:
    """Return a subject as a part of a path: also '..' and '/' stay in their place."""
    return quote(name, safe="").replace(".", "%2E")


def _body(version: SchemaVersion) -> dict[str, Any]:
    """Return the schema as registries take it, without empty fields: older registries don't know all of them."""
    body: dict[str, Any] = {"schema": version.schema}
    # A schema that names no type is Avro.
    if version.type != "AVRO":
        body["schemaType"] = version.type
    if version.references:
        body["references"] = [msgspec.to_builtins(reference) for reference in version.references]
    if version.metadata:
        body["metadata"] = version.metadata
    if version.rules:
        body["ruleSet"] = version.rules
    return body


def _version_of(answer: _Answer, subject: str, number: int) -> SchemaVersion:
    return SchemaVersion(
        subject=subject,
        version=number or answer.version,
        id=answer.id,
        guid=answer.guid or "",
        type=answer.schema_type or "AVRO",
        schema=answer.schema,
        references=tuple(answer.references or ()),
        metadata=answer.metadata,
        rules=answer.rules,
    )
