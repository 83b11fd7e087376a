"""Records by an expression of jq's language (extra `schemas`), over what `kbackup cat --json` prints of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jq
import msgspec
import numpy as np
import numpy.typing as npt

from kbackup.cli.common.decoding import Decoding
from kbackup.cli.common.human import plural
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.record_text import document
from kbackup.errors import UsageError
from kbackup.formats.block import select_records
from kbackup.formats.rows import Row, rows
from kbackup.types import RecordBlock, TopicPartition

Found = npt.NDArray[np.bool_]


class Expression:
    """The records for which `text` gives anything that is neither null nor false, as jq's own `select` has it; among
    those that `before` leaves. A value that was not decoded by a schema is what it holds as JSON, where it is JSON.

    Where the expression fails the record is left out, and counted. Thread-safe. `UsageError` for what is no expression.
    """

    def __init__(
        self, text: str, decoding: Decoding, before: Callable[[TopicPartition, RecordBlock], Found] | None
    ) -> None:
        try:
            self._program = jq.compile(text)
        except ValueError as error:  # also of text that is not Unicode
            said = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"--jq {text} can't be used: {said}", """for instance '.value.status == "failed"'"""
            ) from None
        self._decoding, self._before = decoding, before
        self._failed, self._first = 0, ""
        self._lock = threading.Lock()

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> Found:
        """bool[n]: which records are looked for."""
        left = np.ones(len(block), np.bool_) if self._before is None else self._before(tp, block)
        some = select_records(block, left)
        if len(some):
            left[left] = [self._holds(tp, row) for row in rows(some, str(tp))]
        return left

    def _holds(self, tp: TopicPartition, row: Row) -> bool:
        try:
            given = self._program.input_text(self._text(tp, row))
            return any(value is not None and value is not False for value in given)
        except ValueError as error:  # what the expression raises, or can't do with this record
            with self._lock:
                self._failed += 1
                said = str(error).strip().partition("\n")[0]
                self._first = self._first or f"{tp.topic}:{tp.partition}:{row.offset}: {said}"
            return False

    def _text(self, tp: TopicPartition, row: Row) -> str:
        parts = self._decoding(tp, row)
        whole = document(tp, row, parts)
        if "value_schema" not in whole and row.value is not None:
            try:
                msgspec.json.decode(row.value)
                whole["value"] = msgspec.Raw(row.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # then it is text, or bytes
        return msgspec.json.encode(whole).decode()

    def tell(self, reporter: Reporter) -> None:
        """What was left out because the expression failed."""
        if self._failed:
            reporter.warning(
                f"the expression failed for {plural(self._failed, 'record')}, left out here; the first: {self._first}"
            )
