"""Render keys, values and headers as JSON, text or hexadecimal, cut to a size. Pure.

All control and direction characters are escaped. HTML is escaped here in markup, else by the template.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
from markupsafe import Markup, escape

from kbackup.util.printable import printable, printable_lines

View = Literal["auto", "text", "json", "hex"]
VIEWS: tuple[View, ...] = ("auto", "text", "json", "hex")

WHOLE = 64 << 10
"""Number of bytes of a field on the page of a record."""
PART = 4 << 10
"""Number of bytes of a field on a page of records."""
LINE = 200
"""Number of bytes of a field in a line of a table."""
NAME = 1 << 10
"""Number of bytes of a header's key."""

_INDENTED = 1 << 20  # characters: indenting makes nested brackets long
_HEX_CUT = 4  # a dump is this many times as long as its bytes
_TOKEN = re.compile(
    r'(?P<name>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)"
)


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
    if view in ("auto", "json"):
        pretty = _json(data) if len(data) <= most else None
        if pretty is not None:
            return Shown("json", len(data), len(data), pretty)
    note = "not JSON" if len(data) <= most else f"not shown as JSON: longer than {most:,} bytes"
    text = _text(data, most)
    if text is None and view == "text":
        text = data[:most].decode("utf-8", "backslashreplace")
    if text is None:
        return _hex(data, most, note if view == "json" else "")
    return Shown(
        "text",
        len(data),
        min(most, len(data)),
        Markup(escape(printable_lines(text))),  # noqa: S704 (escaped)
        note if view == "json" else "",
    )


def line(data: bytes | None) -> Shown:
    """Return the beginning of a field in one line."""
    if not data:
        return shown(data)
    text = _text(data, LINE)
    kind = "text" if text is not None else "hex"
    content = printable(text) if text is not None else data[:64].hex(" ")
    return Shown(kind, len(data), min(LINE, len(data)), escape(content))


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


def _json(data: bytes) -> Markup | None:
    """Return indented JSON, with numbers unchanged; None if the data is neither an object nor an array."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return _coloured(text) if len(text) <= _INDENTED else None


def _coloured(text: str) -> Markup:
    parts: list[Markup] = []
    at = 0
    for token in _TOKEN.finditer(text):
        parts += [
            escape(text[at : token.start()]),
            Markup('<span class="j-{}">{}</span>').format(token.lastgroup, printable(token[0])),
        ]
        at = token.end()
    return Markup("").join([*parts, escape(text[at:])])


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
