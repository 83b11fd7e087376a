"""Format records as text, as JSON lines, in hexadecimal, or by a user's format with kcat's letters."""

from __future__ import annotations

import base64
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from kbackup.cli.common.human import plural
from kbackup.cli.common.output import json_line
from kbackup.errors import UsageError
from kbackup.formats.rows import Row
from kbackup.schemas.base import Json
from kbackup.schemas.decoder import Decoded, DecodedRecord, Made, Undecoded
from kbackup.types import TopicPartition
from kbackup.util.printable import printable
from kbackup.util.times import time_text

UNDECODED = DecodedRecord()


class Show(Protocol):
    """Returns the output for a record, with the line feed at its end.

    A decoded key or value replaces its bytes. Output as bytes is not safe for a terminal."""

    def __call__(self, tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str | bytes: ...


TYPES = {-2: "CreateTime", -1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}

_Field = Callable[[TopicPartition, Row, DecodedRecord], bytes]
_Part = str | bytes | _Field

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_TOKEN = re.compile(r"%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>[nrt\\])", re.DOTALL)
_FIELDS: dict[str, _Field] = {
    "t": lambda tp, row, parts: tp.topic.encode(),
    "p": lambda tp, row, parts: b"%d" % tp.partition,
    "o": lambda tp, row, parts: b"%d" % row.offset,
    "T": lambda tp, row, parts: b"%d" % (-1 if row.timestamp is None else row.timestamp),
    "k": lambda tp, row, parts: _bytes(row.key, parts.key),
    "K": lambda tp, row, parts: b"%d" % _length(row.key),
    "v": lambda tp, row, parts: _bytes(row.value, parts.value),
    "V": lambda tp, row, parts: b"%d" % _length(row.value),
    "s": lambda tp, row, parts: _bytes(row.value, parts.value),
    "S": lambda tp, row, parts: b"%d" % _length(row.value),
    "R": lambda tp, row, parts: struct.pack(">i", _length(row.value)),
    "h": lambda tp, row, parts: b",".join(key + b"=" + (value or b"") for key, value in row.headers),
    "%": lambda tp, row, parts: b"%",
}
FORMAT_HELP = (
    "As kcat's -f: %t topic, %p partition, %o offset, %T timestamp (ms), %k key, %K its length, %v or %s value, "
    "%V or %S its length (-1: null), %R the same as 4 bytes, %h headers; \\n \\r \\t \\xXX. No line feed is added."
)


def text(data: bytes) -> str:
    """Return bytes as text that is safe for a terminal; bytes that are not UTF-8 become `\\xff`."""
    return printable(data.decode("utf-8", "backslashreplace"))


def as_text(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Return address, time, key, value and headers with tabs between; null is `null`."""
    headers = ",".join(f"{text(key)}={_or_null(value)}" for key, value in row.headers)
    cells = (
        _address(tp, row),
        _time(row),
        _part(row.key, parts.key),
        _part(row.value, parts.value),
        *([headers] if headers else []),
    )
    return "\t".join(cells) + "\n"


def as_json(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Return JSON in one line; bytes that are not UTF-8 are {"base64": "…"}."""
    return json_line(document(tp, row, parts)) + "\n"


def document(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> dict[str, object]:
    """Return a record as a JSON object, with the schema of a decoded part, or the reason why it is not decoded."""
    made = [(name, part) for name, part in zip(parts._fields, parts, strict=True) if part is not None]
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": row.offset,
        "timestamp": row.timestamp,
        "timestamp_type": TYPES[row.timestamp_type],
        "key": _json(row.key, parts.key),
        "value": _json(row.value, parts.value),
        "headers": [{"key": _json(key), "value": _json(value)} for key, value in row.headers],
        **{f"{name}_schema": part.schema for name, part in made if isinstance(part, Decoded)},
        **{f"{name}_error": part.why for name, part in made if isinstance(part, Undecoded)},
    }


def as_hex(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Return undecoded key, value and headers as `hexdump -C` shows them, and an empty line."""
    lines = [f"{_address(tp, row)}  {_time(row)}  {TYPES[row.timestamp_type]}"]
    for name, data in (("key", row.key), ("value", row.value)):
        lines += [f"{name}, {_size(data)}", *_dump(data)]
    for key, value in row.headers:
        lines += [f"header {text(key)}, {_size(value)}", *_dump(value)]
    return "\n".join(lines) + "\n\n"


def as_format(template: str, *, raw: bool = False) -> Show:
    """Return the function that formats a record by `template`: safe for a terminal, or with `raw` as bytes.

    Raises `UsageError` for an unknown letter."""
    try:
        template.encode()
    except UnicodeEncodeError:
        raise UsageError("--format is not UTF-8", r"write a byte as \xff") from None
    pieces: list[_Part] = []
    at = 0
    for token in _TOKEN.finditer(template):
        pieces += [template[at : token.start()], _piece(token)]
        at = token.end()
    pieces.append(template[at:])
    return partial(_raw, pieces) if raw else partial(_safe, pieces)


def write_text(shown: str | bytes) -> None:
    """Write the output for a record to stdout."""
    if isinstance(shown, str):
        sys.stdout.write(shown)
    else:
        sys.stdout.buffer.write(shown)


def _piece(token: re.Match[str]) -> _Part:
    if token["hex"]:
        return bytes.fromhex(token["hex"])
    if token["escape"]:
        return _ESCAPES[token["escape"]]
    if token["field"] not in _FIELDS:
        raise UsageError(
            f"--format has the unknown letter %{token['field']}",
            f"use {' '.join('%' + name for name in _FIELDS)}",
        )
    return _FIELDS[token["field"]]


def _raw(pieces: Sequence[_Part], tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> bytes:
    made = (piece(tp, row, parts) if callable(piece) else piece for piece in pieces)
    return b"".join(piece.encode() if isinstance(piece, str) else piece for piece in made)


def _safe(pieces: Sequence[_Part], tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
    """Format a record with its fields escaped; the text of the template is not escaped."""
    made = (text(piece(tp, row, parts)) if callable(piece) else piece for piece in pieces)
    return "".join(piece.decode("latin-1") if isinstance(piece, bytes) else piece for piece in made)


def _address(tp: TopicPartition, row: Row) -> str:
    return f"{tp.topic}:{tp.partition}:{row.offset}"


def _time(row: Row) -> str:
    return "-" if row.timestamp is None else time_text(row.timestamp)


def _part(data: bytes | None, made: Made) -> str:
    return json_line(made.value) if isinstance(made, Decoded) else _or_null(data)


def _bytes(data: bytes | None, made: Made) -> bytes:
    return json_line(made.value).encode() if isinstance(made, Decoded) else data or b""


def _or_null(data: bytes | None) -> str:
    return "null" if data is None else text(data)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _size(data: bytes | None) -> str:
    return "null" if data is None else plural(len(data), "byte")


def _json(data: bytes | None, made: Made = None) -> Json:
    if isinstance(made, Decoded):
        return made.value
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _dump(data: bytes | None) -> Iterator[str]:
    for at in range(0, len(data or b""), 16):
        piece = (data or b"")[at : at + 16]
        octets = f"{piece[:8].hex(' ')}  {piece[8:].hex(' ')}"
        signs = "".join(chr(o) if 32 <= o < 127 else "." for o in piece)
        yield f"{at:08x}  {octets:<49} |{signs}|"
