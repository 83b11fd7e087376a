"""Following an archive: each micro-batch has the records that new restore points added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kbackup.archive.followers import check_same_point, damaged, manifest_of, missed
from kbackup.archive.java.content import is_java_archive
from kbackup.archive.query.selection import check_selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NoArchiveError, RefusedError, UsageError
from kbackup.spark.source.batch import read, tasks
from kbackup.spark.source.filters import Pushed
from kbackup.spark.source.options import Request
from kbackup.types import TopicPartition

Offset = dict[str, Any]
"""`backup`: the number of the last restore point whose records have come; 0 for none. `manifest`: the checksum of what
it says; '' where there is none of that number. `archive`: its id."""


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
        self._check_names(archive)
        if starting == "latest":
            return _offset(archive, _last(archive))
        if starting != "earliest" and not (starting.isascii() and starting.isdigit()):
            raise UsageError(
                f"option startingRestorePoint: {starting} can't be used", "give a number, earliest or latest"
            )
        return _offset(archive, self._first)

    def _check_names(self, archive: Archive) -> None:
        """Raise `UsageError` for a topic that is asked for by its name and was not archived yet, where anything was."""
        if archive.restore_points:
            names = [topic.name for topic in archive.restore_point("latest").topics]
            asked, hint = self._request.selection.only_names, "topicPattern also takes topics that come later"
            check_selection(asked, "topic", names, f"in {self._store.url}", hint, internal=True)

    @property
    def _first(self) -> int:
        """The number before the first one that was asked for: it may not be there yet."""
        starting = self._request.starting
        return max(int(starting) - 1, 0) if starting.isascii() and starting.isdigit() else 0

    def latestOffset(self) -> Offset:  # noqa: N802 (Spark's)
        """Return the newest offset, never below an earlier answer: Spark would read its records twice."""
        archive = self._open()
        return self._give(_offset(archive, max(_last(archive), self._first)))

    def _give(self, offset: Offset) -> Offset:
        if offset["archive"] != self._given["archive"] or offset["backup"] > self._given["backup"]:
            self._given = offset
        return self._given

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        archive = self._open()
        newest = max(_last(archive), self._first)
        for offset in (start, end):
            self._check_same(archive, offset)
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
        added = (s for s in archive.added(after, last) if self._wants(TopicPartition(s.topic, s.partition)))
        return tasks(added, self._request, [Pushed()])

    def _check_same(self, archive: Archive, offset: Offset) -> None:
        """Raise `RefusedError` where the archive is not the one that the stream has followed."""
        number, hint = offset["backup"], "give the stream another checkpointLocation"
        if offset["archive"] != archive.info.id:
            raise RefusedError(
                f"the checkpoint is of archive {offset['archive']}, {self._store.url} is {archive.info.id}",
                hint,
            )
        check_same_point(archive, number, offset.get("manifest", ""), "the stream", hint)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._store, partition, self._columns)

    def _wants(self, tp: TopicPartition) -> bool:
        ranges = self._request.ranges
        return self._request.topics.matches(tp.topic) and (ranges is None or tp in ranges)

    def _open(self) -> Archive:
        try:
            return open_archive(self._store)
        except NoArchiveError:
            if not is_java_archive(self._store):
                raise
            raise UsageError(
                f"{self._store.url} is a folder of the Java tool, which has no restore points to follow",
                "read it with spark.read",
            ) from None


def require_whole(archive: Archive, after: int, last: int, wants: Callable[[TopicPartition], bool]) -> None:
    """Raise `RefusedError` where records added after restore point `after` have expired or are damaged.

    Damage is checked up to restore point `last`.
    """
    hint = "set option failOnDataLoss=false to continue without them, or give the stream another checkpointLocation"
    for tp, start in missed(archive, after, wants) if after else ():
        raise RefusedError(
            f"records of {tp} below offset {start} have expired, "
            f"and the stream may not have had them all: it came to restore point {after}",
            hint,
        )
    for _, message in damaged(archive, after, last, wants):
        raise RefusedError(
            f"the archive is damaged: {message}",
            "set option failOnDataLoss=false to continue without the records",
        )


def _last(archive: Archive) -> int:
    """Return the number of the newest restore point, also of an expired one."""
    return archive.state.next_point - 1


def _offset(archive: Archive, number: int) -> Offset:
    return {"archive": archive.info.id, "backup": number, "manifest": manifest_of(archive, number)}
