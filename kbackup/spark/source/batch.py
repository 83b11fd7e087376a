"""Reading an archive as of a restore point: which segments there are, and pieces of them as Arrow batches."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from kbackup.archive.java.content import is_java_archive, java_content, java_topics
from kbackup.archive.java.folder import JavaFolder
from kbackup.archive.query.selection import check_selection
from kbackup.archive.query.window import Window
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.parallel import ReadUnit, plan_reads, read_unit
from kbackup.archive.segments.table import Segment
from kbackup.errors import NoArchiveError
from kbackup.spark.source.filters import Pushed, both, push, window_of
from kbackup.spark.source.options import Request
from kbackup.store import Store
from kbackup.types import TopicPartition


@dataclass(repr=False)
class Task(InputPartition):
    """The records that one task of Spark reads."""

    segment_range: ReadUnit


class Reader(DataSourceReader):
    """Reads on executors, which get the store alone; each task gets only its own ranges."""

    def __init__(self, request: Request, columns: Sequence[str]) -> None:
        self._request = request
        self._columns = list(columns)
        self._store = request.store()

    def partitions(self) -> Sequence[InputPartition]:
        return tasks(segments_of(self._store, self._request), self._request, self.asked())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._store, partition, self._columns)

    def asked(self) -> Sequence[Pushed]:
        return [Pushed()]


class PushingReader(Reader):
    """A reader that narrows by filters, but leaves their evaluation to Spark.

    Spark 4.1 stores the filters of a loaded table's last query, and uses them for all queries: for others in the same
    plan, and for later ones without a filter. So a query reads the records of all filters until then (stored in Spark's
    own folder on the driver), and Spark filters them. The caller ensures that each query has a filter.
    """

    def __init__(self, request: Request, columns: Sequence[str], table: str) -> None:
        super().__init__(request, columns)
        self._table = table
        self._asked: tuple[Pushed, ...] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        self._asked = remembered(Path(SparkFiles.getRootDirectory()), self._table, push(filters))
        return filters

    def asked(self) -> Sequence[Pushed]:
        return super().asked() if self._asked is None else self._asked


def remembered(folder: Path, table: str, pushed: Pushed) -> tuple[Pushed, ...]:
    """Return all filters that queries have pushed to `table` until now, `pushed` included."""
    with (folder / f"kbackup-{table}.asked").open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before: list[Pushed] = []
        while file.peek(1):
            before.append(pickle.load(file))  # noqa: S301 (we wrote it, where nobody else may)
        if pushed not in before:
            pickle.dump(pushed, file)
            before.append(pushed)
    return tuple(before)


def tasks(segments: Iterable[Segment], request: Request, asked: Sequence[Pushed]) -> list[InputPartition]:
    """Split the selected records of `segments` into tasks."""

    def window(segment: Segment) -> Window:
        own = None
        if request.ranges is not None:
            own = request.ranges.get(TopicPartition(segment.topic, segment.partition), ())
        narrowed = both(request.times, Window(ranges=own))
        return both(narrowed, window_of(asked, segment) or Window(ranges=()))

    return [Task(part) for part in plan_reads(segments, window, part_bytes=request.partition_bytes)]


def read(store: Store, partition: InputPartition | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition; nothing for None, which Spark passes when there is no partition."""
    if isinstance(partition, Task):
        yield from read_unit(JavaFolder(store), partition.segment_range, columns=columns)


def segments_of(store: Store, request: Request) -> list[Segment]:
    """Return all segments of the selected topics, of a restore point or of a folder of the Java tool.

    Reads nothing of other topics, as far as names tell. `UsageError` for a requested topic that is missing.
    """
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
        names = select_topics(request, java_topics(store), store.url)
        return (
            [s for topic in java_content(store, sorted(names)).topics for s in topic.segments]
            if names
            else []
        )
    manifest = archive.restore_point(request.restore_point)
    selected = select_topics(request, [t.name for t in manifest.topics], f"restore point {manifest.number}")
    return archive.segments(manifest, [t for t in manifest.topics if t.name in selected])


def select_topics(request: Request, names: Sequence[str], container: str) -> set[str]:
    """Return the selected topics among `names`, those of `container`. `UsageError` where none of them matches."""
    check_selection(
        request.selection, "topic", names, f"in {container}", "'kbackup ls' lists them", internal=True
    )
    return {name for name in names if request.selection.matches(name)}
