"""Decode keys and values for pages: by the schema registry, and the records of MirrorMaker 2's internal topics.

A page is shown undecoded, with the reason, where a library or the registry is missing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kbackup.errors import KbackupError, UnreachableError, UsageError
from kbackup.formats.record import Row
from kbackup.jobs.decoding import Decoding
from kbackup.schemas.decoder import Decoded, Made, Undecoded
from kbackup.types import TopicPartition
from kbackup.web import render

MAX_BYTES = 1 << 20
"""Size of the longest key or value that is decoded."""
SECONDS = 5.0
"""Seconds after which a page decodes no further record: schemas can be made so that each takes long."""
PAUSE = 30.0
"""Seconds without a question to a registry that did not answer: each may take a minute."""


Field = tuple[bytes | None, str]
"""A key or a value to show: JSON if it is decoded; and the name of the schema, or the reason why not."""


class FieldDecoder:
    """Decodes keys and values for all requests. Thread-safe. Schemas are read once."""

    def __init__(self, make: Callable[[], Decoding], clock: Callable[[], float] = time.monotonic) -> None:
        """`make` is called for the first page that decodes. It raises `UsageError` without a registry."""
        self._make, self.clock = make, clock
        self._lock = threading.Lock()
        self._decoding: Decoding | None = None
        self._failure, self._asks_at = "", 0.0

    def page(self) -> PageDecoding:
        """Return the decoding of a page."""
        with self._lock:
            if self._decoding is None:
                try:
                    self._decoding = self._make()
                except UsageError as error:
                    return PageDecoding(self, Decoding({}, mm2=True), _reason(error))
            failing = self.clock() < self._asks_at
            return PageDecoding(self, None if failing else self._decoding, self._failure if failing else "")

    def fail(self, error: KbackupError) -> None:
        """Let pages stay undecoded for a while after an error of the registry."""
        with self._lock:
            self._failure = _reason(error)
            if isinstance(error, UnreachableError):
                self._asks_at = self.clock() + PAUSE


@dataclass
class PageDecoding:
    """Decodes the records of one page. `problem` is the reason why nothing can be decoded, '' if it can."""

    owner: FieldDecoder
    decoding: Decoding | None
    problem: str = ""
    spent: float = 0.0
    """Seconds of decoding so far."""

    def shown(
        self, tp: TopicPartition, row: Row, form: Callable[[bytes | None], render.Shown]
    ) -> tuple[render.Shown, render.Shown]:
        """Return the key and the value of a record in a form."""
        key, value = self._fields(tp, row)
        return _noted(form(key[0]), key[1]), _noted(form(value[0]), value[1])

    def _fields(self, tp: TopicPartition, row: Row) -> tuple[Field, Field]:
        note = ""
        if max(len(row.key or b""), len(row.value or b"")) > MAX_BYTES:
            note = f"not decoded: longer than {MAX_BYTES:,} bytes"
        elif self.spent > SECONDS:
            note = f"not decoded: the records before took more than {SECONDS:.0f} seconds"
        if self.decoding is None:
            return (row.key, ""), (row.value, "")
        if note:
            return (row.key, note), (row.value, note)
        began = self.owner.clock()
        try:
            made = self.decoding.decode_uncounted(tp, row)
        except (UsageError, UnreachableError) as error:
            self.owner.fail(error)
            self.decoding, self.problem = None, _reason(error)
            return (row.key, ""), (row.value, "")
        finally:
            self.spent += self.owner.clock() - began
        quiet = bool(self.problem)
        return _field(row.key, made.key, quiet), _field(row.value, made.value, quiet)


def _field(data: bytes | None, made: Made, quiet: bool) -> Field:
    """Return a field by what a decoder made of it; `quiet` without a note that no schema is named."""
    if isinstance(made, Decoded):
        schema = made.schema.get("id", made.schema.get("record"))
        name = str(made.schema["type"]) + (f", schema {schema}" if schema is not None else "")
        text = json.dumps(made.value, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace"), f"decoded: {name}"
    if isinstance(made, Undecoded):
        return data, f"not decoded: {made.why}"
    return data, "" if data is None or quiet else "not decoded: it names no schema"


def _noted(shown: render.Shown, note: str) -> render.Shown:
    return replace(shown, note=note) if note else shown


def _reason(error: KbackupError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else error.message
