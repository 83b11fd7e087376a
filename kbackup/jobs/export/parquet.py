"""Parquet files kept in step with an archive: written by kbackup's tasks into the store, without any jars.

Which file holds a record follows from the record alone, and a file is there whole or not at all: a run that was killed
is done again, and what is there already stays. `points/<n>.json` is the commit of a restore point.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbackup.archive.models import dump
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.parallel import WHOLE, ReadUnit, SegmentRange, plan_reads, read_range
from kbackup.config.jobs import Export
from kbackup.errors import AlreadyExistsError
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.jobs.export.delta import ExportReport, TableReport, losses_of
from kbackup.jobs.export.destination import (
    Destination,
    ExportedFile,
    ExportedPoint,
    ExportInfo,
    Reached,
    point_key,
    point_of,
)
from kbackup.jobs.export.plan import Addition, Additions
from kbackup.jobs.export.read import ReadRows
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store import S3Options
from kbackup.store.base import Store
from kbackup.types import RecordBlock

CHUNK_BYTES = 64 << 20
"""Records of a segment up to the one that makes them larger than this go into one file for each date."""
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_IN_PATH = ["topic", "date"]


@dataclass(frozen=True)
class WriteFiles:
    """The work of a task: the files of the segments of its part."""

    target: Store
    rows: ReadRows

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[ExportedFile]:
        for piece in part.ranges:
            for held in chunks(read_range(self.rows.store, piece)):
                table = pa.Table.from_batches([self.rows.rows(piece, block) for block in held])
                for day, some in by_date(table):
                    yield self._file(piece, int(held[0].offsets[0]), day, some)
                progress.add(len(table), sum(block.nbytes for block in held))

    def _file(self, piece: SegmentRange, first: int, day: str, rows: pa.Table) -> ExportedFile:
        s = piece.segment
        path = f"topic={s.topic}/date={day}/{s.incarnation}-{s.partition:03d}-{first:010d}.parquet"
        sink = io.BytesIO()
        pq.write_table(rows.drop_columns(_IN_PATH), sink, compression="zstd", store_schema=False)
        with suppress(AlreadyExistsError):  # of an attempt before this one: with the same records
            self.target.put_new(path, sink.getbuffer())
        return ExportedFile(path=path, records=len(rows), bytes=self.target.stat(path).size)


def chunks(blocks: Iterator[RecordBlock]) -> Iterator[list[RecordBlock]]:
    """The blocks' records in chunks that end with the record that makes them larger than `CHUNK_BYTES`: wherever the
    blocks end."""
    held: list[RecordBlock] = []
    size = 0
    for block in blocks:
        at = 0
        while at < len(block):
            fits = rotation_cut(block.lengths[at:], size, CHUNK_BYTES)
            if fits:
                held.append(slice_block(block, at, at + fits))
                size += held[-1].nbytes
                at += fits
            if at < len(block):
                yield held
                held, size = [], 0
    if held:
        yield held


def by_date(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each date ('' never: see `_NO_DATE`), in their order."""
    date: Any = table.column("date").cast(pa.int32())
    days = pc.fill_null(date, -1).to_numpy()
    order = np.argsort(days, kind="stable")
    ordered = days[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    whole = table if len(edges) == 2 else table.take(order)
    for start, stop in pairwise(edges):
        day = int(ordered[start])
        yield (str(np.datetime64(day, "D")) if day >= 0 else _NO_DATE), whole.slice(start, stop - start)


def export_parquet(
    options: Export,
    url: str,
    store: Store,
    s3: S3Options,
    spark: Spark,
    listener: Listener,
    lease_seconds: float,
) -> ExportReport:
    """Every restore point of `store` that the files at `url` don't have yet, in order."""
    phases = Phases(listener)
    destination = Destination.at(url, s3)
    with phases.step("connect"):
        archive = open_archive(store)
        destination.check_apart(store)
        additions = Additions(archive, Selection.of(options.topics, options.exclude_topics))
        newest = additions.newest
        additions.check_names()
    done: list[Addition] = []
    with destination.held(lease_seconds) as lease:
        with phases.step("plan"):
            destination.claim(
                ExportInfo(
                    archive_id=archive.info.id,
                    kind="parquet",
                    topics=options.topics,
                    exclude_topics=options.exclude_topics,
                )
            )
            destination.check_same_lineage(archive)
            reached = _reached(destination)
            due = list(additions.after(reached))
            here = Reached(
                archive_id=archive.info.id,
                restore_point=newest,
                topics=options.topics,
                exclude_topics=options.exclude_topics,
            )
            losses = losses_of(additions, max(reached, destination.reached(here)), destination.url)
        with phases.step("run"):
            for addition in due:
                lease.check()
                files = _write(addition, store, destination, spark, listener)
                point = ExportedPoint(
                    archive_id=archive.info.id,
                    restore_point=addition.point.number,
                    committed_at=addition.point.committed_at,
                    files=tuple(sorted(files, key=lambda f: f.path)),
                )
                lease.check()
                destination.own.put(point_key(addition.point.number), dump(point))
                done.append(addition)
        destination.note_reached(here)
    table = TableReport(destination.url, tuple(a.point.number for a in done), sum(a.records for a in done))
    tables = (table,) if done else ()
    return ExportReport("parquet", destination.url, store.url, newest, tables, tuple(losses), phases.seconds)


def _reached(destination: Destination) -> int:
    """The newest restore point whose files are all there."""
    return max((point_of(entry.key) or 0 for entry in destination.own.list("points/")), default=0)


def _write(
    addition: Addition, store: Store, destination: Destination, spark: Spark, listener: Listener
) -> list[ExportedFile]:
    work = WriteFiles(destination.store, ReadRows(store, addition.point.number, addition.partitions))
    parts = plan_reads(addition.segments, cut_bytes=WHOLE)
    return run_counted(spark, parts, work, listener, addition.records)
