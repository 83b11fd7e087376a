"""Reading an archive as of a restore point: which segments there are, and parts of them as Arrow batches."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from kbackup.archive.java import JavaFolder
from kbackup.archive.models import Manifest
from kbackup.archive.query.java import java_content, java_topics, open_archive_or_folder
from kbackup.archive.query.selection import check_selection
from kbackup.archive.reader import Archive, added_offsets, check_same_point, damaged, manifest_of, missed
from kbackup.archive.schemas import SchemaSource
from kbackup.archive.segments.parallel import ReadUnit, plan_reads, read_unit
from kbackup.archive.segments.rows import SPARK_TYPES
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.errors import RefusedError, UsageError
from kbackup.schemas.columns import JSON, decoded_columns
from kbackup.spark.source.options import DECODED, Pushed, Request, both, push, window_of
from kbackup.store import Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # since Spark 4.1


def sources(manifest: Manifest | None, request: Request, columns: Sequence[str]) -> SchemaSource | None:
    """Return what decodes records as of a restore point; None if `columns` need no decoding."""
    if not DECODED.keys() & columns:
        return None
    held = manifest.schemas if manifest is not None else None
    return SchemaSource(held, request.registry())


@dataclass(repr=False)
class Task(InputPartition):
    """The records that one task of Spark reads, and the schemas that decode them, if that is asked for."""

    segment_range: ReadUnit
    schemas: SchemaSource | None


class BatchReader(DataSourceReader):
    """Reads on executors, which get the store alone. Each task gets only its own ranges."""

    def __init__(self, request: Request, columns: Sequence[str]) -> None:
        self._request = request
        self._columns = list(columns)
        self._store = request.store()

    def partitions(self) -> Sequence[InputPartition]:
        archive = open_archive_or_folder(self._store)
        manifest = archive.restore_point(self._request.restore_point) if archive is not None else None
        segments = segments_of(self._store, archive, manifest, self._request)
        schemas = sources(manifest, self._request, self._columns)
        return tasks(segments, self._request, self.asked(), schemas)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._store, partition, self._columns)

    def asked(self) -> Sequence[Pushed]:
        return [Pushed()]


class PushingReader(BatchReader):
    """A reader that reads less by the filters of queries, but leaves their evaluation to Spark. The caller ensures that
    each query has a filter."""

    # Spark 4.0 pushes no filters. Spark 4.1 stores the filters of a loaded table's last query, and uses them for all
    # queries: for others in the same plan, and for later ones without a filter. So a query reads the records of all
    # filters that there have been until then, and Spark filters them. They are kept in Spark's own folder on the
    # driver, because Spark makes a reader for each query, in a process of its own.

    def __init__(self, request: Request, columns: Sequence[str], table: str) -> None:
        super().__init__(request, columns)
        self._table = table
        self._asked: tuple[Pushed, ...] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        folder = Path(SparkFiles.getRootDirectory())
        self._asked = remembered(folder, self._table, push(filters))
        return filters

    def asked(self) -> Sequence[Pushed]:
        return super().asked() if self._asked is None else self._asked


def remembered(folder: Path, table: str, pushed: Pushed) -> tuple[Pushed, ...]:
    """Return all filters that queries have pushed to `table` until now, `pushed` included."""
    with (folder / f"kbackup-{table}.asked").open("a+b") as file:
        # Two queries of a table may be planned at the same time.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before: list[Pushed] = []
        while file.peek(1):
            before.append(pickle.load(file))  # noqa: S301 (we wrote it, where nobody else may)
        if pushed not in before:
            pickle.dump(pushed, file)
            before.append(pushed)
    return tuple(before)


def tasks(
    segments: Iterable[Segment],
    request: Request,
    asked: Sequence[Pushed],
    schemas: SchemaSource | None,
    offsets: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> list[InputPartition]:
    """Split the selected records of `segments` into tasks. `offsets` has the keys of segments of which only some
    offsets (end exclusive) are selected."""

    def window(segment: Segment) -> Window:
        narrowed = request.times
        if request.ranges is not None:
            own = request.ranges.get(TopicPartition(segment.topic, segment.partition), ())
            narrowed = both(narrowed, Window(ranges=own))
        if segment.key in offsets:
            narrowed = both(narrowed, Window(ranges=(offsets[segment.key],)))
        return both(narrowed, window_of(asked, segment) or Window(ranges=()))

    parts = plan_reads(segments, window, part_bytes=request.partition_bytes)
    return [Task(part, schemas) for part in parts]


def read(store: Store, partition: InputPartition | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition; nothing for None, which Spark passes when there is no partition."""
    if not isinstance(partition, Task):
        return
    folder = JavaFolder(store)
    if partition.schemas is None:
        for batch in read_unit(folder, partition.segment_range, columns):
            arrays = [_as_spark_has_it(batch, name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
        return
    decoders = partition.schemas.open(store).decoders()
    # Headers are needed as well: serializers may put the id of a schema there.
    needed = {"key", "value", "headers", *columns} - DECODED.keys()
    for batch in read_unit(folder, partition.segment_range, sorted(needed)):
        texts = decoded_columns(batch, decoders, {"key": JSON, "value": JSON})
        decoded = dict(zip(DECODED, texts, strict=True))
        arrays = []
        for name in columns:
            array = decoded[name].cast(pa.string()) if name in decoded else _as_spark_has_it(batch, name)
            arrays.append(array)
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _as_spark_has_it(batch: pa.RecordBatch, name: str) -> pa.Array[Any]:
    """Return a column in Spark's type: Spark 4.2 and later take no other one."""
    column = batch.column(name)
    kind = SPARK_TYPES.get(name)
    return column if kind is None else column.cast(kind)


def segments_of(store: Store, archive: Archive | None, manifest: Manifest | None, request: Request) -> list[Segment]:
    """Return all segments of the selected topics, of a restore point or of a folder of the Java tool. Reads nothing of
    other topics, as far as names allow. `UsageError` for a requested topic that is missing."""
    if archive is None or manifest is None:
        selected = select_topics(request, java_topics(store), store.url)
        return _java_segments(store, selected) if selected else []
    names = [topic.name for topic in manifest.topics]
    selected = select_topics(request, names, f"restore point {manifest.number}")
    return archive.segments(manifest, [topic for topic in manifest.topics if topic.name in selected])


def _java_segments(store: Store, topics: set[str]) -> list[Segment]:
    content = java_content(store, sorted(topics))
    segments: list[Segment] = []
    for topic in content.topics:
        segments += topic.segments
    return segments


def select_topics(request: Request, names: Sequence[str], container: str) -> set[str]:
    """Return the selected topics among `names`, the topics of `container`. `UsageError` if none of them matches."""
    check_selection(request.selection, "topic", names, f"in {container}", "'kbackup ls' lists them", internal=True)
    return {name for name in names if request.selection.matches(name)}


# Following an archive: each micro-batch has the records that new restore points added.


Offset = dict[str, Any]
"""How far a stream has come. `backup` is the number of the last restore point whose records have come, 0 for none;
`manifest` the checksum of that restore point, '' where none has the number; `archive` the id of the archive."""


class StreamReader(DataSourceStreamReader):
    def __init__(self, request: Request, columns: Sequence[str]) -> None:
        if request.restore_point != "latest":
            raise UsageError("option restorePoint is not for streams", "give startingRestorePoint")
        self._request = request
        self._columns = list(columns)
        self._store = request.store()
        self._given: Offset = {"archive": "", "backup": -1}

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's)
        starting, archive = self._request.starting.lower(), self._open()
        # A topic that is asked for by its name must be archived. In an archive without restore points nothing is yet.
        if archive.restore_points:
            names = [topic.name for topic in archive.restore_point("latest").topics]
            asked, hint = self._request.selection.only_names, "topicPattern also takes topics that come later"
            check_selection(asked, "topic", names, f"in {self._store.url}", hint, internal=True)
        if starting == "latest":
            return _offset(archive, _last(archive))
        if starting != "earliest" and not (starting.isascii() and starting.isdigit()):
            raise UsageError(
                f"option startingRestorePoint: {starting} can't be used", "give a number, earliest or latest"
            )
        return _offset(archive, self._first)

    @property
    def _first(self) -> int:
        """The number before the first restore point that was asked for. That restore point may not be there yet."""
        starting = self._request.starting
        return max(int(starting) - 1, 0) if starting.isascii() and starting.isdigit() else 0

    # Spark 4.2 has arguments for a limit, and calls a method without them as Spark 4.0 and 4.1 do.
    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802 (Spark's)
        """Return the newest offset, never below an earlier answer: Spark would read its records twice."""
        archive = self._open()
        number = max(_last(archive), self._first)
        return self._give(_offset(archive, number))

    def _give(self, offset: Offset) -> Offset:
        if offset["archive"] != self._given["archive"] or offset["backup"] > self._given["backup"]:
            self._given = offset
        return self._given

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        archive = self._open()
        newest = max(_last(archive), self._first)
        hint = "give the stream another checkpointLocation"
        for offset in (start, end):
            if offset["archive"] != archive.info.id:
                raise RefusedError(
                    f"the checkpoint is of archive {offset['archive']}, {self._store.url} is {archive.info.id}", hint
                )
            check_same_point(archive, offset["backup"], offset.get("manifest", ""), "the stream", hint)
            if not offset["backup"] <= min(end["backup"], newest):
                raise RefusedError(
                    f"the stream came to restore point {offset['backup']}, {self._store.url} was at "
                    f"{min(end['backup'], newest)} only",
                    "check whether it is a copy that lags behind, or was rolled back; see 'Following an archive'",
                )
        self._give(end)
        after, last = int(start["backup"]), int(end["backup"])
        if self._request.fail_on_data_loss:
            require_whole(archive, after, last, self._wants)

        def is_wanted(segment: Segment) -> bool:
            return self._wants(TopicPartition(segment.topic, segment.partition))

        # Where segments were merged, a batch may begin and end inside of one: Spark repeats it after a failure.
        segments, offsets = added_offsets(archive, after, last)
        schemas = sources(archive.head, self._request, self._columns)
        return tasks(filter(is_wanted, segments), self._request, [Pushed()], schemas, offsets)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._store, partition, self._columns)

    def _wants(self, tp: TopicPartition) -> bool:
        ranges = self._request.ranges
        return self._request.topics.matches(tp.topic) and (ranges is None or tp in ranges)

    def _open(self) -> Archive:
        archive = open_archive_or_folder(self._store)
        if archive is None:
            raise UsageError(
                f"{self._store.url} is a folder of the Java tool, which has no restore points to follow",
                "read it with spark.read",
            )
        return archive


def require_whole(archive: Archive, after: int, last: int, wants: Callable[[TopicPartition], bool]) -> None:
    """Raise `RefusedError` if records added after restore point `after` have expired or are damaged. Damage is checked
    up to restore point `last`."""
    hint = "set option failOnDataLoss=false to continue without them, or give the stream another checkpointLocation"
    for tp, start in missed(archive, after, wants) if after else ():
        raise RefusedError(
            f"records of {tp} below offset {start} have expired, "
            f"and the stream may not have had them all: it came to restore point {after}",
            hint,
        )
    for _, message in damaged(archive, after, last, wants):
        raise RefusedError(
            f"the archive is damaged: {message}", "set option failOnDataLoss=false to continue without the records"
        )


def _last(archive: Archive) -> int:
    """Return the number of the newest restore point that there has been, expired ones included."""
    return archive.state.next_point - 1


def _offset(archive: Archive, number: int) -> Offset:
    return {"archive": archive.info.id, "backup": number, "manifest": manifest_of(archive, number)}
