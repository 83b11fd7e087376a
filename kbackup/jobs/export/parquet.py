"""Parquet files kept in step with an archive: written by kbackup's tasks into the store, without any jars.

Which file holds a record follows from the record alone, and a file is there whole or not at all: a run that was killed
is done again, and what is there already stays. `points/<n>.json` is the commit of a restore point.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbackup.archive.models import dump
from kbackup.archive.segments.parallel import WHOLE, ReadUnit, SegmentRange, plan_reads, read_range
from kbackup.config.jobs import Export
from kbackup.errors import AlreadyExistsError
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.jobs.export.destination import (
    Destination,
    ExportedFile,
    ExportedPoint,
    ExportInfo,
    point_key,
    point_of,
)
from kbackup.jobs.export.plan import Addition
from kbackup.jobs.export.read import ReadRows
from kbackup.jobs.export.run import ExportRun, TableReport, losses_of
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import run_counted
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
    gathered: list[RecordBlock] = []
    size = 0
    for block in blocks:
        at = 0
        while at < len(block):
            fits = rotation_cut(block.lengths[at:], size, CHUNK_BYTES)
            if fits:
                gathered.append(slice_block(block, at, at + fits))
                size += gathered[-1].nbytes
                at += fits
            if at < len(block):
                yield gathered
                gathered, size = [], 0
    if gathered:
        yield gathered


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


class ParquetFormat:
    """Parquet files in folders by topic and date, without a table format."""

    kind = "parquet"

    def info(self, archive_id: str, options: Export) -> ExportInfo:
        return ExportInfo(
            archive_id=archive_id,
            kind="parquet",
            topics=options.topics,
            exclude_topics=options.exclude_topics,
        )

    def write(self, run: ExportRun) -> Sequence[TableReport]:
        destination = run.destination
        reached = _reached(destination)
        run.losses += losses_of(run.additions, max(reached, run.since), destination.url)
        done: list[Addition] = []
        for addition in list(run.additions.after(reached)):
            run.lease.check()
            files = _write(addition, run)
            point = ExportedPoint(
                archive_id=run.archive.info.id,
                restore_point=addition.point.number,
                committed_at=addition.point.committed_at,
                files=tuple(sorted(files, key=lambda f: f.path)),
            )
            run.lease.check()
            destination.own.put(point_key(addition.point.number), dump(point))
            done.append(addition)
        numbers = tuple(a.point.number for a in done)
        return [TableReport(destination.url, numbers, sum(a.records for a in done))] if done else []


def _reached(destination: Destination) -> int:
    """The newest restore point whose files are all there."""
    return max((point_of(entry.key) or 0 for entry in destination.own.list("points/")), default=0)


def _write(addition: Addition, run: ExportRun) -> list[ExportedFile]:
    job = run.job
    work = WriteFiles(run.destination.store, ReadRows(job.store, addition.point.number, addition.partitions))
    parts = plan_reads(addition.segments, cut_bytes=WHOLE)
    return run_counted(job.spark, parts, work, job.listener, addition.records)
