"""Select records by an expression of jq's language (extra `schemas`), over the output of `kbackup cat --json`."""

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

Mask = npt.NDArray[np.bool_]
"""bool[n]: True for selected records."""


class Expression:
    """Selects the records for which an expression yields a value that is neither null nor false, as jq's `select` does.

    `before` selects the records to test. A value that no schema decoded is tested as JSON if it is JSON. A record for
    which the expression fails is not selected, and is counted. Thread-safe. Raises `UsageError` for an invalid
    expression.
    """

    def __init__(
        self, text: str, decoding: Decoding, before: Callable[[TopicPartition, RecordBlock], Mask] | None
    ) -> None:
        try:
            self._program = jq.compile(text)
        except ValueError as error:  # also of text that is not Unicode
            message = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"--jq {text} can't be used: {message}",
                """give an expression such as '.value.status == "failed"'""",
            ) from None
        self._decoding, self._before = decoding, before
        self._failed, self._first = 0, ""
        self._lock = threading.Lock()

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> Mask:
        """Return which records of a block are selected."""
        mask = np.ones(len(block), np.bool_) if self._before is None else self._before(tp, block)
        candidates = select_records(block, mask)
        if len(candidates):
            mask[mask] = [self._holds(tp, row) for row in rows(candidates, str(tp))]
        return mask

    def _holds(self, tp: TopicPartition, row: Row) -> bool:
        try:
            given = self._program.input_text(self._text(tp, row))
            return any(value is not None and value is not False for value in given)
        except ValueError as error:  # what the expression raises, or can't do with this record
            with self._lock:
                self._failed += 1
                message = str(error).strip().partition("\n")[0]
                self._first = self._first or f"{tp.topic}:{tp.partition}:{row.offset}: {message}"
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

    def report_failures(self, reporter: Reporter) -> None:
        """Print for how many records the expression failed."""
        if self._failed:
            reporter.warning(
                f"the expression failed for {plural(self._failed, 'record')}, which are not printed; "
                f"the first: {self._first}"
            )
