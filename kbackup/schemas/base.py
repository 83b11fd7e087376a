"""Schemas, and the codecs that decode bytes by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, TypeAlias

from kbackup.errors import KbackupError, UndecodableError, UsageError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Kind = Literal["AVRO", "PROTOBUF", "JSON"]

Headers = Sequence[tuple[bytes, bytes | None]]
EXTRA = "install it: pip install 'kafka-kbackup[schemas]'"


class Schema(NamedTuple):
    """`references` are (name, text) of all that `text` stands on, each after what it needs itself; `name` is for
    messages."""

    kind: Kind
    text: str
    references: tuple[tuple[str, str], ...] = ()
    name: str = "the schema"


class Codec(Protocol):
    @property
    def kind(self) -> Kind: ...

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        """Decode all of `data`, without a registry's frame. `indexes` select the message of a Protobuf file: the n-th
        of the file, the n-th within that one and so on. `UndecodableError` if it does not fit."""
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


def misfit(kind: Kind, error: Exception) -> UndecodableError:
    """Return the error for bytes that a library refuses, in one line."""
    reason = str(error).strip().partition("\n")[0]
    return UndecodableError(f"not {kind} by its schema: {reason or type(error).__name__}")
