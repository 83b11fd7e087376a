"""Count the requests that opening an archive makes where every table has as many chunks as there can be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import Rows
from kbackup.archive.query.overview import list_points, overview
from kbackup.archive.reader import Archive, open_archive
from tests.support.made_segments import committed, state, target, write
from tests.support.memory_store import MemoryStore

_CHUNKS, _POINTS = 3, 3
_MOST = 8


@pytest.fixture
def chunked() -> MemoryStore:
    """Restore points of one topic in an archive whose tables have three chunks each."""
    store = MemoryStore()
    for number in range(1, _POINTS + 1):
        segments = write(store, target(), range(10 * number - 10, 10 * number))
        topics = [state((0, 0, 10 * number), number=number)]
        archive, _ = committed(store, number, number - 1 or None, segments, topics)
    commit(store, archive.committed, _in_chunks, Author("label", "", "test"))
    return store


def _in_chunks(whole: State) -> State:
    tables: dict[str, Any] = {name: _three(name, rows) for name, rows in whole.tables().items()}
    return replace(whole, **tables)


def _three(name: str, rows: Rows) -> Rows:
    """The rows, or some of another topic where there are too few, in three chunks."""
    table = rows.read()
    if len(table) < _CHUNKS:
        table = pa.concat_tables([table, *[_other(name)] * (_CHUNKS - len(table))])
    ends = [0, *range(1, _CHUNKS), len(table)]
    parts = [Rows(rows.schema).append(table.slice(a, b - a)) for a, b in pairwise(ends)]
    return Rows(rows.schema, tuple(chunk for part in parts for chunk in part.chunks))


def _other(name: str) -> pa.Table:
    """A row that concerns nothing that the restore points have."""
    values: dict[str, object] = {"string": "x", "int32": 9, "int64": 9, "bool": True}
    row = {field.name: None if field.nullable else values[str(field.type)] for field in SCHEMAS[name]}
    return pa.Table.from_pylist([row], schema=SCHEMAS[name])


def _asked(store: MemoryStore, archive: Archive) -> int:
    assert all(len(rows.chunks) == _CHUNKS for rows in archive.state.tables().values())
    return sum(store.requests.values())


def test_opening_reads_one_table(chunked: MemoryStore) -> None:
    chunked.requests.clear()
    archive = open_archive(chunked)
    assert archive.restore_point("latest").number == _POINTS
    assert _asked(chunked, archive) == _MOST


def test_each_further_question_reads_the_tables_that_it_needs(chunked: MemoryStore) -> None:
    archive = open_archive(chunked)
    head = archive.restore_point("latest")
    chunked.requests.clear()
    assert sum(segment.count for segment in archive.segments(head)) == 10 * _POINTS
    assert _asked(chunked, archive) <= 2 * _CHUNKS, "segments and log starts"
    again = chunked.requests.total()
    archive.segments(head)
    assert chunked.requests.total() == again, "a table is read once"


def test_list_and_info_are_bounded_as_well(chunked: MemoryStore) -> None:
    chunked.requests.clear()
    assert len(list_points(open_archive(chunked))) == _POINTS
    listing = chunked.requests.total()
    assert listing <= _MOST - 1 + 2 * _CHUNKS, "and incarnations and losses, for what is damaged"
    chunked.requests.clear()
    assert overview(chunked, "latest").restore_point == _POINTS
    assert chunked.requests.total() <= _MOST + 2 + len(SCHEMAS) * _CHUNKS
