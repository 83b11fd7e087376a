"""Plain records and their blocks."""

from __future__ import annotations

from typing import Any

from kbackup.formats import record
from kbackup.types import RecordBlock
from tests.unit.formats.reference import Record, to_batch


def plain(offset: int, **changes: Any) -> Record:
    return Record(offset, 0, 1_600_000_000_000, b"k", b"v", [])._replace(**changes)


def encoded(*made: Record) -> RecordBlock:
    return record.encode(to_batch(list(made)))
