"""Render keys, values and headers as JSON, text or hexadecimal, cut to a size. Pure.

All control and direction characters are escaped. HTML is escaped here in markup, else by the template.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from markupsafe import Markup, escape

from kbackup.util.printable import printable, printable_lines
from kbackup.web.json_layout import is_json, tokens

View = Literal["auto", "decoded", "text", "json", "hex"]
VIEWS: tuple[View, ...] = ("auto", "decoded", "text", "json", "hex")

WHOLE = 64 << 10
"""Number of bytes of a field on the page of a record."""
PART = 4 << 10
"""Number of bytes of a field on a page of records."""
LINE = 200
"""Number of bytes of a field in a line of a table."""
_BEFORE = 40  # bytes of an excerpt before its match
NAME = 1 << 10
"""Number of bytes of a header's key."""

_INDENTED = 8  # times its bytes: indenting makes nested brackets long
_HEX_CUT = 4  # a dump is this many times as long as its bytes
_COLORED = Markup('<span class="j-{}">{}</span>')


@dataclass(frozen=True, slots=True)
class Shown:
    """A rendered field. `kind` is null, empty, text, json or hex.

    `size` is the size of the field in bytes, of which `shown` are rendered. `note` says why a format is not used."""

    kind: str
    size: int
    shown: int
    content: Markup
    note: str = ""

    @property
    def cut(self) -> bool:
        return self.shown < self.size


def shown(data: bytes | None, view: View = "auto", most: int = WHOLE) -> Shown:
    if data is None:
        return Shown("null", 0, 0, Markup("null"))
    if not data:
        return Shown("empty", 0, 0, Markup("empty"))
    if view == "hex":
        return _hex(data, most)
    if view in ("auto", "decoded", "json") and is_json(data):
        return _json(data, most)
    note = "not JSON" if view == "json" else ""
    text = _text(data, most)
    if text is None and view == "text":
        text = data[:most].decode("utf-8", "backslashreplace")
    if text is None:
        return _hex(data, most, note)
    return Shown(
        "text",
        len(data),
        min(most, len(data)),
        Markup(escape(printable_lines(text))),  # noqa: S704 (escaped)
        note,
    )


def line(data: bytes | None) -> Shown:
    """Return the beginning of a field in one line."""
    if not data:
        return shown(data)
    text = _text(data, LINE)
    kind = "text" if text is not None else "hex"
    content = printable(text) if text is not None else data[:64].hex(" ")
    return Shown(kind, len(data), min(LINE, len(data)), escape(content))


def excerpt(data: bytes, position: int) -> Shown:
    """Return a part of a field in one line: its beginning, or some bytes before `position` and what follows."""
    start = position - _BEFORE
    if position + _BEFORE <= LINE:
        return line(data)
    while start < position and data[start] & 0xC0 == 0x80:  # within a character of UTF-8
        start += 1
    cut = line(data[start:])
    return replace(cut, size=len(data), content=Markup("\N{HORIZONTAL ELLIPSIS}") + cut.content)


def name(data: bytes) -> str:
    """Return a header's key, or its beginning."""
    text = _text(data, NAME)
    if text is None:
        text = data[:NAME].decode("utf-8", "backslashreplace")
    return printable(text) + ("\N{HORIZONTAL ELLIPSIS}" if len(data) > NAME else "")


def _text(data: bytes, most: int) -> str | None:
    """Return the first `most` bytes as text, without an incomplete last character; None if they are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data[:most], final=len(data) <= most)
    except UnicodeDecodeError:
        return None


def _json(data: bytes, most: int) -> Shown:
    """Return indented JSON, with numbers unchanged, or its beginning."""
    parts: list[Markup] = []
    room, end = most * _INDENTED, 0
    for token in tokens(data):
        room -= len(token.text)
        if token.end > most or room < 0:
            return Shown("json", len(data), end, Markup("").join(parts))
        text = escape(token.text)
        parts.append(text if token.kind == "layout" else _COLORED.format(token.kind, text))
        end = token.end
    return Shown("json", len(data), len(data), Markup("").join(parts))


def _hex(data: bytes, most: int, note: str = "") -> Shown:
    cut = min(len(data), max(most // _HEX_CUT // 16 * 16, 16))
    return Shown("hex", len(data), cut, escape("\n".join(_dump(data[:cut]))), note)


def _dump(data: bytes) -> Iterator[str]:
    """Yield lines as `hexdump -C` prints them."""
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        octets = f"{piece[:8].hex(' ')}  {piece[8:].hex(' ')}"
        signs = "".join(chr(o) if 32 <= o < 127 else "." for o in piece)
        yield f"{at:08x}  {octets:<49} |{signs}|"
