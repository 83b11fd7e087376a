"""Tokens, times and threads that make executions repeat."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from greenlet import getcurrent

from kbackup.archive import layout, reader, run
from kbackup.archive.catalog import commit, sweep, tables
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.catalog.tables import encode
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import decode_table
from tests.unit.archive.catalog.stepping import SteppedActor


class _Pool:
    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, work: Callable[..., Any], *parts: Iterable[Any]) -> Iterator[Any]:
        return iter([work(*each) for each in zip(*parts, strict=True)])


_files: dict[object, Any] = {}
"""Parquet files of tables, and tables of files: they are the same in a thousand executions."""


def _encode(rows: pa.Table) -> bytes:
    key = (str(rows.schema), str(rows.to_pydict()))
    if key not in _files:
        _files[key] = encode(rows)
    return _files[key]  # type: ignore[no-any-return]


def _decode(
    data: bytes, name: str, schema: pa.Schema, columns: Sequence[str] | None = None, rows: int | None = None
) -> pa.Table:
    key = (data, name, columns and (*columns,), rows)
    if key not in _files:
        _files[key] = decode_table(data, name, schema, columns, rows)
    return _files[key]  # type: ignore[no-any-return]


def _mark_derived(archive: Archive) -> None:
    mark = Derived(archive_id=archive.info.id, catalog=archive.state.number)
    archive.store.put(layout.DERIVED, dump(mark))


_outside = [0]


def _uuid4() -> SimpleNamespace:
    actor = getcurrent()
    if isinstance(actor, SteppedActor):
        actor.numbers += 1
        text = f"{actor.name}:{actor.numbers}"
    else:
        _outside[0] += 1
        text = f"outside:{_outside[0]}"
    return SimpleNamespace(hex=hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


@contextmanager
def repeatable() -> Iterator[None]:
    """Tokens, times and threads of the archive's code as executions need them. Of the derived files `derived.json` is
    written alone: the others follow from the catalog that it names."""
    uuids = SimpleNamespace(uuid4=_uuid4)
    with (
        mock.patch.object(run, "uuid", uuids),
        mock.patch.object(commit, "uuid", uuids),
        mock.patch.object(run, "now", return_value="2026-01-01T00:00:00.000Z"),
        mock.patch.object(commit, "now", return_value="2026-01-01T00:00:00.000Z"),
        mock.patch.object(run, "refresh_derived", _mark_derived),
        mock.patch.object(tables, "encode", _encode),
        mock.patch.object(tables, "decode_table", _decode),
        mock.patch.object(reader, "ThreadPoolExecutor", _Pool),
        mock.patch.object(sweep, "ThreadPoolExecutor", _Pool),
        mock.patch.object(sweep, "ThreadPoolExecutor", _Pool),
    ):
        yield
