"""Records on their way out of an archive, through a function of the user's, as restores and exports are given it.

The driver reads the file, and workers get its bytes with their work: nothing is imported from a worker's disk. The
function gets the records of a block as a batch of `kbackup.types.RECORDS`, and returns a batch of the same offsets or
fewer. Whatever else it returns is refused, and so is an error of its own: the records of a failed task count nowhere.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import ModuleType, TracebackType
from typing import Any, ClassVar, NoReturn

import numpy as np
import pyarrow as pa

from kbackup.archive.models import DocumentRef
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import read_schemas
from kbackup.archive.topic_decoders import OpenedSchemas
from kbackup.archive.transforms import TransformRef
from kbackup.errors import KbackupError, UsageError
from kbackup.formats import arrow
from kbackup.formats.block import rising, slice_block
from kbackup.formats.record import decode, encode
from kbackup.store.base import Store
from kbackup.types import RECORDS, Int64Array, RecordBlock, TopicPartition

Function = Callable[..., object]
"""Takes a batch; where it has parameters of these names also the `topic` in the archive, by its name, and the `schemas`
that the topic's records name."""

GROWTH = 4
"""A record may become so many times as large as the largest one beside it: producers have room for that."""
ALWAYS_FITS = 1 << 20
"""Bytes that a record may have, however small it was."""

_FORM = "give it as FILE.py:FUNCTION"
_MEND = (
    "mend the function, and begin anew with it: a restore with another --restore-id and new topics, an export at "
    "another destination"
)
_KEPT = 8  # functions and schemas that a process has loaded; the oldest one goes


@dataclass(frozen=True)
class PointSchemas:
    """Where workers find the schemas of a restore point: the archive's store, and the document in it."""

    store: Store
    document: DocumentRef


@dataclass(frozen=True)
class Transform:
    """A function of a file of Python. `file` is the name of the file without its folder, `source` its bytes. `schemas`
    are for a function that takes them: they are no part of what it does by its digest."""

    may_hold_secrets: ClassVar[bool] = True

    file: str
    function: str
    source: bytes = field(repr=False)
    schemas: PointSchemas | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, text: str) -> Transform:
        """Read the file of a transform that is given as `FILE.py:FUNCTION`, and load the function. `UsageError` if one
        of the two can't be used."""
        path, _, function = text.rpartition(":")
        if not path or not function.isidentifier():
            raise UsageError(f"--transform {text!r} names no function of a file", _FORM)
        try:
            source = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise UsageError(f"--transform {text}: {path} can't be read: {error.strerror}", _FORM) from error
        transform = cls(PurePath(path).name, function, source)
        # Loaded here as well: a file that can't be used is an error before anything is done.
        _loaded(transform)
        return transform

    @property
    def ref(self) -> TransformRef:
        return TransformRef(name=f"{self.file}:{self.function}", sha256=hashlib.sha256(self.source).hexdigest())

    def with_schemas(self, archive: Archive | None, point: int | str) -> Transform:
        """Return the transform with the schemas of a restore point, if its function takes them. `UsageError` if there
        are none. An archive that is None is a folder of the Java tool."""
        if not _loaded(self).takes_schemas:
            return self
        document = None if archive is None else archive.restore_point(point).schemas
        if archive is None or document is None:
            raise UsageError(
                f"transform {self.file}:{self.function} takes schemas, and the restore point has none",
                "set schema_registry.url, and back up again: the new restore point has the schemas of earlier records, "
                "too",
            )
        transform = replace(self, schemas=PointSchemas(archive.store, document))
        # Opened here as well: schemas that can't be read are an error before anything is done.
        _opened(transform.schemas)
        return transform

    def __call__(self, source: TopicPartition, block: RecordBlock) -> RecordBlock:
        """Return what the function makes of the records of a partition, by its name in the archive.

        `UsageError`, naming the partition and an offset, if the function fails, or returns what can't be restored."""
        function = _loaded(self)
        given = self._decoded(source, block)
        arguments: dict[str, object] = {}
        if function.takes_topic:
            arguments["topic"] = source.topic
        if function.takes_schemas:
            arguments["schemas"] = _opened(self.schemas).of_topic(source.topic)
        try:
            made = function.function(given, **arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the user's own code may raise anything)
            # Without the traceback of the worker: the line of the user's file is what helps.
            raise self._failed(source, block, error) from None
        if made is given:
            return block
        return _Checked(self, source, block, given).encoded(made)

    def _decoded(self, source: TopicPartition, block: RecordBlock) -> pa.RecordBatch:
        try:
            return decode(block, str(source))
        except UsageError as error:
            first, last = int(block.offsets[0]), int(block.offsets[-1])
            raise UsageError(
                f"--transform can't take the records of {source} from offset {first} to {last}: {error.message}",
                f"leave them out, as with --skip {source.topic}:{source.partition}:{first}-{last + 1}",
            ) from error

    def _failed(self, source: TopicPartition, block: RecordBlock, error: BaseException) -> UsageError:
        line = _line_of(error.__traceback__, self.file)
        at = f" at line {line}" if line else ""
        return UsageError(
            f"transform {self.file}:{self.function} failed{at}, for the records of {source} from offset "
            f"{int(block.offsets[0])} on: {_words(error)}",
            f"{error.hint}; {_MEND}" if isinstance(error, KbackupError) and error.hint else _MEND,
        )


def transform_of(text: str | None) -> Transform | None:
    """Return the transform that an option names, None without one."""
    return Transform.read(text) if text else None


def with_schemas(transform: Transform | None, archive: Archive | None, point: int | str) -> Transform | None:
    """Return a transform with the schemas of a restore point, if it takes them; None without a transform."""
    return None if transform is None else transform.with_schemas(archive, point)


def ref_of(transform: Transform | None) -> TransformRef | None:
    """Return what documents say of a transform."""
    return None if transform is None else transform.ref


# Load functions. A worker is a process that does many tasks: it keeps what it has loaded.


@dataclass(frozen=True)
class _LoadedFunction:
    function: Function
    takes_topic: bool
    takes_schemas: bool


_functions: dict[Transform, _LoadedFunction] = {}
_schemas: dict[tuple[str, DocumentRef], OpenedSchemas] = {}
_lock = threading.Lock()


def _loaded(transform: Transform) -> _LoadedFunction:
    with _lock:
        if transform not in _functions:
            function = _load(transform)
            _make_room(_functions)
            _functions[transform] = function
        return _functions[transform]


def _opened(schemas: PointSchemas | None) -> OpenedSchemas:
    """Return the schemas of a restore point. `UsageError` without them, as for a transform that nobody gave any."""
    if schemas is None:
        raise UsageError("the function takes schemas, and there are none here", "leave its parameter schemas out")
    key = (schemas.store.url, schemas.document)
    with _lock:
        if key not in _schemas:
            opened = OpenedSchemas(read_schemas(schemas.store, schemas.document))
            _make_room(_schemas)
            _schemas[key] = opened
        return _schemas[key]


def _make_room(loaded: dict[Any, Any]) -> None:
    """Drop the oldest of what is loaded, where there is no room for more."""
    while len(loaded) >= _KEPT:
        oldest = next(iter(loaded))
        del loaded[oldest]


def _load(transform: Transform) -> _LoadedFunction:
    name = f"{transform.file}:{transform.function}"
    module = ModuleType(f"kbackup_transform_{transform.ref.sha256[:16]}")
    module.__file__ = transform.file
    # Classes of the file look for their module there, dataclasses for one.
    sys.modules[module.__name__] = module
    try:
        code = compile(transform.source, transform.file, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 (the user's own file, as the user asked)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (as above)
        line = error.lineno if isinstance(error, SyntaxError) else _line_of(error.__traceback__, transform.file)
        at = f" at line {line}" if line else ""
        raise UsageError(
            f"transform {name} can't be loaded: {_words(error)}{at}",
            "mend the file; a library that it imports has to be installed on all workers",
        ) from None
    function = module.__dict__.get(transform.function)
    if not callable(function):
        raise UsageError(f"--transform: {transform.file} has no function {transform.function}", _FORM)
    try:
        signature = inspect.signature(function)
        named = [name for name in ("topic", "schemas") if name in signature.parameters]
        signature.bind(None, **dict.fromkeys(named))
    except (TypeError, ValueError):
        raise UsageError(
            f"--transform: function {transform.function} does not take a batch alone",
            "define it with one parameter, or with further ones named topic and schemas",
        ) from None
    return _LoadedFunction(function, takes_topic="topic" in named, takes_schemas="schemas" in named)


def _line_of(traceback: TracebackType | None, file: str) -> int | None:
    """Return the innermost line of the user's file in a traceback."""
    line: int | None = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _words(error: BaseException) -> str:
    """Return one line that says what an error is."""
    text = error.message if isinstance(error, KbackupError) else str(error)
    first_line, _, _ = text.strip().partition("\n")
    if isinstance(error, KbackupError):
        return first_line
    kind = type(error).__name__
    return f"{kind}: {first_line}" if first_line else kind


# Check what a function returned.


@dataclass(frozen=True)
class _Checked:
    """Checks what a transform made of the `given` records of a block."""

    transform: Transform
    source: TopicPartition
    block: RecordBlock
    given: pa.RecordBatch

    def encoded(self, made: object) -> RecordBlock:
        """Return the records that a function returned, in the documented encoding."""
        batch = self._batch(made)
        if not len(batch):
            return slice_block(self.block, 0, 0)
        kept = self._kept(batch)
        self._check_times(batch, kept)
        try:
            encoded = encode(batch)
        except UsageError as error:
            self._refuse(f"which can't be restored: {error.message}", error.hint)
        most = max(ALWAYS_FITS, GROWTH * self.block.largest)
        if encoded.largest > most:
            offset = int(encoded.offsets[np.argmax(encoded.lengths)])
            self._refuse(f"in which a record has more than {most} bytes", "make records no larger than that", offset)
        # The source's own offsets, which can be written to: Arrow's memory can't.
        return replace(encoded, offsets=self.block.offsets[kept])

    def _batch(self, made: object) -> pa.RecordBatch:
        """Return a batch of `RECORDS`. A column of it may be declared to have nulls if it has none."""
        if not isinstance(made, pa.RecordBatch):
            self._refuse(f"which is {_article(made)}, not a RecordBatch", "return a pyarrow.RecordBatch")
        if made.schema.names != RECORDS.names:
            self._refuse(
                f"with the columns {', '.join(made.schema.names) or '(none)'}",
                f"return those that the batch came with: {', '.join(RECORDS.names)}",
            )
        for column in RECORDS:
            kind = made.schema.field(column.name).type
            if kind != column.type:
                self._refuse(f"with {column.name} as {kind}, not {column.type}", f"cast the column to {column.type}")
        for name in ("offset", "timestamp_type"):
            if made.column(name).null_count:
                row = int(np.argmax(made.column(name).is_null().to_numpy(zero_copy_only=False)))
                offset = self._offset_near(made, row)
                self._refuse(f"with a null {name}", f"leave {name} as it was", offset)
        batch: Any = pa.RecordBatch.from_arrays(made.columns, schema=RECORDS)
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            self._refuse(f"which is no valid batch: {_words(error)}", "build its columns by pyarrow's own functions")
        checked: pa.RecordBatch = batch
        return checked

    def _offset_near(self, made: pa.RecordBatch, row: int) -> int:
        """Return the offset of a row, of the first record of the block where it has none."""
        offset = made.column("offset")[row].as_py()
        return int(self.block.offsets[0]) if offset is None else int(offset)

    def _kept(self, batch: pa.RecordBatch) -> Int64Array:
        """Return the numbers of the records of the block that are still there, which rise."""
        offsets: Int64Array = batch.column("offset").to_numpy()
        given = self.block.offsets
        is_rising = rising(offsets)
        if not is_rising.all():
            offset = int(offsets[np.argmin(is_rising)])
            self._refuse("whose offsets do not rise", "return records in the order in which they came", offset)
        numbers = np.searchsorted(given, offsets)
        is_given = given[np.minimum(numbers, len(given) - 1)] == offsets
        if not is_given.all():
            offset = int(offsets[np.argmin(is_given)])
            self._refuse(
                "with an offset that was not given", "return records at the offsets that they came with", offset
            )
        return numbers

    def _check_times(self, batch: pa.RecordBatch, kept: Int64Array) -> None:
        """Check that the timestamps stayed as they were: retention on the target, windows and comparisons go by
        them."""
        numbers: Any = pa.array(kept)
        for name in ("timestamp_type", "timestamp"):
            before = self.given.column(name).take(numbers)
            after = batch.column(name)
            if before.equals(after):
                continue
            # A timestamp may be -1, so null is told apart from it.
            was_null = before.is_null().to_numpy(zero_copy_only=False)
            is_null = after.is_null().to_numpy(zero_copy_only=False)
            differs = (arrow.filled(before, -1) != arrow.filled(after, -1)) | (was_null != is_null)
            offset = int(self.block.offsets[kept[np.argmax(differs)]])
            self._refuse(f"with another {name}", f"leave {name} as it was: keys, values and headers may change", offset)

    def _refuse(self, problem: str, hint: str, offset: int | None = None) -> NoReturn:
        """Raise the error of records that can't be restored. Without an `offset`: all of the batch."""
        name = f"{self.transform.file}:{self.transform.function}"
        place = f"the records of {self.source} from offset {int(self.block.offsets[0])} on"
        if offset is not None:
            place = f"{self.source} at offset {offset}"
        raise UsageError(f"transform {name} returned for {place} a batch {problem}", hint)


def _article(made: object) -> str:
    return "nothing" if made is None else f"a {type(made).__name__}"
