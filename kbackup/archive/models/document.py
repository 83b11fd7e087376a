"""Read and write an archive's JSON files: each has a format, a version, and a checksum over its own canonical bytes.

A damaged or a later file is refused, not half understood. Times are RFC 3339 in UTC; offsets are int64; an `end` is
exclusive.
"""

from __future__ import annotations

import hashlib
import re
import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

from kbackup.errors import CorruptError


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON file of the archive. `checksum` is sha256 over the same text with an empty checksum (`text_checksum`)."""

    format: str
    version: int = 1
    checksum: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


D = TypeVar("D", bound=Document)
_HINT = (
    "take it from a bucket version or another copy of the archive; run 'kbackup verify', which lists every finding, "
    "and 'kbackup repair', which shows what can be mended"
)


_NEWER = "use the kbackup that wrote it, or a newer one"
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_NO_ID = "matching regex"
"""In errors about an archive's id of another form, which no later version has under the same number."""
_CHECKSUM = re.compile(rb'"checksum":"[^"]*"')


def text_checksum(text: bytes) -> str:
    """sha256 over the JSON text itself, without white space between its tokens and with an empty `checksum`
    (the first member of that name).

    Over the text and not over what is understood of it, so that a member with a default can be added to a
    model without making every older file look damaged.
    """
    bare = _CHECKSUM.sub(b'"checksum":""', msgspec.json.format(text, indent=-1), count=1)
    return "sha256:" + hashlib.sha256(bare).hexdigest()


def dump(document: Document, indent: int = 1) -> bytes:
    """The file's bytes, its checksum filled in, indented for people, or (-1) not."""
    full = msgspec.structs.replace(document, checksum=text_checksum(msgspec.json.encode(document)))
    return msgspec.json.format(msgspec.json.encode(full), indent=indent) + b"\n"


class NewerError(CorruptError):
    """A file that is whole by its own checksum, in a version or with members that are not known here: nothing that is
    damaged, and nothing to be replaced."""


class _Head(msgspec.Struct, frozen=True):
    """The members that are checked before any other is parsed."""

    format: Any = None
    version: Any = None
    checksum: Any = None


_HEAD = msgspec.json.Decoder(_Head)


_decoders: dict[type[Document], msgspec.json.Decoder[Any]] = {}
_decoders_lock = threading.Lock()


def _decoder(kind: type[D]) -> msgspec.json.Decoder[D]:
    """Made once: msgspec 0.22 crashes the process where two threads look a type up for the first time."""
    with _decoders_lock:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


@cache
def _format_of(kind: type[Document]) -> tuple[object, object]:
    """The format and the version of a kind of document; msgspec takes 2 ms to find them."""
    defaults = {each.name: each.default for each in msgspec.structs.fields(kind)}
    return defaults["format"], defaults["version"]


def load(kind: type[D], data: bytes, name: str) -> D:
    """Raises `CorruptError` for anything that is not a whole file of this kind in a version known here; `NewerError`
    where it is whole."""
    try:
        head = _HEAD.decode(data)
    except msgspec.ValidationError:
        head = _Head()  # JSON, but no object
    except _UNREADABLE as error:
        raise CorruptError(f"file {name} is not JSON: {error}", _HINT) from error
    expected, version = _format_of(kind)
    if head.format != expected:
        raise CorruptError(
            f"file {name} says format {head.format!r}, not {expected!r}",
            "check that the address is one of a kbackup archive",
        )
    if head.version != version:
        error_of = NewerError if head.checksum == text_checksum(data) else CorruptError
        raise error_of(f"file {name} has version {head.version!r}, known is {version}", _NEWER)
    try:
        document = _decoder(kind).decode(data)
    except _UNREADABLE as error:
        if head.checksum == text_checksum(data) and _NO_ID not in str(error):
            raise NewerError(f"file {name}: {error}", _NEWER) from error
        raise CorruptError(f"file {name}: {error}", _HINT) from error
    if document.checksum != text_checksum(data):
        raise CorruptError(f"file {name} does not match its own checksum", _HINT)
    return document
