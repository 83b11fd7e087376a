"""Decode keys and values for pages: by the schemas of the restore point, and if that is asked for by the schema
registry as well, and the records of MirrorMaker 2's internal topics.

A page is shown undecoded, with the reason, where a library or the registry is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kbackup.archive.models import Schemas, TopicState
from kbackup.archive.topic_decoders import OpenedSchemas, TopicDecoders
from kbackup.errors import KbackupError, UnreachableError, UsageError
from kbackup.formats.record import Row
from kbackup.jobs.decoding import UNDECODED, Decoding
from kbackup.schemas.base import Json
from kbackup.schemas.decoder import Decoded, DecodedRecord, Made, Undecoded
from kbackup.types import TopicPartition
from kbackup.web import render

MAX_BYTES = 1 << 20
"""Size of the longest key or value that is decoded."""
SECONDS = 5.0
"""Seconds after which a page decodes no further record: schemas can be made so that each takes long."""
CACHED = 3
"""Number of restore points whose schemas stay read, where they differ."""
PAUSE = 30.0
"""Seconds without a question to a registry that did not answer: each may take a minute."""
_UNDECODED = "not decoded: "


class Field(NamedTuple):
    """A key or a value to show: JSON if it is decoded; the name of the schema, or the reason why not; and its id.
    `undecoded` if a schema is named and nothing could be decoded by it."""

    data: bytes | None
    note: str = ""
    schema: Json = None
    undecoded: bool = False


class FieldDecoder:
    """Decodes keys and values for all requests. Thread-safe. Schemas are read once."""

    def __init__(self, make: Callable[[Schemas | None], Decoding], clock: Callable[[], float] = time.monotonic) -> None:
        """`make` is called for the first page that decodes by the schemas of a restore point. It raises `UsageError`
        without these and without a registry."""
        self._make, self.clock = make, clock
        self._lock = threading.Lock()
        self._decodings: dict[str, Decoding] = {}  # by checksum of the schemas
        self._opened: dict[str, OpenedSchemas] = {}  # by the same
        self._failure, self._asks_at = "", 0.0

    def archived_page(self, topics: Iterable[TopicState], read: Callable[[], Schemas | None]) -> PageDecoding:
        """Return the decoding of a page that nobody has asked to decode: by the schemas of the restore point alone, and
        only what the archive shows to be a serializer's. Its `problem` is set when a library turns out to be missing.
        """
        page = PageDecoding(self, None, is_unasked=True)

        def unavailable(error: KbackupError) -> None:
            page.problem = _reason(error)

        def opened() -> OpenedSchemas | None:
            schemas = read()
            return None if schemas is None else self._open(schemas)

        page.topics = TopicDecoders(topics, opened, unavailable)
        page.decoding = Decoding({}, by_topic=page.topics.decoder)
        return page

    def _open(self, schemas: Schemas) -> OpenedSchemas:
        """Return the schemas, compiled: once for all pages."""
        with self._lock:
            if schemas.checksum not in self._opened:
                made = OpenedSchemas(schemas)
                _drop_oldest(self._opened)
                self._opened[schemas.checksum] = made
            return self._opened[schemas.checksum]

    def page(self, schemas: Schemas | None) -> PageDecoding:
        """Return the decoding of a page that is asked to decode: the registry is asked for what `schemas` lack."""
        known = schemas.checksum if schemas is not None else ""
        with self._lock:
            if known not in self._decodings:
                try:
                    made = self._make(schemas)
                except UsageError as error:
                    return PageDecoding(self, Decoding({}, mm2=True), _reason(error))
                _drop_oldest(self._decodings)
                self._decodings[known] = made
            if self.clock() < self._asks_at:
                return PageDecoding(self, None, self._failure)
            return PageDecoding(self, self._decodings[known])

    def fail(self, error: KbackupError) -> None:
        """Let pages stay undecoded for a while after an error of the registry."""
        with self._lock:
            self._failure = _reason(error)
            if isinstance(error, UnreachableError):
                self._asks_at = self.clock() + PAUSE


def _drop_oldest(cached: dict[str, Any]) -> None:
    if len(cached) >= CACHED:
        oldest = next(iter(cached))
        del cached[oldest]


@dataclass
class PageDecoding:
    """Decodes the records of one page. `problem` is the reason why nothing can be decoded, '' if it can."""

    owner: FieldDecoder
    decoding: Decoding | None
    problem: str = ""
    is_unasked: bool = False
    """True if nobody has asked to decode: what names no schema has no note then."""
    topics: TopicDecoders | None = None
    spent: float = 0.0
    """Seconds of decoding so far."""

    def has(self, topic: str) -> bool:
        """Return whether keys or values of a topic are decoded unasked."""
        return self.topics is not None and bool(self.topics.decoders(topic))

    def shown(
        self, tp: TopicPartition, row: Row, form: Callable[[bytes | None], render.Shown]
    ) -> tuple[render.Shown, render.Shown]:
        """Return the key and the value of a record in a form."""
        key, value = self.fields(tp, row)
        shown_key, shown_value = form(key.data), form(value.data)
        return noted(shown_key, key), noted(shown_value, value)

    def fields(self, tp: TopicPartition, row: Row) -> tuple[Field, Field]:
        """Return the key and the value of a record."""
        made, note = self._decode(tp, row)
        if note or self.decoding is None:
            return Field(row.key, note, undecoded=bool(note)), Field(row.value, note, undecoded=bool(note))
        quiet = self.is_unasked or bool(self.problem)
        return _field(row.key, made.key, quiet), _field(row.value, made.value, quiet)

    def tested(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """Return a record for an expression; `problem` tells if one was left undecoded."""
        made, note = self._decode(tp, row)
        self.problem = self.problem or note.removeprefix(_UNDECODED)
        return made

    def _decode(self, tp: TopicPartition, row: Row) -> tuple[DecodedRecord, str]:
        """Return the decoded parts of a record, and a note if that takes too long."""
        if self.decoding is None:
            return UNDECODED, ""
        if max(len(row.key or b""), len(row.value or b"")) > MAX_BYTES:
            return UNDECODED, f"{_UNDECODED}longer than {MAX_BYTES:,} bytes"
        if self.spent > SECONDS:
            return UNDECODED, f"{_UNDECODED}the records before took more than {SECONDS:.0f} seconds"
        began = self.owner.clock()
        try:
            return self.decoding.decode_uncounted(tp, row), ""
        except (UsageError, UnreachableError) as error:
            self.owner.fail(error)
            self.decoding, self.problem = None, _reason(error)
            return UNDECODED, ""
        finally:
            self.spent += self.owner.clock() - began


def _field(data: bytes | None, made: Made, quiet: bool) -> Field:
    """Return a field by what a decoder made of it; `quiet` without a note that no schema is named."""
    if isinstance(made, Decoded):
        return _decoded_field(made)
    if isinstance(made, Undecoded):
        return Field(data, f"{_UNDECODED}{made.why}", undecoded=True)
    if data is None or quiet:
        return Field(data)
    return Field(data, f"{_UNDECODED}it names no schema")


def _decoded_field(made: Decoded) -> Field:
    # Records of MirrorMaker 2's internal topics have no schema, but a kind.
    kind = made.schema.get("record")
    schema = made.schema.get("id", kind)
    name = str(made.schema["type"])
    if schema is not None:
        name += f", schema {schema}"
    text = json.dumps(made.value, ensure_ascii=False)
    # A value may hold what is no Unicode, such as half of a surrogate pair in JSON.
    return Field(text.encode("utf-8", "backslashreplace"), f"decoded: {name}", made.schema.get("id"))


def noted(shown: render.Shown, field: Field) -> render.Shown:
    """Return a field with the note of its decoding, if it has one."""
    if not field.note:
        return shown
    return replace(shown, note=field.note, schema=field.schema, undecoded=field.undecoded)


def _reason(error: KbackupError) -> str:
    if error.hint:
        return f"{error.message}: {error.hint}"
    return error.message


# Expressions of jq come from whoever sees the page. They run in a process of their own, which has no files and no
# environment, and which the system ends when it takes too long.


CPU = 10
"""Seconds of CPU that an expression may take, and one more for each 100 kB of records."""
MEMORY = 1 << 30
"""Bytes of memory that an expression may take."""
_JQ = f"""
import contextlib, jq, os, resource, sys
def limit(what, most):
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
def answer(text):
    sys.stdout.buffer.write(text.encode("utf-8", "replace").replace(b"\\n", b" ") + b"\\n")
    sys.stdout.flush()
os.environ.clear()
limit(resource.RLIMIT_NOFILE, 3)
limit(resource.RLIMIT_AS, {MEMORY})
limit(resource.RLIMIT_CORE, 0)
cpu = int(sys.argv[2])
limit(resource.RLIMIT_CPU, cpu)
try:
    program = jq.compile(sys.argv[1])
except ValueError as error:
    sys.exit(answer("e" + str(error).strip().partition("\\n")[0]))
answer("ready")
given = 0
for line in sys.stdin.buffer:
    given += len(line)
    limit(resource.RLIMIT_CPU, cpu + given // 100_000)
    try:
        answer(str(int(any(each is not None and each is not False for each in program.input_text(line.decode())))))
    except ValueError as error:
        answer("e" + str(error).strip())
"""


class StoppedError(UsageError):
    """An expression takes too long, or too much memory."""


class BoundedProgram:
    """A compiled expression of jq that can neither read this process nor stop it. Thread-safe.

    Raises `ValueError` for an invalid expression, and for records that it fails for; `StoppedError` if it takes more
    time or memory than it may: `cpu` seconds, and one more for each 100 kB of records. `process` runs it."""

    def __init__(self, text: str, cpu: int = CPU) -> None:
        self._cpu = cpu
        path = os.pathsep.join(folder for folder in sys.path if folder)
        command = [sys.executable, "-c", _JQ, text, str(cpu)]
        self._lock = threading.Lock()
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        # Of this process it gets where libraries are, and nothing else: neither its environment nor its folder.
        environment = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        self.process = subprocess.Popen(  # noqa: S603 (no shell, and no program but this one)
            command, stdin=pipe, stdout=pipe, stderr=null, env=environment
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def input_text(self, text: str) -> list[bool]:
        """Return whether the expression is true for a record in JSON."""
        assert self.process.stdin is not None  # noqa: S101 (a pipe)
        with self._lock:
            try:
                self.process.stdin.write(text.replace("\n", " ").encode() + b"\n")
                self.process.stdin.flush()
            except OSError:
                pass  # it has ended: there is no answer
            return [self._answer() == "1"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was not sent
                pipe.close()  # type: ignore[union-attr]

    def _answer(self) -> str:
        assert self.process.stdout is not None  # noqa: S101 (a pipe)
        answer = self.process.stdout.readline().decode()
        if not answer:
            raise StoppedError(
                f"the jq expression is stopped: it takes more than {self._cpu} seconds or {MEMORY >> 30} GiB of memory",
                "write a simpler one, or use 'kbackup find --jq'",
            )
        if answer.startswith("e"):
            raise ValueError(answer[1:].strip())
        return answer.strip()
