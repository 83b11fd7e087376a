"""Reading offset ranges as record blocks with one client.

The end of a range is reached by position: by a record at or past it, by the record just before it, or by the
broker's word that nothing more is there (EOF at or past it). Compaction, aborted transactions and control
records need no special case.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kbackup.errors import ClusterError
from kbackup.kafka.client import READS_ALONE, Connection, Properties
from kbackup.kafka.record_clients import open_source
from kbackup.native.contract import Report, Source
from kbackup.types import OffsetRange, RecordBlock, TopicPartition

_QUEUE_KBYTES = 32 << 10  # prefetched bytes of all partitions of a client, in KiB

_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

_TUNING = {
    **READS_ALONE,
    "allow.auto.create.topics": False,
    "topic.metadata.propagation.max.ms": 3000,  # of a topic that a broker does not know (yet)
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "queued.min.messages": 100_000,
    "check.crcs": True,
}


class Vanished(NamedTuple):
    """Records that were deleted at the source after they were planned and before they were read: [start, end)."""

    tp: TopicPartition
    start: int
    end: int


class RangeReader:
    """One client for a task's ranges. `vanished` collects what retention took while reading; `epochs` has the leader
    epoch of the last record of each range that was read to its end (-1: not known).

    `timeout` is how long, in seconds, nothing at all may happen before `UnreachableError`; `tuning` are properties that
    win. Close it after use.
    """

    def __init__(
        self,
        properties: Properties,
        isolation: str,
        group: str,
        timeout: float,
        partitions: int = 1,
        role: str = "source",
        tuning: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._connection = Connection(properties, role)
        self._timeout = timeout
        self.vanished: list[Vanished] = []
        self.epochs: dict[TopicPartition, int] = {}
        every = _TUNING | {
            "group.id": group,
            "isolation.level": isolation,
            "queued.max.messages.kbytes": max(1024, _QUEUE_KBYTES // max(1, partitions)),
        }
        self._source: Source = open_source(self._connection, every | dict(tuning))

    def close(self) -> None:
        self._source.close()

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        """Yield blocks of all `ranges` (at most one a partition) until every end is reached.

        The blocks of one partition are in order.
        """
        waiting = {r.tp: r for r in ranges if r.start < r.end}
        positions = {tp: r.start for tp, r in waiting.items()}
        if waiting:
            self._source.start(waiting)
        heard = time.monotonic()
        while waiting:
            useful = False
            for result in self._source.take():
                tp = result.tp
                if tp is None:
                    if result.report is not None and result.report.error.fatal():
                        raise self._connection.error(result.report.error, "a read")
                elif requested := waiting.get(tp):
                    if result.block is not None:
                        useful = True
                        positions[tp] = int(result.block.offsets[-1]) + 1
                        self.epochs[tp] = result.leader_epoch
                        yield tp, result.block
                    if result.ended or (
                        result.report is not None and self._handle(result.report, requested, positions)
                    ):
                        useful = True
                        del waiting[tp]
                        self._source.stop(tp)
            if useful:
                heard = time.monotonic()
            else:
                self._check_silence(heard, waiting)  # reports alone are no progress

    def _handle(self, report: Report, requested: OffsetRange, positions: dict[TopicPartition, int]) -> bool:
        """Handle an event that is no record; return True when it shows the end of the range as reached."""
        error, code = report.error, report.error.code()
        if code == KafkaError._PARTITION_EOF:
            return report.offset >= requested.end
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return self._skip_vanished(requested, positions)
        if code in _GONE or not error.retriable() or error.fatal():
            raise self._connection.error(error, f"reading {requested}")
        return False

    def _skip_vanished(self, requested: OffsetRange, positions: dict[TopicPartition, int]) -> bool:
        """Note the loss where the log now starts past our offset, and continue at its start."""
        low, high = self._source.watermarks(requested.tp, self._timeout)
        at = positions[requested.tp]
        if low <= at <= high:
            raise ClusterError(
                f"{requested} can't be read at offset {at}: the broker reports it as out of range",
                "run the command again",
            )
        if low < at:
            raise ClusterError(
                f"the log of {requested.tp} was cut back to {high}, below offset {at} which was there before",
                "check for an unclean leader election; the next run reports the loss",
            )
        self.vanished.append(Vanished(requested.tp, at, min(low, requested.end)))
        positions[requested.tp] = low
        if low >= requested.end:
            return True
        self._source.restart(requested.tp, low)
        return False

    def _check_silence(self, heard: float, waiting: dict[TopicPartition, OffsetRange]) -> None:
        last = self._connection.last
        if last is not None and last.code() in _GONE:  # a topic that goes is told to the client alone
            raise self._connection.error(last, "a read")
        if time.monotonic() - heard < self._timeout:
            return
        some = ", ".join(str(r) for r in list(waiting.values())[:3])
        said = f" ({last.str()})" if last is not None else ""
        raise self._connection.silent(f"gave nothing for {self._timeout:.0f} s while reading {some}{said}")
