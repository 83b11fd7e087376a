"""Search records: a few threads read and search units of segments; results come in order."""

from __future__ import annotations

import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.archive.query.browse import PartitionRecords
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.segments.read import SegmentRanges
from kbackup.archive.segments.window import Window
from kbackup.errors import UsageError
from kbackup.formats.arrow import compute
from kbackup.formats.block import select_records
from kbackup.formats.fields import gather, locate_fields
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition

Part = Literal["key", "value", "headers"]
PARTS: tuple[Part, ...] = ("key", "value", "headers")

_UNIT_BYTES = 8 << 20
"""Bytes of records that a thread looks through at once; what it finds there is held until its turn comes."""
_THREADS = 8
_MARKED = 1 << 20  # bytes of a field that a regular expression is marked in
_SPANS = 1000  # matches of a text that are marked in a field


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern to look for in `fields` of records: a text, whose bytes are looked for as they are, or a regular
    expression of RE2, whose signs stand for bytes. Headers are searched by name and by value. `ignore_case` is about
    ASCII letters. A pattern is a `Matches` that treats all partitions alike."""

    text: str
    regex: bool = False
    ignore_case: bool = False
    fields: tuple[Part, ...] = PARTS

    def require(self) -> None:
        """Raise `UsageError` for an invalid regular expression."""
        nothing = pa.array([b""], pa.large_binary())
        try:
            self._among(nothing)  # Arrow compiles an expression only where it looks for it
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise UsageError(
                f"{self.text} can't be searched for: {error}", "write a regular expression in RE2's syntax"
            ) from None

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> npt.NDArray[np.bool_]:
        """Return which records match: bool[n]. The block is checked on the way."""
        fields = locate_fields(block, "record block", 0)
        matching = np.zeros(len(block), np.bool_)
        if "key" in self.fields:
            matching |= self._among(gather(block.data, fields.keys))
        if "value" in self.fields:
            matching |= self._among(gather(block.data, fields.values))
        if "headers" in self.fields and len(fields.header_keys.start):
            names = gather(block.data, fields.header_keys)
            values = gather(block.data, fields.header_values)
            headers = np.flatnonzero(self._among(names) | self._among(values))
            # The record of a header is the last one whose headers begin at the header or before.
            records = np.searchsorted(fields.header_starts, headers, side="right") - 1
            matching[records] = True
        return matching

    def spans(self, field: bytes) -> list[tuple[int, int]]:
        """Return matches in a field as (start, end) in bytes, in order: the first matches of a text, or the matches of
        a regular expression in the first MiB."""
        if not self.regex:
            flags = re.IGNORECASE if self.ignore_case else 0
            literal = re.escape(self.text.encode())
            found = re.finditer(literal, field, flags)
            return [match.span() for match in islice(found, _SPANS)]
        # Arrow replaces matches, and tells no lengths: each match is put between two random marks that no field has.
        opening = secrets.token_hex(8).encode()
        closing = secrets.token_hex(8).encode()
        pattern = b"(" + self.text.encode() + b")"
        if self.ignore_case:
            pattern = b"(?i)" + pattern
        column = pa.array([field[:_MARKED]], pa.large_binary())
        try:
            marked = compute().replace_substring_regex(column, pattern=pattern, replacement=opening + rb"\1" + closing)
        except pa.ArrowInvalid:  # `\Q` without `\E` is valid, but not with the parenthesis that is put behind it here
            return []
        first, *others = marked[0].as_py().split(opening)
        spans: list[tuple[int, int]] = []
        at = len(first)
        for other in others:
            inside, _, after = other.partition(closing)
            if inside:
                spans.append((at, at + len(inside)))
            at += len(inside) + len(after)
        return spans

    def _among(self, column: pa.Array[Any]) -> npt.NDArray[np.bool_]:
        """Return which values of a column match: bool[values]. A null does not."""
        pc = compute()
        match = pc.match_substring_regex if self.regex else pc.match_substring
        found = match(column, pattern=self.text.encode(), ignore_case=self.ignore_case)
        matching: npt.NDArray[np.bool_] = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
        return matching


class _Task(NamedTuple):
    """Records number `low` to `high` (exclusive) of one segment."""

    tp: TopicPartition
    reader: SegmentRanges
    low: int
    high: int


Matches = Callable[[TopicPartition, RecordBlock], npt.NDArray[np.bool_]]
"""Returns, as bool[n], which records of a partition's block match. Many threads call it."""

Seen = Callable[[int, int], None]  # a callback, from any thread, with the records and bytes searched so far


class Searched(NamedTuple):
    """The result of a unit: the matches among the records of `tp` before offset `end`, and the bytes searched."""

    tp: TopicPartition
    end: int
    bytes: int
    matches: list[PartitionRecords]


def find(
    store: Store, partitions: Iterable[tuple[str, ArchivedPartition]], matches: Matches, window: Window, seen: Seen
) -> Generator[PartitionRecords, None, None]:
    """Yield the records in `window` of these partitions (each with its topic) that match, in order. Reading ends soon
    after the generator is closed. `CorruptError` comes in its turn, after everything that was found before the
    damage."""
    with closing(search(store, partitions, matches, window, seen)) as units:
        for unit in units:
            yield from unit.matches


def search(
    store: Store,
    partitions: Iterable[tuple[str, ArchivedPartition]],
    matches: Matches,
    window: Window,
    seen: Seen = lambda records, nbytes: None,
    threads: int = _THREADS,
    unit_bytes: int | None = None,
) -> Generator[Searched, None, None]:
    """Yield the result of each unit of about `unit_bytes`, in order. A search can be resumed at the end of the last
    result. Reading and errors as for `find`."""
    stop = threading.Event()
    tasks = _tasks(store, partitions, window, unit_bytes or _UNIT_BYTES)
    waiting: deque[Future[Searched]] = deque()
    with ThreadPoolExecutor(threads, "find") as pool:
        try:
            while True:
                # Half as many tasks again as threads, so that no thread is idle while a result is looked at.
                for task in islice(tasks, threads + threads // 2 - len(waiting)):
                    waiting.append(pool.submit(_look, task, matches, window, seen, stop))
                if not waiting:
                    return
                # In the order of the tasks, whichever ends first: the caller resumes a search behind the last result.
                yield waiting.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def to_search(partition: ArchivedPartition, window: Window) -> tuple[int, int]:
    """Return how many records and bytes there are to search, at most."""
    records = size = 0
    for segment in filter(window.may_hold, partition.segments):
        records += segment.count
        size += segment.bytes
    return records, size


def _tasks(
    store: Store, partitions: Iterable[tuple[str, ArchivedPartition]], window: Window, unit_bytes: int
) -> Iterator[_Task]:
    """Yield the tasks of a search, in order. Each has the records of about `unit_bytes`, and at least one record."""
    for topic, partition in partitions:
        tp = TopicPartition(topic, partition.partition)
        for segment in filter(window.may_hold, partition.segments):
            reader = SegmentRanges(store, segment)
            # As if its records were of one size: a unit may well have more or less.
            step = max(1, segment.count * unit_bytes // max(segment.bytes, 1))
            for start, end in window.ranges_in(segment):
                low, high = reader.numbers(start, end)
                for at in range(low, high, step):
                    yield _Task(tp, reader, at, min(at + step, high))


def _look(task: _Task, matches: Matches, window: Window, seen: Seen, stop: threading.Event) -> Searched:
    """Search the records of one task."""
    matching: list[PartitionRecords] = []
    end = nbytes = 0
    for block in task.reader.numbered(task.low, task.high):
        if stop.is_set():
            break
        selected, _ = window.cut(block)
        if len(selected):
            hits = select_records(selected, matches(task.tp, selected))
            if len(hits):
                # in memory of their own: a few records must not keep a large buffer
                hits = replace(hits, data=hits.data.copy())
                matching.append(PartitionRecords(task.tp, hits))
        seen(len(block), block.nbytes)
        end = int(block.offsets[-1]) + 1
        nbytes += block.nbytes
    return Searched(task.tp, end, nbytes, matching)
