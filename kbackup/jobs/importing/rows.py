"""The rows of Delta tables as segments: Spark brings each partition's to one task, in order of offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.query.export_rows import from_export_batch
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.segments.table import SCHEMA, Segment, from_batches, to_batch
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.config.jobs import Backup
from kbackup.errors import CorruptError, KbackupError, UsageError
from kbackup.spark.tasks import spark_errors
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_ROWS = 1_000_000
"""Rows of small partitions that share a task, about; those of one partition always do."""
_NEEDED = ("topic", "incarnation", "partition", "offset", "restorePoint")
_CHANGED = "was the table changed? each offset of a partition is there once"


class Held(NamedTuple):
    """What tables hold of a partition of the newest incarnation of a topic: offsets `first` to `last`. `partitions`
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

    def held(self) -> list[Held]:
        """By partition, of each topic's newest incarnation."""
        from pyspark.sql import functions as f

        offset, lacking = (
            f.col("offset"),
            f.concat(*(f.col(name).cast("string") for name in _NEEDED)).isNull(),
        )
        found: list[list[Any]] = []
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
            found += [list(row) for row in zip(*(c.to_pylist() for c in summed.columns), strict=True)]
        return held_of(found, self.selection)

    def newest(self) -> list[int]:
        """The greatest restore point that rows of each table are from; 0 where it has none."""
        from pyspark.sql import functions as f

        with spark_errors():
            found = [table.agg(f.max("restorePoint")).toArrow() for table in self.tables]
        return [int(each.column(0)[0].as_py() or 0) for each in found]

    def write(self, store: Store, options: Backup, held: Sequence[Held]) -> list[Segment]:
        """Their segments in `store`, all as of a first incarnation. `CorruptError` for rows that are no records of
        Kafka."""
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_schema

        keys = sorted({(h.topic, h.incarnation) for h in held})
        chosen = f.broadcast(self.session.createDataFrame(keys, "topic string, incarnation int"))
        every = self._upto(self.tables[0])
        for table in self.tables[1:]:
            every = every.unionByName(self._upto(table))
        count = max(1, min(len(held), sum(h.rows for h in held) // _TASK_ROWS + 1))
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
        """A row that does not say when it came is not left out: `held` complains of it."""
        if self.last is None:
            return table
        at = table["restorePoint"]
        return table.where((at <= self.last) | at.isNull())


def held_of(sums: Sequence[Sequence[Any]], selection: Selection) -> list[Held]:
    """Those that `selection` selects, by partition, of each topic's newest incarnation. Each of `sums` has the fields
    of a `Held`, and how many rows lack what each needs: `CorruptError` where there are such."""
    names = {topic for topic, *_ in sums if topic is not None}
    check_selection(selection, "topic", names, "with records in the Delta tables", "see --topic and --backup")
    wanted = set(selection.topics(names))
    found: list[Held] = []
    newest: dict[str, int] = {}
    for topic, incarnation, partition, rows, first, last, partitions, point, lacking in sums:
        if topic is not None and topic not in wanted:
            continue
        if lacking:
            raise CorruptError(
                f"Delta table: {lacking} rows{f' of {topic}' if topic is not None else ''} "
                f"lack what every record has: one of {', '.join(_NEEDED)} is null",
                "did somebody else write them? delete them, or fill them in",
            )
        found.append(Held(topic, incarnation, partition, rows, first, last, partitions or 0, point))
        newest[topic] = max(newest.get(topic, 0), incarnation)
    return sorted(h for h in found if h.incarnation == newest[h.topic])


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
        """What an attempt before this one has left of the partition goes."""
        target = Target(tp.topic, 1, tp.partition, self.segment_bytes, self.compression)
        stem = layout.segment_stem(tp.partition, 0).removesuffix("0000000000")
        left = [entry.key for entry in self.store.list(target.directory + stem)]
        for failed in self.store.delete(left):
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
