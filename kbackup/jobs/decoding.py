"""Decode keys and values of records by schemas, and select records by an expression."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from kbackup.errors import UndecodableError, UsageError
from kbackup.formats.block import select_records
from kbackup.formats.record import Row, rows
from kbackup.schemas.base import EXTRA, Headers, Json
from kbackup.schemas.decoder import ByFile, Decoded, DecodedRecord, Decoder, Made, Undecoded, file_codec
from kbackup.systems import record_decoder
from kbackup.types import RecordBlock, TopicPartition

PARTS = ("key", "value")
UNDECODED = DecodedRecord()
TYPES = {-2: "CreateTime", -1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


DecoderOf = Callable[[str, str], Decoder | None]
"""Returns what decodes the keys, or the values, of a topic; None if they stay as they are."""


@dataclass
class Decoding:
    """Decodes records and counts keys and values that it can't decode; thread-safe.

    `decoders` are by part: key or value. With `mm2`, MirrorMaker 2's internal topics have decoders of their own.
    `by_topic` is for the records of all other topics and parts."""

    decoders: Mapping[str, Decoder]
    strict: bool = False
    mm2: bool = False
    by_topic: DecoderOf | None = None
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    bare: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    reasons: dict[str, str] = field(default_factory=dict)
    _chosen: dict[tuple[str, str], Decoder | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """Decode a record and count it. Raises `UndecodableError` with `--strict`."""
        parts = self.decode_uncounted(tp, row)
        for part, made in zip(PARTS, parts, strict=True):
            if getattr(row, part) is not None and self._decoder(tp.topic, part) is not None:
                self._count(part, made, f"{tp.topic}:{tp.partition}:{row.offset}")
        return parts

    def decode_uncounted(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """Decode a record that is counted already."""
        if not self.active:
            return UNDECODED
        key = self._decode_part(tp.topic, "key", row.key, row.headers)
        value = self._decode_part(tp.topic, "value", row.value, row.headers)
        return DecodedRecord(key, value)

    def _decode_part(self, topic: str, part: str, data: bytes | None, headers: Headers) -> Made:
        if data is None:
            return None
        decoder = self._decoder(topic, part)
        return None if decoder is None else decoder(data, headers)

    @property
    def active(self) -> bool:
        """True if any decoder is set."""
        return bool(self.decoders) or self.mm2 or self.by_topic is not None

    def _decoder(self, topic: str, part: str) -> Decoder | None:
        # Chosen once for all records of a topic: systems compare its name, and the archive its counts.
        chosen = (topic, part)
        if chosen not in self._chosen:
            self._chosen[chosen] = self._choose(topic, part)
        return self._chosen[chosen]

    def _choose(self, topic: str, part: str) -> Decoder | None:
        if self.mm2:
            decoder = record_decoder(topic, part)
            if decoder is not None:
                return decoder
        if part in self.decoders or self.by_topic is None:
            return self.decoders.get(part)
        return self.by_topic(topic, part)

    def _count(self, part: str, made: Made, address: str) -> None:
        why = ""
        if made is None:
            why = "it names no schema"
        elif isinstance(made, Undecoded):
            why = made.why
        if why and self.strict:
            raise UndecodableError(
                f"the {part} of {address} can't be decoded: {why}", "leave --strict out to show it undecoded"
            )
        with self._lock:
            self.seen[part] += 1
            if made is None:
                self.bare[part] += 1
            elif why:
                self.failed[part] += 1
                self.reasons.setdefault(part, f"{address}: {why}")


def file_decoder(file: str, message: str | None) -> Decoder:
    """Return the decoder of a schema file. Raises `UsageError` if it is invalid or its library is missing."""
    return ByFile(file_codec(Path(file), message))


# Records as JSON, and expressions of jq over them (extra `schemas`).


def document(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> dict[str, object]:
    """Return a record as a JSON object, with the schema of a decoded part, or the reason why it is not decoded."""
    headers = [{"key": _json(key), "value": _json(value)} for key, value in row.headers]
    whole: dict[str, object] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": row.offset,
        "timestamp": row.timestamp,
        "timestamp_type": TYPES[row.timestamp_type],
        "key": _json(row.key, parts.key),
        "value": _json(row.value, parts.value),
        "headers": headers,
    }
    named = (("key", parts.key), ("value", parts.value))
    # All schemas before all errors: scripts compare the lines of this output, whose keys keep their order.
    for name, made in named:
        if isinstance(made, Decoded):
            whole[f"{name}_schema"] = made.schema
    for name, made in named:
        if isinstance(made, Undecoded):
            whole[f"{name}_error"] = made.why
    return whole


def _json(data: bytes | None, made: Made = None) -> Json:
    if isinstance(made, Decoded):
        return made.value
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


Mask = npt.NDArray[np.bool_]
"""bool[n]: True for selected records."""


class Program(Protocol):
    """A compiled expression of jq. It raises `ValueError` for input that it fails for."""

    def input_text(self, text: str) -> Iterable[object]: ...


class Expression:
    """Selects the records for which an expression yields a value that is neither null nor false, as jq's `select` does.

    `before` selects the records to test. A value that no schema decoded is tested as JSON if it is JSON. A record for
    which the expression fails is not selected, and is counted: `failed`, with the `first` one. Thread-safe. Raises
    `UsageError`, which names `option`, for an invalid expression, or if jq is not installed. `compiler`
    replaces jq's own.
    """

    def __init__(
        self,
        text: str,
        decoding: Callable[[TopicPartition, Row], DecodedRecord],
        before: Callable[[TopicPartition, RecordBlock], Mask] | None = None,
        option: str = "--jq",
        compiler: Callable[[str], Program] | None = None,
    ) -> None:
        try:
            import jq  # of the extra `schemas`
        except ImportError as error:
            raise UsageError(f"{option} needs a library that is not installed: {error}", EXTRA) from error
        try:
            self._program: Program = (compiler or jq.compile)(text)
        except ValueError as error:  # also of text that is not Unicode
            raise UsageError(
                f"{option} {text} can't be used: {_first_line(error)}",
                """give an expression such as '.value.status == "failed"'""",
            ) from None
        self._decoding, self._before = decoding, before
        self.failed, self.first = 0, ""
        self._lock = threading.Lock()

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> Mask:
        """Return which records of a block are selected."""
        if self._before is None:
            mask: Mask = np.ones(len(block), np.bool_)
        else:
            mask = self._before(tp, block)
        candidates = select_records(block, mask)
        if len(candidates):
            # Of the records that were selected before, those stay for which the expression holds.
            mask[mask] = [self._holds(tp, row) for row in rows(candidates, str(tp))]
        return mask

    def _holds(self, tp: TopicPartition, row: Row) -> bool:
        try:
            values = self._program.input_text(self._text(tp, row))
            return any(value is not None and value is not False for value in values)
        except ValueError as error:  # what the expression raises, or can't do with this record
            address = f"{tp.topic}:{tp.partition}:{row.offset}"
            with self._lock:
                self.failed += 1
                self.first = self.first or f"{address}: {_first_line(error)}"
            return False

    def _text(self, tp: TopicPartition, row: Row) -> str:
        whole = document(tp, row, self._decoding(tp, row))
        if "value_schema" not in whole and row.value is not None:
            try:
                msgspec.json.decode(row.value)
                whole["value"] = msgspec.Raw(row.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # then it is text, or bytes
        return msgspec.json.encode(whole).decode()


def _first_line(error: ValueError) -> str:
    return str(error).strip().partition("\n")[0]


_CHANGING = re.compile(r"""(?<![.\w"])(now|env|\$ENV|inputs?|localtime|strflocaltime|halt|halt_error)\b""")


def where_of(text: str) -> Expression:
    """Return an expression that depends on nothing but the record: a restore that is resumed selects the same records.

    Raises `UsageError` for any other one."""
    changing = _CHANGING.search(text)
    if changing is not None:
        raise UsageError(
            f"--where {text} can't be used: {changing[1]} is not the same each time",
            "compare fields of the record alone",
        )
    return Expression(text, Decoding({}), option="--where")


def select_where(text: str, tp: TopicPartition, block: RecordBlock) -> RecordBlock:
    """Return the records of `tp` for which the expression `text` is true, which depends on each record alone.

    Raises `UsageError` where the expression fails: nobody knows whether that record is wanted."""
    expression = where_of(text)
    selected = select_records(block, expression(tp, block))
    if expression.failed:
        raise UsageError(
            f"--where {text} fails for record {expression.first}",
            'write it for any value, as in \'(.value | type) != "object" or .value.status == "paid"\'; '
            "try it with 'kbackup find --raw --jq'",
        )
    return selected
