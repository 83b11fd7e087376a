"""Which records an erasure selects by their keys: as bytes, or as the JSON that they decode to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.errors import UndecodableError, UsageError
from kbackup.formats.block import select_records
from kbackup.formats.fields import gather, locate_fields
from kbackup.formats.record import Row, rows
from kbackup.jobs.decoding import DecoderOf
from kbackup.schemas.base import Headers
from kbackup.schemas.decoder import HEADERS, Decoded, Made, Undecoded, frame_of
from kbackup.types import RecordBlock, TopicPartition


class KeyMatch:
    """Selects the records whose key is one of `keys`, byte by byte. A null key is none of them. Thread-safe."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys: Any = pa.array(sorted(set(keys)), pa.large_binary())

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> npt.NDArray[np.bool_]:
        """Return which records of a block match: bool[n]."""
        import pyarrow.compute as pc  # here: it makes pyarrow import pandas

        fields = locate_fields(block, str(tp), 0)
        keys = gather(block.data, fields.keys)
        matching: npt.NDArray[np.bool_] = pc.is_in(keys, value_set=self._keys).to_numpy(zero_copy_only=False)
        return matching


class JsonKeyMatch:
    """Selects the records that `as_bytes` selects, and those whose key is one of the JSON `values`. Thread-safe.

    Keys are decoded by `decoder_of`. A key that no schema decoded is compared as text, and as JSON if it is JSON. A
    record without a key is not selected. Keys that can't be compared are counted: `failed`, with the `first` one.
    Raises `UsageError` for a value that is no JSON.
    """

    def __init__(self, values: Iterable[str], decoder_of: DecoderOf, as_bytes: KeyMatch) -> None:
        self._values = {_given(text) for text in values}
        self._decoder_of = decoder_of
        self._as_bytes = as_bytes
        self.failed = 0
        self.first = ""
        self._lock = threading.Lock()

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> npt.NDArray[np.bool_]:
        """Return which records of a block match: bool[n]."""
        mask = self._as_bytes(tp, block)
        # What is selected by its bytes need not be decoded.
        others = ~mask
        candidates = select_records(block, others)
        if len(candidates):
            mask[others] = [self._matches(tp, row) for row in rows(candidates, str(tp))]
        return mask

    def _matches(self, tp: TopicPartition, row: Row) -> bool:
        if row.key is None:
            return False
        decoder = self._decoder_of(tp.topic, "key")
        made = None if decoder is None else decoder(row.key, row.headers)
        try:
            forms = _forms_of(row.key, row.headers, made)
        except UndecodableError as error:
            with self._lock:
                self.failed += 1
                self.first = self.first or f"{tp.topic}:{tp.partition}:{row.offset}: {error.message}"
            return False
        return not self._values.isdisjoint(forms)


def _forms_of(key: bytes, headers: Headers, made: Made) -> list[str]:
    """Return the canonical JSON that a key stands for. `UndecodableError` if nobody can tell."""
    if isinstance(made, Decoded):
        try:
            return [_canonical(made.value)]
        except (ValueError, RecursionError) as error:
            raise UndecodableError(f"it has no form to compare: {error}") from error
    # What a frame or a byte 0 is in is no text: some serializer wrote it, and the archive does not have its schema.
    frame = frame_of(key, headers, HEADERS["key"])
    if frame is not None:
        reason = made.why if isinstance(made, Undecoded) else f"no schema {frame.schema} of its topic is archived"
        raise UndecodableError(reason)
    if b"\0" in key:
        raise UndecodableError("it names no schema, and is no text")
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        raise UndecodableError("it names no schema, and is no text") from error
    forms = [_canonical(text)]
    # What is no JSON is text alone.
    with suppress(ValueError, RecursionError):
        forms.append(_canonical(_parsed(text)))
    return forms


def _given(text: str) -> str:
    """Return the canonical form of a value that the user gave."""
    try:
        return _canonical(_parsed(text))
    except (ValueError, RecursionError):
        raise UsageError(
            f"--key-json {text} is no JSON", """write JSON within quotes, as in '{"id": 7}', '"4711"' or 4711"""
        ) from None


def _parsed(text: str) -> object:
    """Parse JSON. Whole numbers are exact, however large."""
    value: object = json.loads(text, parse_constant=_refuse_constant)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _canonical(value: object) -> str:
    """Return the same text for equal JSON values: whatever the order of fields, and for 1 and 1.0."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True, allow_nan=False)


def _with_whole_numbers(value: object) -> object:
    """Return a value with integers in place of floats without a fraction."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _with_whole_numbers(item) for name, item in value.items()}
        case list():
            return [_with_whole_numbers(item) for item in value]
    return value
