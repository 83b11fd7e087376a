"""Lay out JSON in lines, token by token: memory does not grow with the value. Pure.

Numbers and strings stay as they are written. Characters that can't be shown become JSON's escapes.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

LEVELS = 40
"""Deeper brackets are not indented further: the text would be many times as long as the value."""
_CHUNK = 4 << 10  # bytes of a string in a token
_PIECE = 64 << 10  # characters that are sent at once
_DECODED = 1 << 20  # bytes
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL)
_WORDS = (b"t", b"f", b"n")


class Token(NamedTuple):
    """A piece of laid out JSON. `end` is the offset in the value behind the bytes that it shows."""

    kind: Literal["name", "text", "number", "word", "layout"]
    text: str
    end: int


def is_json(data: bytes) -> bool:
    """Return whether `data` is an object or an array in JSON."""
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(data), _DECODED):
            decoder.decode(data[start : start + _DECODED])
        decoder.decode(b"", final=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def tokens(data: bytes) -> Iterator[Token]:
    """Yield the tokens of a value that `is_json`, in order, with line ends and blanks between them."""
    stack = bytearray()
    is_first = is_name = False
    for match in _TOKEN.finditer(data):
        start, end = match.span()
        sign = data[start : start + 1]
        if sign in b"}]":
            stack.pop()
            yield Token("layout", ("" if is_first else _line(stack)) + sign.decode(), end)
            is_first = False
        elif sign == b",":
            is_name = stack.endswith(b"{")
            yield Token("layout", "," + _line(stack), end)
        elif sign == b":":
            yield Token("layout", ": ", end)
        else:
            if is_first:
                yield Token("layout", _line(stack), start)
            is_first = sign in b"{["
            if is_first:
                stack += sign
                yield Token("layout", sign.decode(), end)
            else:
                yield from _scalar(data, start, end, is_name=is_name)
            is_name = sign == b"{"


def indented(data: bytes) -> Iterator[str]:
    """Yield a value that `is_json` in pieces of its layout, with a line end at its end."""
    pieces: list[str] = []
    size = 0
    for token in tokens(data):
        pieces.append(token.text)
        size += len(token.text)
        if size >= _PIECE:
            yield "".join(pieces)
            pieces, size = [], 0
    yield "".join([*pieces, "\n"])


def _line(stack: bytearray) -> str:
    return "\n" + "  " * min(len(stack), LEVELS)


def _scalar(data: bytes, start: int, end: int, *, is_name: bool) -> Iterator[Token]:
    """Yield the tokens of a string, a number or a word; long ones in several."""
    first = data[start : start + 1]
    kind: Literal["name", "text", "number", "word"] = "name" if is_name else "text"
    if first != b'"':
        kind = "word" if first in _WORDS else "number"
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(start, end, _CHUNK):
        upto = min(at + _CHUNK, end)
        yield Token(kind, _shown(decoder.decode(data[at:upto])), upto)


def _shown(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
