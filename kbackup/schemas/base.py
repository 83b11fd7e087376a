"""Schemas, and the codecs that decode bytes by them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from kbackup.errors import KbackupError, UndecodableError, UsageError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
KINDS = ("AVRO", "PROTOBUF", "JSON")

Headers = Sequence[tuple[bytes, bytes | None]]
AVRO_DECIMAL = f"kbackup-decimal-{secrets.token_hex(16)}"
"""Stands for fastavro's logical type `decimal`, whose time is quadratic in the bytes of a number, with one context for
all threads. No schema can have this name: what has it was checked by fastavro, such as a scale within the precision."""
EXTRA = "install it: pip install 'kafka-kbackup[schemas]'"


class Schema(NamedTuple):
    """`references` are (name, text) of all schemas that `text` needs, each after those that it needs itself; `name` is
    for messages."""

    kind: SchemaType
    text: str
    references: tuple[tuple[str, str], ...] = ()
    name: str = "the schema"


# The content of a registry, as a restore point keeps it.


class SchemaReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another schema that a schema needs, by the name that it has in the text."""

    name: str
    subject: str
    version: int


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version of a subject. A subject of another context than the default one is `:.context:subject`.

    `state` is 'active', 'deleted' (softly: the registry still knows its id), or 'gone': the registry no longer has it,
    and the restore point keeps it from earlier ones, since records carry its id. `guid` is empty if the registry has
    none; `metadata` and `rules` are the registry's own JSON.
    """

    subject: str
    version: int
    id: int
    guid: str = ""
    type: str = "AVRO"
    schema: str
    references: tuple[SchemaReference, ...] = ()
    metadata: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None
    state: Literal["active", "deleted", "gone"] = "active"

    @property
    def place(self) -> tuple[str, int]:
        """The subject and the number, by which other schemas refer to this one."""
        return self.subject, self.version


class SubjectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a subject, of a context (`:.context:`), or ('') of the whole registry: `config` is the registry's
    own JSON, with `compatibilityLevel`. Null where nothing is set."""

    subject: str
    config: dict[str, Any] | None = None
    mode: str | None = None


def context_of(subject: str) -> str:
    """Return `:.context:` of a subject, '' for the default context."""
    end = subject.find(":", 1)
    if subject.startswith(":.") and end > 0:
        return subject[: end + 1]
    return ""


def qualified(subject: str, context: str) -> str:
    """Return the subject of a reference with the context of the schema that has it, if it names none."""
    return subject if context_of(subject) else context + subject


Find = Callable[[SchemaVersion, SchemaReference], SchemaVersion]
"""Returns the schema that a reference of a version means; `UndecodableError` if it is not there."""


def standing_on(version: SchemaVersion, find: Find) -> list[tuple[str, SchemaVersion]]:
    """Return all schemas that a schema needs, with the names by which they are referred to, each after those that it
    needs itself. A circle ends where it closes."""
    # A stack instead of recursion: registries allow longer chains of references than Python allows calls.
    found: list[tuple[str, SchemaVersion]] = []
    begun: set[tuple[str, str, int]] = set()
    waiting = [("", version, iter(version.references))]
    while waiting:
        name, at, rest = waiting[-1]
        for reference in rest:
            needed = find(at, reference)
            step = (reference.name, needed.subject, needed.version)
            is_start = (needed.subject, needed.version) == (version.subject, version.version)
            if step not in begun and not is_start:
                begun.add(step)
                waiting.append((reference.name, needed, iter(needed.references)))
                break
        else:
            waiting.pop()
            found.append((name, at))
    return found[:-1]  # the last one is the schema itself


def schema_of(version: SchemaVersion, find: Find, built_in: Mapping[str, str], name: str) -> Schema:
    """Return a schema with all schemas that it needs. `built_in` are files that Protobuf schemas import without naming
    them as references; `name` is for messages. `UndecodableError` if it is of another kind."""
    if version.type not in KINDS or not version.schema:
        raise UndecodableError(f"{name} is of type {version.type}, which is not known here")
    kind = cast(SchemaType, version.type)
    texts = dict(built_in) if kind == "PROTOBUF" else {}
    for needed_name, needed in standing_on(version, find):
        texts[needed_name] = needed.schema
    return Schema(kind, version.schema, tuple(texts.items()), name)


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """`[schema_registry]`: the source's registry, which backups read, and where `cat` and `find` ask for what an
    archive lacks. `[target_schema_registry]`: the one that schemas are restored into. `url` may be several, with
    commas between."""

    url: Annotated[str, "URL of the schema registry: `https://host:8081`."] = ""
    user: Annotated[str, "User of the registry, or an API key."] = ""
    password: Annotated[str, "Password of `user`, or an API secret."] = field(default="", repr=False)
    token: Annotated[str, "Bearer token, in place of a user."] = field(default="", repr=False)
    ca_bundle: Annotated[str, "PEM file of certificates to trust. Unset: those of the package certifi."] = ""
    client_certificate: Annotated[str, "PEM file of kbackup's client certificate."] = ""
    client_key: Annotated[str, "PEM file of the certificate's private key."] = ""
    client_key_password: Annotated[str, "Password of `client_key`."] = field(default="", repr=False)

    def check(self, section: str = "schema_registry") -> None:
        """Raise `UsageError` for a URL that is none, and for logins that don't go together."""
        for url in self.url.split(","):
            parts = urlsplit(url.strip())
            if parts.username is not None or parts.password is not None:
                raise UsageError(
                    "the URL of the schema registry holds credentials",
                    f"give them as {section}.user and {section}.password instead",
                )
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UsageError(
                    f"{url!r} is no URL of a schema registry", "write it as https://registry.example.com:8081"
                )
        if bool(self.user) != bool(self.password):
            raise UsageError("a schema registry's user and password only work together", "set both or none")
        if self.user and self.token:
            raise UsageError("a schema registry takes a user or a token", "set one of them")


# How large a decoded key or value may become. A few bytes can name as many values, or as much text, as a hostile schema
# likes: fields with their defaults, long names of fields and of symbols, and numbers with millions of zeros.

_LEAST_TEXT = 32 << 20
_MOST_GROWTH = 128
"""Lists of small messages with dozens of fields, most of them without a value, grow about as much."""
_MOST_TEXT = 512 << 20
"""Above it, data may only grow a little: JSON of whole numbers and bytes is longer than they are."""
_LEAST_GROWTH = 8


class TextBudget:
    """The characters of JSON that a key or value of `size` bytes may become."""

    def __init__(self, size: int) -> None:
        self.size = size
        usual = min(_LEAST_TEXT + _MOST_GROWTH * size, _MOST_TEXT)
        self.most = max(usual, _LEAST_GROWTH * size)
        self._left = self.most

    def spend(self, characters: int) -> None:
        """Count characters. `UndecodableError` where they are too many."""
        self._left -= characters
        if self._left < 0:
            raise UndecodableError(
                f"its {self.size:,} bytes would become more than {self.most:,} characters of JSON",
                "show the bytes as they are: its schema may have been made to exhaust memory",
            )


class Codec(Protocol):
    @property
    def kind(self) -> SchemaType: ...

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        """Decode all of `data`, without a registry's frame. `indexes` select the message of a Protobuf file: the n-th
        of the file, the n-th within that one and so on. `UndecodableError` if it does not fit."""
        ...

    def fits(self, data: bytes, indexes: Sequence[int] | None = None) -> bool:
        """Return whether all of `data` is what the schema describes, and the schema does not describe any bytes: then
        a serializer wrote them."""
        ...


def missing(error: ImportError) -> UsageError:
    """Return the error for a library that is not installed."""
    return UsageError(f"decoding by schemas needs a library that is not installed: {error}", EXTRA)


@contextmanager
def of_others(name: str, kind: str) -> Iterator[None]:
    """Turn every error of a schema library into `UndecodableError`. A schema is user text, and libraries raise any
    error for it, `AttributeError` and `RecursionError` among them."""
    try:
        yield
    except (KbackupError, ImportError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UndecodableError(f"{name} is no {kind}: {reason}") from error


def misfit(kind: SchemaType, error: Exception) -> UndecodableError:
    """Return the error for bytes that a library refuses, in one line."""
    reason = str(error).strip().partition("\n")[0]
    return UndecodableError(f"not {kind} by its schema: {reason or type(error).__name__}")
