"""A schema registry, by its own client: schemas by the ids that records carry. Nothing is ever written there."""

from __future__ import annotations

import base64
from typing import cast

from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2

from kbackup.errors import UndecodableError, UnreachableError, UsageError
from kbackup.schemas.base import KINDS, Kind, RegistryOptions, Schema

BUILT_IN = {
    file.name: base64.b64encode(file.serialized_pb).decode() for file in (meta_pb2.DESCRIPTOR, decimal_pb2.DESCRIPTOR)
}
"""The files that Protobuf schemas import without naming them as references: every registry has them."""
_SECONDS = 20
_TRIES_AGAIN = 2
_DENIED = (401, 403)
_BUSY = (408, 429)
_NO_SCHEMA = (40401, 40402, 40403)
"""The registry's own codes: no such subject, version, schema."""


class CachedRegistry:
    """A client of a schema registry; thread-safe. It caches the answers."""

    def __init__(self, options: RegistryOptions) -> None:
        options.check()
        self.url = options.url
        files = {
            "ssl.ca.location": options.ca_bundle,
            "ssl.certificate.location": options.client_certificate,
            "ssl.key.location": options.client_key,
            "ssl.key.password": options.client_key_password,
        }
        properties: dict[str, object] = {name: value for name, value in files.items() if value}
        properties |= {"url": options.url, "timeout": _SECONDS, "max.retries": _TRIES_AGAIN, "retries.wait.ms": 500}
        if options.user:
            properties["basic.auth.user.info"] = f"{options.user}:{options.password}"
        if options.token:
            properties |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": options.token}
            # which cluster behind a shared address it is: Confluent Cloud's, and to the client a must
            properties["bearer.auth.logical.cluster"] = ""
        try:
            self._client = SchemaRegistryClient(properties)
        except (OSError, ValueError) as error:  # a file that is not there, or no certificate
            raise UsageError(
                f"the schema registry's certificates can't be used: {error}",
                "set schema_registry.ca_bundle, client_certificate and client_key to PEM files",
            ) from error

    def schema(self, schema_id: int | str) -> Schema:
        """Return the schema of an id or GUID with all schemas that it refers to.

        `UndecodableError` if the registry lacks one of them, `UnreachableError` if it can't be reached.
        """
        try:
            registered = (
                self._client.get_schema(schema_id)
                if isinstance(schema_id, int)
                else self._client.get_schema_by_guid(schema_id)
            )
            references = self._references(registered, {})
        except SchemaRegistryError as error:
            raise self._refused(error, schema_id) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(
                f"the schema registry {self.url} can't be reached: {str(error) or type(error).__name__}",
                "check the URL, and that schema_registry.ca_bundle holds the issuer of its certificate",
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # of an answer that is none
            raise self._strange() from error
        kind = registered.schema_type or "AVRO"
        if kind == "PROTOBUF":
            references = {**BUILT_IN, **references}
        if kind not in KINDS or not registered.schema_str:
            raise UndecodableError(f"schema {schema_id} is of type {kind}, which is not known here")
        return Schema(cast(Kind, kind), registered.schema_str, tuple(references.items()), f"schema {schema_id}")

    def _references(self, schema: Registered, known: dict[str, str]) -> dict[str, str]:
        """Texts by the names that they are referred to, deepest first."""
        for reference in schema.references or ():
            if reference.name in known or not (reference.name and reference.subject and reference.version):
                continue
            found = self._client.get_version(reference.subject, reference.version, deleted=True).schema
            known[reference.name] = ""  # a circle ends here
            self._references(found, known)
            del known[reference.name]
            known[reference.name] = found.schema_str or ""
        return known

    def _refused(self, error: SchemaRegistryError, schema_id: int | str) -> Exception:
        if error.error_code in _NO_SCHEMA:
            return UndecodableError(f"the registry has no schema {schema_id}")
        if error.http_status_code in _DENIED:
            return UnreachableError(
                f"the schema registry {self.url} denies access: HTTP status {error.http_status_code}",
                "set schema_registry.user and schema_registry.password, or schema_registry.token",
            )
        if error.http_status_code >= 500 or error.http_status_code in _BUSY:
            return UnreachableError(
                f"the schema registry {self.url} fails: {error.error_message} (HTTP status {error.http_status_code})",
                "try again later, or decode by schema files",
            )
        return self._strange()

    def _strange(self) -> UnreachableError:
        return UnreachableError(
            f"what answers at {self.url} is no schema registry", "check schema_registry.url, its path too"
        )
