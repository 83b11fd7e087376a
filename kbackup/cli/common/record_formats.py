"""Format records as text, as JSON lines, in hexadecimal, or by a user's format with kcat's letters."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Protocol

from kbackup.errors import UsageError
from kbackup.formats.record import Row
from kbackup.jobs.decoding import PARTS, TYPES, UNDECODED, document
from kbackup.schemas.decoder import Decoded, DecodedRecord, Made, Undecoded
from kbackup.types import TopicPartition
from kbackup.util.text import hex_lines, json_line, plural, printable
from kbackup.util.times import time_text


class Show(Protocol):
    """Returns the output for a record, with the line feed at its end.

    A decoded key or value replaces its bytes. Output as bytes is not safe for a terminal."""

    def __call__(self, tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str | bytes: ...


def text(data: bytes) -> str:
    """Return bytes as text that is safe for a terminal; bytes that are not UTF-8 become `\\xff`."""
    return printable(data.decode("utf-8", "backslashreplace"))


def as_text(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Return address, time, key, value and headers with tabs between; null is `null`. At the end stands why a key or
    value is shown undecoded."""
    key = _field_text(row.key, parts.key)
    value = _field_text(row.value, parts.value)
    cells = [_address(tp, row), _time(row), key, value]
    if row.headers:
        headers = [f"{text(name)}={_or_null(data)}" for name, data in row.headers]
        cells.append(",".join(headers))
    for part, made in zip(PARTS, parts, strict=True):
        if isinstance(made, Undecoded):
            cells.append(f"({part} not decoded: {printable(made.why)})")
    return "\t".join(cells) + "\n"


def as_json(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Return JSON in one line; bytes that are not UTF-8 are {"base64": "…"}."""
    return json_line(document(tp, row, parts)) + "\n"


def as_hex(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Return undecoded key, value and headers as `hexdump -C` shows them, and an empty line."""
    lines = [f"{_address(tp, row)}  {_time(row)}  {TYPES[row.timestamp_type]}"]
    fields = [("key", row.key), ("value", row.value)]
    for header, data in row.headers:
        fields.append((f"header {text(header)}", data))
    for name, data in fields:
        if data is None:
            lines.append(f"{name}, null")
            continue
        lines.append(f"{name}, {plural(len(data), 'byte')}")
        lines += hex_lines(data)
    return "\n".join(lines) + "\n\n"


def _address(tp: TopicPartition, row: Row) -> str:
    return f"{tp.topic}:{tp.partition}:{row.offset}"


def _time(row: Row) -> str:
    return "-" if row.timestamp is None else time_text(row.timestamp)


def _bytes(data: bytes | None, made: Made) -> bytes:
    """Return a key or a value: as JSON if it was decoded."""
    if isinstance(made, Decoded):
        return json_line(made.value).encode()
    return data or b""


def _field_text(data: bytes | None, made: Made) -> str:
    """Return a key or a value in one line: as JSON if it was decoded."""
    if isinstance(made, Decoded):
        return json_line(made.value)
    return _or_null(data)


def _or_null(data: bytes | None) -> str:
    return "null" if data is None else text(data)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


SHOWS: dict[str, Show] = {"text": as_text, "json": as_json, "hex": as_hex}
"""The functions that format a record, by the words of `--output`."""


# Formats of the user.


_Field = Callable[[TopicPartition, Row, DecodedRecord], bytes]
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_TOKEN = re.compile(r"%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>[nrt\\])", re.DOTALL)
FORMAT_HELP = (
    "As kcat's -f: %t topic, %p partition, %o offset, %T timestamp (ms), %k key, %K its length, %v or %s value, "
    "%V or %S its length (-1: null), %R the same as 4 bytes, %h headers; \\n \\r \\t \\xXX. No line feed is added."
)


def as_format(template: str, *, raw: bool = False) -> Show:
    """Return the function that formats a record by `template`: with its fields escaped, or with `raw` as bytes.

    Raises `UsageError` for an unknown letter."""
    try:
        template.encode()
    except UnicodeEncodeError:
        raise UsageError("--format is not UTF-8", r"write a byte as \xff") from None
    pieces = _pieces(template)

    def show_raw(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> bytes:
        made = []
        for piece in pieces:
            if isinstance(piece, str):
                made.append(piece.encode())
            elif isinstance(piece, bytes):
                made.append(piece)
            else:
                made.append(piece(tp, row, parts))
        return b"".join(made)

    def show_text(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
        made = []
        for piece in pieces:
            if isinstance(piece, str):
                made.append(piece)
            elif isinstance(piece, bytes):
                made.append(piece.decode("latin-1"))
            else:
                # Fields are other people's: they are escaped, the template is not.
                field = piece(tp, row, parts)
                made.append(text(field))
        return "".join(made)

    return show_raw if raw else show_text


def _pieces(template: str) -> list[str | bytes | _Field]:
    """Return what a template consists of: text as it stands, single bytes, and fields of the record."""
    pieces: list[str | bytes | _Field] = []
    at = 0
    for token in _TOKEN.finditer(template):
        pieces.append(template[at : token.start()])
        pieces.append(_piece(token))
        at = token.end()
    pieces.append(template[at:])
    return pieces


def _piece(token: re.Match[str]) -> str | bytes | _Field:
    if token["hex"]:
        return bytes.fromhex(token["hex"])
    if token["escape"]:
        return _ESCAPES[token["escape"]]
    letter = token["field"]
    if letter not in _FIELDS:
        known = " ".join(f"%{name}" for name in _FIELDS)
        raise UsageError(f"--format has the unknown letter %{letter}", f"use {known}")
    return _FIELDS[letter]


def _topic(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return tp.topic.encode()


def _partition(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b"%d" % tp.partition


def _offset(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b"%d" % row.offset


def _timestamp(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b"-1" if row.timestamp is None else b"%d" % row.timestamp


def _key(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return _bytes(row.key, parts.key)


def _key_length(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b"%d" % _length(row.key)


def _value(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return _bytes(row.value, parts.value)


def _value_length(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b"%d" % _length(row.value)


def _packed_value_length(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return struct.pack(">i", _length(row.value))


def _headers(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b",".join(key + b"=" + (value or b"") for key, value in row.headers)


def _percent(tp: TopicPartition, row: Row, parts: DecodedRecord) -> bytes:
    return b"%"


_FIELDS: dict[str, _Field] = {
    "t": _topic,
    "p": _partition,
    "o": _offset,
    "T": _timestamp,
    "k": _key,
    "K": _key_length,
    "v": _value,
    "V": _value_length,
    "s": _value,
    "S": _value_length,
    "R": _packed_value_length,
    "h": _headers,
    "%": _percent,
}
"""The fields of a format, by their letters."""
