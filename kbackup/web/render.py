"""Markup of names, numbers and fields of records, and the templates of pages. Names and fields are escaped."""

from __future__ import annotations

import codecs
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from kbackup import __version__, systems
from kbackup.archive.query.selection import exact_entry
from kbackup.util.html import templates
from kbackup.util.text import ends, hex_lines, human_count, human_size, json_sign, plural, printable, printable_lines
from kbackup.util.times import calendar_text, duration_text, human_time, ms_of, time_text
from kbackup.web.charts import Unit

# Names: a long one loses its middle on a narrow screen, but copies and searches get the whole name. The page holds
# every character; the style sheet cuts names to the width of the screen.


_SHORT = 28  # characters that fit on every screen
_LONG = Markup('<span class="long" title="{0}" aria-label="{0}"><span>{1}</span>{2}</span>')
"""The label is for screen readers, which would set the two ends apart."""
_BLANKS = Markup('<span class="blanks">{}</span>')  # for names that would look like others


def name(text: str) -> Markup:
    """Return the markup of the name of a topic, a group, a user or a setting."""
    return _cut(text, 10)


def key(text: str) -> Markup:
    """Return the markup of the key of an object; its file name is never cut."""
    return _cut(text, len(text.rpartition("/")[2]))


def _cut(text: str, tail: int) -> Markup:
    """Return the markup of a name, whose last `tail` characters stay where a long name loses its middle."""
    shown = printable(text)
    if len(shown) > _SHORT:
        return _LONG.format(shown, *ends(shown, tail))
    # HTML shows several blanks as one, and none at the ends.
    looks_the_same = shown == " ".join(shown.split())
    return escape(shown) if looks_the_same else _BLANKS.format(shown)


# Render numbers, sizes and times for people, with the exact value to hover over and to copy (`page.js`).


DASH = "\N{EN DASH}"
NONE = Markup('<span class="none">{}</span>').format(DASH)
_COUNT = Markup('<data class="n" value="{}">{}</data>')
_SIZE = Markup('<data class="n" value="{}" title="{} bytes">{}</data>')
_TIME = Markup('<time class="n" datetime="{}" title="{}">{}</time>')


def count(number: int | None) -> Markup:
    return NONE if number is None else _COUNT.format(number, f"{number:,}")


def size(nbytes: int | None) -> Markup:
    if nbytes is None:
        return NONE
    return _SIZE.format(nbytes, f"{nbytes:,}", human_size(nbytes))


def short(value: int, unit: Unit) -> str:
    """Return the label of a round value on an axis: "512 KiB", "20M", "15m"."""
    if unit == "ms":
        return duration_text(value / 1000)
    text = human_size(value) if unit == "bytes" else human_count(value)
    return text.replace(".0", "")


def when(moment: int | str | None) -> Markup:
    """Return the markup of a time in ms since the epoch or in RFC 3339."""
    if moment is None or moment == "":
        return NONE
    try:
        ms = ms_of(moment) if isinstance(moment, str) else moment
    except ValueError:
        return Markup("{}").format(moment)
    # Producers may set any time: one beyond the calendar is a number of 19 digits, which would widen its column.
    shown = human_time(ms) if calendar_text(ms, "%Y") else f"{ms:.1e} ms"
    return _TIME.format(time_text(ms), f"{ms} ms since 1970, {ago(ms)}", shown)


def ago(ms: int) -> str:
    seconds = time.time() - ms / 1000
    if seconds < 0:
        # The clock of a backup or of a producer is ahead of this one.
        return f"{duration_text(-seconds)} ahead"
    return f"{duration_text(seconds)} ago"


def between(start: str, end: str) -> str:
    """Return the duration between two RFC 3339 times."""
    try:
        elapsed = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    except ValueError:
        return DASH
    seconds = elapsed.total_seconds()
    return f"{seconds:.1f}s" if 0 <= seconds < 60 else duration_text(seconds)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else DASH


# Lay out JSON in lines, token by token: memory does not grow with the value. Pure.
#
# Numbers and strings stay as they are written. Characters that can't be shown become JSON's escapes.


LEVELS = 40
"""Deeper brackets are not indented further: the text would be many times as long as the value."""
_CHUNK = 4 << 10  # bytes of a string in a token
_PIECE = 64 << 10  # characters that are sent at once
_DECODED = 1 << 20  # bytes
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL)
_WORDS = (b"t", b"f", b"n")


TokenKind = Literal["name", "text", "number", "word", "layout"]


class JsonToken(NamedTuple):
    """A piece of laid out JSON. `start` and `end` are the offsets in the value of the bytes that it shows."""

    kind: TokenKind
    text: str
    end: int
    start: int = 0


def is_json(data: bytes) -> bool:
    """Return whether `data` is an object or an array in JSON."""
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        # `Raw` checks the syntax and builds no objects, but leaves the strings unchecked: they may not be UTF-8.
        msgspec.json.decode(data, type=msgspec.Raw)
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(data), _DECODED):
            decoder.decode(data[start : start + _DECODED])
        decoder.decode(b"", final=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def tokens(data: bytes) -> Iterator[JsonToken]:
    """Yield the tokens of a value that `is_json`, in order, with line ends and blanks between them."""
    stack = bytearray()
    is_first = is_name = False
    for match in _TOKEN.finditer(data):
        start, end = match.span()
        sign = data[start : start + 1]
        if sign in b"}]":
            stack.pop()
            # An empty object or array stays on one line.
            before = "" if is_first else _line(stack)
            yield JsonToken("layout", before + sign.decode(), end)
            is_first = False
        elif sign == b",":
            is_name = stack.endswith(b"{")
            yield JsonToken("layout", "," + _line(stack), end)
        elif sign == b":":
            yield JsonToken("layout", ": ", end)
        else:
            if is_first:
                yield JsonToken("layout", _line(stack), start)
            is_first = sign in b"{["
            if is_first:
                stack += sign
                yield JsonToken("layout", sign.decode(), end)
            else:
                kind: TokenKind = "word" if sign in _WORDS else "number"
                if sign == b'"':
                    kind = "name" if is_name else "text"
                yield from _scalar(data, start, end, kind)
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
    """Return a line end and the blanks of a line within the open brackets of `stack`."""
    return "\n" + "  " * min(len(stack), LEVELS)


def _scalar(data: bytes, start: int, end: int, kind: TokenKind) -> Iterator[JsonToken]:
    """Yield a string, a number or a word as one token, or as several if it is long."""
    # A chunk may end within a character, which the decoder keeps for the next chunk.
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(start, end, _CHUNK):
        upto = min(at + _CHUNK, end)
        text = decoder.decode(data[at:upto])
        if not text.isprintable():
            text = "".join(map(json_sign, text))
        yield JsonToken(kind, text, upto, at)


# Render keys, values and headers as JSON, text or hexadecimal, cut to a size. Pure.
#
# All control and direction characters are escaped. HTML is escaped here in markup, else by the template.


View = Literal["auto", "decoded", "text", "json", "hex"]
VIEWS: tuple[View, ...] = get_args(View)

WHOLE = 64 << 10
"""Number of bytes of a field on the page of a record."""
PART = 4 << 10
"""Number of bytes of a field on a page of records."""
LINE = 200
"""Number of bytes of a field in a line of a table."""
_HEX_LINE = 64
NAME = 1 << 10
"""Number of bytes of a header's key."""

_INDENTED = 8  # times its bytes: indenting makes nested brackets long
_HEX_CUT = 4  # a dump is this many times as long as its bytes
_COLORED = Markup('<span class="j-{}">{}</span>')
_MARK = Markup("<mark>{}</mark>")

Spans = Sequence[tuple[int, int]]
"""What to highlight in a field: (start, end) in bytes, in order."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A rendered field. `kind` is null, empty, text, json or hex.

    `size` is the size of the field in bytes, of which `shown` are rendered. `note` is the reason why a format is not
    used; `schema` the id or GUID of the schema that decoded it. `undecoded`: its schema could not decode it."""

    kind: str
    size: int
    shown: int
    content: Markup
    note: str = ""
    schema: object = None
    undecoded: bool = False

    @property
    def cut(self) -> bool:
        return self.shown < self.size


def shown(data: bytes | None, view: View = "auto", most: int = WHOLE, spans: Spans = ()) -> Shown:
    """Return a field, or its beginning; `spans` are highlighted in JSON and text."""
    if data is None:
        return Shown("null", 0, 0, Markup("null"))
    if not data:
        return Shown("empty", 0, 0, Markup("empty"))
    if view == "hex":
        return _hex(data, most)
    if view in ("auto", "decoded", "json") and is_json(data):
        return _json(data, most, spans)
    note = "not JSON" if view == "json" else ""
    text = _text(data, most)
    if text is None and view == "text":
        # Whoever asks for text gets text, even of bytes that are none.
        text = data[:most].decode("utf-8", "backslashreplace")
    if text is None:
        return _hex(data, most, note)
    content = _marked(text, spans, printable_lines)
    rendered = min(most, len(data))
    return Shown("text", len(data), rendered, content, note)


def line(data: bytes | None, spans: Spans = ()) -> Shown:
    """Return the beginning of a field in one line."""
    if not data:
        return shown(data)
    text = _text(data, LINE)
    if text is not None:
        content = _marked(text, spans, printable)
        return Shown("text", len(data), min(LINE, len(data)), content)
    beginning = data[:_HEX_LINE]
    octets = [(piece.hex(" "), hit) for piece, hit in _pieces(beginning, spans)]
    content = _highlighted(octets, Markup(" "))
    return Shown("hex", len(data), len(beginning), content)


def excerpt(data: bytes | None, spans: Spans, before: int) -> Shown:
    """Return a part of a field in one line: its beginning, or `before` bytes before the first of `spans` and what
    follows. A cell of a table shows the match."""
    start = spans[0][0] - before if spans else 0
    if not data or start <= 0:
        return line(data, spans)
    while start < spans[0][0] and data[start] & 0xC0 == 0x80:  # within a character of UTF-8
        start += 1
    moved_spans = [(low - start, high - start) for low, high in spans]
    cut = line(data[start:], moved_spans)
    content = Markup("\N{HORIZONTAL ELLIPSIS}") + cut.content
    return replace(cut, size=len(data), content=content)


def header_name(data: bytes, spans: Spans = ()) -> Markup:
    """Return a header's key, or its beginning."""
    text = _text(data, NAME)
    if text is None:
        # Each byte that is no text becomes four characters: the spans would highlight others.
        text, spans = data[:NAME].decode("utf-8", "backslashreplace"), ()
    rest = "\N{HORIZONTAL ELLIPSIS}" if len(data) > NAME else ""
    return _marked(text, spans, printable) + rest


def _marked(text: str, spans: Spans, form: Callable[[str], str]) -> Markup:
    """Return text with the characters highlighted that `spans` touch in its UTF-8."""
    if not spans:
        return escape(form(text))
    data = text.encode()
    whole = []
    for low, high in spans:
        if low < len(data):  # the text may be the beginning of the field, and the match behind it
            whole.append((_character(data, low), _character(data, high, 1)))
    pieces = []
    for piece, hit in _pieces(data, whole):
        pieces.append((form(piece.decode()), hit))
    return _highlighted(pieces, Markup(""))


def _highlighted(pieces: Iterable[tuple[str, bool]], between: Markup) -> Markup:
    """Return pieces of text, escaped, each with a mark if it is a hit."""
    marked: list[Markup] = []
    for piece, hit in pieces:
        marked.append(_MARK.format(piece) if hit else escape(piece))
    return between.join(marked)


def _character(data: bytes, at: int, step: int = -1) -> int:
    """Return the next border of a character from `at` on: backwards, or forwards."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at += step
    return at


def _pieces(data: bytes, spans: Spans) -> Iterator[tuple[bytes, bool]]:
    """Yield the pieces of `data` between and within `spans`, each with whether it is within one."""
    at = 0
    for low, high in spans:
        # Spans may overlap: what was yielded once does not come again.
        begin = max(low, at)
        end = max(high, at)
        before = data[at:begin]
        if before:
            yield before, False
        hit = data[begin:end]
        if hit:
            yield hit, True
        at = end
    rest = data[at:]
    if rest:
        yield rest, False


def _text(data: bytes, most: int) -> str | None:
    """Return the first `most` bytes as text, without an incomplete last character; None if they are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data[:most], final=len(data) <= most)
    except UnicodeDecodeError:
        return None


def _json(data: bytes, most: int, spans: Spans) -> Shown:
    """Return indented JSON, with numbers unchanged, or its beginning."""
    parts: list[Markup] = []
    room, end = most * _INDENTED, 0
    for token in tokens(data):
        room -= len(token.text)
        if token.end > most or room < 0:
            return Shown("json", len(data), end, Markup("").join(parts))
        if token.kind == "layout":
            parts.append(escape(token.text))
        else:
            marked = _marked(token.text, _spans_within(token, data, spans), str)
            parts.append(_COLORED.format(token.kind, marked))
        end = token.end
    return Shown("json", len(data), len(data), Markup("").join(parts))


def _spans_within(token: JsonToken, data: bytes, spans: Spans) -> Spans:
    """Return what to highlight in the text of a token, counted from the beginning of the token."""
    touching = [(low, high) for low, high in spans if low < token.end and high > token.start]
    is_escaped = token.text.encode("utf-8", "replace") != data[token.start : token.end]
    if touching and is_escaped:
        # Its bytes and its text differ, so no place in one is a place in the other: all of it is highlighted. The end
        # is past the text's end, as a character takes at most four bytes.
        return [(0, 8 * len(token.text))]
    return [(max(low - token.start, 0), high - token.start) for low, high in touching]


def _hex(data: bytes, most: int, note: str = "") -> Shown:
    """Return lines as `hexdump -C` prints them."""
    room = most // _HEX_CUT // 16 * 16  # whole lines
    cut = min(len(data), max(room, 16))
    text = "\n".join(hex_lines(data[:cut]))
    content = escape(text)
    return Shown("hex", len(data), cut, content, note)


# Render templates to pages, and make addresses of pages and files.


@cache
def environment() -> Environment:
    """Return the templates of pages, with the filters and functions that they use."""
    jinja = templates("kbackup.web", [page.templates for page in systems.pages()])
    for filter_ in (count, size, when, ago, short, name, key):
        jinja.filters[filter_.__name__] = filter_
    jinja.filters |= {"duration": duration_text, "plain_size": human_size, "entry": exact_entry}
    jinja.filters["escaped"] = printable  # a clipboard's text may be pasted into a terminal
    for function in (plural, between, percent, static):
        jinja.globals[function.__name__] = function
    jinja.globals["version"] = __version__
    return jinja


def page(template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    content = environment().get_template(template).render(context)
    return HTMLResponse(content, status)


def path(*parts: object, **query: object) -> str:
    """Return the address of a page. A parameter that is None is left out; a list becomes one parameter an entry."""
    address = ""
    for part in parts:
        # Names of topics in folders of the Java tool may have slashes: these are quoted, too.
        quoted = quote(str(part), safe="")
        address += f"/{quoted}"
    address = address or "/"
    parameters = {name: value for name, value in query.items() if value is not None}
    if parameters:
        address += f"?{urlencode(parameters, doseq=True)}"
    return address


@cache
def static(name: str) -> str:
    """Return the address of a file under static/, which changes with its content."""
    data = resources.files("kbackup.web").joinpath("static", name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:12]}"
