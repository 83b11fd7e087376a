"""An archive as a Spark table, beside a source that only gives out batches: python -m scripts.bench.spark_source

Rows a second, wall time, into Spark's `noop` sink on `local[2]`, of a folder as the Java tool writes it. The bare
source yields such rows in the same columns from memory: what Spark itself makes of Arrow batches from Python.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kbackup.archive import layout
from kbackup.archive.query.java import java_content
from kbackup.archive.segments.parallel import plan_reads, read_unit
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.formats.layout import MAGIC_BYTE
from kbackup.spark import register
from kbackup.spark.session import build_session
from kbackup.spark.source import columns_of
from kbackup.spark.source.options import TYPES
from kbackup.store.file import FileStore
from scripts.bench.local import blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ROUNDS = 5
_TASKS = 4
_COLUMNS = {"all columns": tuple(TYPES), "key, value, offset": ("key", "value", "offset")}


class Bare(DataSource):
    """Options: `folder` of an archive whose first batch is given out, and by how many `rows` in all."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def reader(self, schema: StructType) -> DataSourceReader:
        return BareReader(self.options, columns_of(schema))


class BareReader(DataSourceReader):
    def __init__(self, options: dict[str, str], columns: list[str]) -> None:
        self._folder, self._rows, self._columns = options["folder"], int(options["rows"]), columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // _TASKS)] * _TASKS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store = FileStore(self._folder)
        segments = java_content(store, ["topic"]).topics[0].segments
        batch = next(read_unit(store, plan_reads(segments)[0], columns=self._columns))
        left: int = partition.value
        while left > 0:
            yield batch.slice(0, min(left, len(batch)))
            left -= len(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--size", type=int, default=140, help="bytes of a value")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), arguments.size, arguments.records)
        archive = str(Path(folder, layout.TOPICS))
        spark = build_session("local[2]", {}, 1)
        register(spark)
        spark.dataSource.register(Bare)
        for what, names in _COLUMNS.items():
            measured = _measure(spark, archive, arguments.records, names)
            rates = {name: arguments.records / statistics.median(times) for name, times in measured.items()}
            print(
                f"{what:<20} archive {rates['archive']:>12,.0f} rows/s   bare {rates['bare']:>12,.0f} rows/s   "
                f"{rates['archive'] / rates['bare']:.2f}"
            )
        spark.stop()


def _measure(spark: SparkSession, folder: str, rows: int, names: tuple[str, ...]) -> dict[str, list[float]]:
    """Seconds, in turns; the first round warms up."""
    schema = ", ".join(f"{name} {TYPES[name]}" for name in names)
    archive = spark.read.format("kbackup").option("columns", ",".join(names)).load(folder)
    bare = spark.read.format("bare").schema(schema).options(folder=folder, rows=rows).load()
    times: dict[str, list[float]] = {"archive": [], "bare": []}
    for n in range(_ROUNDS + 1):
        for name, frame in (("archive", archive), ("bare", bare)):
            seconds = _time(frame)
            if n:
                times[name].append(seconds)
    return times


def _time(frame: DataFrame) -> float:
    before = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - before


def _write(folder: Path, size: int, count: int) -> None:
    """Records of as many partitions as there are tasks."""
    store = FileStore(folder)
    for number in range(_TASKS):
        with PartitionWriter(store, Target("topic", 1, number, 128 << 20, "none")) as writer:
            for block in blocks(size, count // _TASKS):
                writer.append(block)
            writer.finish()
        store.put(layout.partition_index_key(layout.topic_dir("topic"), number), MAGIC_BYTE)


if __name__ == "__main__":
    main()
