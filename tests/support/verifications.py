"""Verify an archive in a directory, and damage its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.table import Segment, to_batch
from kbackup.jobs.verify import VerifyReport, verify
from kbackup.metrics.registry import Silent
from kbackup.store import open_store

ORDERS = "topics/orders/"
SEGMENT = f"{ORDERS}segment_partition_000_from_offset_0000000000_records"
OTHER = f"{ORDERS}segment_partition_001_from_offset_0000000000_records"


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


def run(root: Path, selection: str = "all", quick: bool = False) -> VerifyReport:
    session: Callable[[], Any] = no_spark if quick else lambda: None
    return verify(open_store(str(root)), selection, quick, session, Silent())


def findings_of(report: VerifyReport) -> dict[str, list[str]]:
    """Return the findings of each file."""
    messages: dict[str, list[str]] = {}
    for finding in report.findings:
        assert finding.hint
        messages.setdefault(finding.file, []).append(finding.what)
    return messages


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path, at: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[max(at, -len(data))] ^= 0x10
    path.write_bytes(data)


def point_folder(root: Path, number: int) -> str:
    """The folder of a restore point's documents, as a prefix of keys."""
    (folder,) = (root / "points").glob(f"{number:010d}-*")
    return f"points/{folder.name}/"


def swap(a: Path, b: Path) -> None:
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def table_with(root: Path, change: Callable[[list[Segment]], list[Segment]], point: int = 2) -> None:
    """A catalog with other segments of restore point 2, or of another; all checksums are right."""
    store = open_store(str(root))
    archive = open_archive(store)
    added = archive.ordered(0, 2)
    every = [*zip(added.points.tolist(), added.segments, strict=True)]
    here = [s for number, s in every if number == point]
    rows = [(number, s) for number, s in every if number != point]
    rows += [(point, s) for s in change(here)]
    table = pa.Table.from_batches([to_batch([s for _, s in rows])])
    column = pa.array([number for number, _ in rows], pa.int64())
    segments = archive.state.segments
    table = table.append_column(segments.schema.field("point"), column)
    commit(
        store,
        archive.committed,
        lambda state: replace(state, segments=segments.replace(table)),
        Author("repair", "another", "other segments"),
    )
