"""The rows of Delta tables as segments: Spark brings each partition's to one task, in order of offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.segments.rows import from_export_batch
from kbackup.archive.segments.table import SCHEMA, Segment, from_batches, to_batch
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.config.models import Backup
from kbackup.errors import CorruptError, KbackupError, UsageError
from kbackup.spark.tasks import spark_errors
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_ROWS = 1_000_000
"""Rows of small partitions that share a task, about; those of one partition always do."""
_NEEDED = ("topic", "incarnation", "partition", "offset", "restorePoint")
_CHANGED = "restore an earlier version of the table, or export anew: each offset of a partition occurs once"


class TableRange(NamedTuple):
    """The offsets in tables of a partition of a topic's newest incarnation: `first` to `last`. `partitions`
    is how many the topic had, `restore_point` the newest that rows are from."""

    topic: str
    incarnation: int
    partition: int
    rows: int
    first: int
    last: int
    partitions: int
    restore_point: int


@dataclass(frozen=True)
class TableRows:
    """The rows of `tables` that `selection` selects and that were there by restore point `last` (None: all)."""

    session: SparkSession
    tables: Sequence[DataFrame]
    selection: Selection
    last: int | None

    def ranges(self) -> list[TableRange]:
        """Return the range of each partition of each topic's newest incarnation."""
        from pyspark.sql import functions as f

        offset, lacking = (
            f.col("offset"),
            f.concat(*(f.col(name).cast("string") for name in _NEEDED)).isNull(),
        )
        sums: list[list[Any]] = []
        for table in self.tables:
            rows = self._upto(table).groupBy("topic", "incarnation", "partition")
            with spark_errors():
                summed = rows.agg(
                    f.count("*"),
                    f.min(offset),
                    f.max(offset),
                    f.max("partitions"),
                    f.max("restorePoint"),
                    f.count_if(lacking),
                ).toArrow()
            sums += [list(row) for row in zip(*(c.to_pylist() for c in summed.columns), strict=True)]
        return table_ranges(sums, self.selection)

    def newest(self) -> list[int]:
        """The greatest restore point that rows of each table are from; 0 where it has none."""
        from pyspark.sql import functions as f

        with spark_errors():
            newest = [table.agg(f.max("restorePoint")).toArrow() for table in self.tables]
        return [int(each.column(0)[0].as_py() or 0) for each in newest]

    def write(self, store: Store, options: Backup, ranges: Sequence[TableRange]) -> list[Segment]:
        """Their segments in `store`, all as of a first incarnation. `CorruptError` for rows that are no records of
        Kafka."""
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_schema

        keys = sorted({(h.topic, h.incarnation) for h in ranges})
        chosen = f.broadcast(self.session.createDataFrame(keys, "topic string, incarnation int"))
        every = self._upto(self.tables[0])
        for table in self.tables[1:]:
            every = every.unionByName(self._upto(table))
        count = max(1, min(len(ranges), sum(h.rows for h in ranges) // _TASK_ROWS + 1))
        in_order = (
            every.join(chosen, ["topic", "incarnation"])
            .repartition(count, "topic", "partition")
            .sortWithinPartitions("topic", "partition", "offset")
        )
        work = WriteSegments(store, options.segment_bytes, options.compression)
        with spark_errors():
            done = in_order.mapInArrow(work, from_arrow_schema(SCHEMA)).toArrow()
        return from_batches(done.to_batches())

    def _upto(self, table: DataFrame) -> DataFrame:
        """A row that does not say when it came is not left out: `ranges` reports it."""
        if self.last is None:
            return table
        at = table["restorePoint"]
        return table.where((at <= self.last) | at.isNull())


def table_ranges(sums: Sequence[Sequence[Any]], selection: Selection) -> list[TableRange]:
    """Return the selected ranges, by partition, of each topic's newest incarnation. Each of `sums` has the fields
    of a `TableRange`, and how many rows lack what each needs: `CorruptError` where there are such."""
    names = {topic for topic, *_ in sums if topic is not None}
    check_selection(
        selection, "topic", names, "with records in the Delta tables", "see --topic and --restore-point"
    )
    selected = set(selection.topics(names))
    ranges: list[TableRange] = []
    newest: dict[str, int] = {}
    for topic, incarnation, partition, rows, first, last, partitions, point, lacking in sums:
        if topic is not None and topic not in selected:
            continue
        if lacking:
            raise CorruptError(
                f"Delta table: {lacking} rows{f' of {topic}' if topic is not None else ''} "
                f"lack what every record has: one of {', '.join(_NEEDED)} is null",
                "delete these rows, or fill them in: kbackup has not written them",
            )
        ranges.append(TableRange(topic, incarnation, partition, rows, first, last, partitions or 0, point))
        newest[topic] = max(newest.get(topic, 0), incarnation)
    return sorted(h for h in ranges if h.incarnation == newest[h.topic])


@dataclass(frozen=True)
class WriteSegments:
    """The work of a task: its rows come in order of topic, partition and offset."""

    store: Store
    segment_bytes: int
    compression: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at: TopicPartition | None = None
        last = -1
        writer: PartitionWriter | None = None
        try:
            for batch in batches:
                for tp, rows in by_partition(batch):
                    if tp != at or writer is None:
                        if writer is not None:
                            yield to_batch(writer.finish())
                        at, last, writer = tp, -1, self._begin(tp)
                    block = block_of(tp, rows, last)
                    last = int(block.offsets[-1])
                    yield to_batch(writer.append(block))
            if writer is not None:
                yield to_batch(writer.finish())
        except KbackupError as error:
            raise RuntimeError(error.marker()) from None
        finally:
            if writer is not None:
                writer.__exit__(None, None, None)

    def _begin(self, tp: TopicPartition) -> PartitionWriter:
        """Delete the partition's segments of an earlier attempt, and begin to write."""
        target = Target(tp.topic, 1, tp.partition, self.segment_bytes, self.compression)
        stem = layout.segment_stem(tp.partition, 0).removesuffix("0000000000")
        earlier = [entry.key for entry in self.store.list(target.directory + stem)]
        for failed in self.store.delete(earlier):
            raise failed.error
        return PartitionWriter(self.store, target)


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """The rows of each partition; those of one lie together."""
    topics: Any = batch.column("topic").dictionary_encode()
    codes, numbers = topics.indices.to_numpy(), batch.column("partition").to_numpy()
    moved = (np.diff(codes) != 0) | (np.diff(numbers) != 0)
    edges = [0, *(np.flatnonzero(moved) + 1).tolist(), len(codes)]
    for start, stop in pairwise(edges):
        if start < stop:
            name: str = topics.dictionary[int(codes[start])].as_py()
            yield TopicPartition(name, int(numbers[start])), batch.slice(start, stop - start)


def block_of(tp: TopicPartition, rows: pa.RecordBatch, last: int) -> RecordBlock:
    """The records of rows that come after offset `last`."""
    try:
        block = from_export_batch(rows)
    except (UsageError, pa.ArrowException) as error:
        raise CorruptError(f"Delta table: rows of {tp} are no records: {error}", _CHANGED) from error
    first = int(block.offsets[0])
    if first <= last:
        raise CorruptError(f"Delta table: offset {first} of {tp} is there twice", _CHANGED)
    return block
