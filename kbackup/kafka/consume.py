"""Reading offset ranges as record blocks with one client.

The end of a range is reached by position: by a record at or past it, by the record just before it, or by the
broker's word that nothing more is there (EOF at or past it). Compaction, aborted transactions and control
records need no special case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kbackup.errors import ClusterError
from kbackup.kafka.client import READS_ALONE, Connection, Properties
from kbackup.kafka.record_clients import open_source
from kbackup.native.contract import Report, Source
from kbackup.types import OffsetRange, RecordBlock, TopicPartition

_QUEUE_KBYTES = 32 << 10
"""How much a client prefetches for all its partitions together, in KiB; each has its share."""
_LEAST_QUEUE_KBYTES = 1024

_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

_TUNING = {
    **READS_ALONE,
    "allow.auto.create.topics": False,
    # How long a topic that a broker does not know may still become known: librdkafka's own 30 s delay the error.
    "topic.metadata.propagation.max.ms": 3000,
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "queued.min.messages": 100_000,
    "check.crcs": True,
}


OpenSource = Callable[[Connection, Mapping[str, Any]], Source]


class Vanished(NamedTuple):
    """Records that were deleted at the source after they were planned and before they were read: [start, end)."""

    tp: TopicPartition
    start: int
    end: int


class RangeReader:
    """One client for a task's ranges. Close it after use.

    `vanished` collects the records that retention deleted meanwhile. `epochs` has the leader epoch of the last record
    that was read of each partition (-1: not known). If nothing comes for `timeout` seconds, `read` raises
    `UnreachableError`. The properties in `tuning` win over the reader's own. `source` opens the client.
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
        source: OpenSource = open_source,
    ) -> None:
        self._connection = Connection(properties, role)
        self._timeout = timeout
        self.vanished: list[Vanished] = []
        self.epochs: dict[TopicPartition, int] = {}
        share = _QUEUE_KBYTES // max(1, partitions)
        properties_of_reader: dict[str, Any] = {
            **_TUNING,
            "group.id": group,
            "isolation.level": isolation,
            "queued.max.messages.kbytes": max(_LEAST_QUEUE_KBYTES, share),
            **tuning,
        }
        self._source = source(self._connection, properties_of_reader)

    def close(self) -> None:
        self._source.close()

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        """Yield blocks of all `ranges` (at most one a partition) until every end is reached.

        The blocks of one partition are in order.
        """
        waiting = {requested.tp: requested for requested in ranges if requested.start < requested.end}
        positions = {tp: requested.start for tp, requested in waiting.items()}
        if waiting:
            self._source.start(waiting)
        last_progress = time.monotonic()
        while waiting:
            has_progress = False
            for result in self._source.take():
                tp, report = result.tp, result.report
                if tp is None:
                    # A report about the client itself: what is not fatal, librdkafka tries again.
                    if report is not None and report.error.fatal():
                        raise self._connection.error(report.error, "a read")
                    continue
                requested = waiting.get(tp)
                # A batch may still hold something of a partition that was stopped a moment before.
                if requested is None:
                    continue
                if result.block is not None:
                    has_progress = True
                    positions[tp] = int(result.block.offsets[-1]) + 1
                    self.epochs[tp] = result.leader_epoch
                    yield tp, result.block
                has_ended = result.ended
                if report is not None and not has_ended:
                    has_ended = self._handle(report, requested, positions)
                if has_ended:
                    has_progress = True
                    del waiting[tp]
                    self._source.stop(tp)
            # Reports alone are no progress: a broker that only answers with errors would be waited for without end.
            if has_progress:
                last_progress = time.monotonic()
            else:
                self._check_silence(last_progress, waiting)

    def _handle(self, report: Report, requested: OffsetRange, positions: dict[TopicPartition, int]) -> bool:
        """Handle an event that is no record; return True if the event shows that the end of the range is reached."""
        error = report.error
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return report.offset >= requested.end
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return self._skip_vanished(requested, positions)
        if code in _GONE or not error.retriable() or error.fatal():
            raise self._connection.error(error, f"reading {requested}")
        return False

    def _skip_vanished(self, requested: OffsetRange, positions: dict[TopicPartition, int]) -> bool:
        """Note the loss if the log now starts past our offset, and continue at its start.

        Return True if the log starts past the range. `ClusterError` if the log does not start past our offset.
        """
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
        lost_until = min(low, requested.end)
        self.vanished.append(Vanished(requested.tp, at, lost_until))
        positions[requested.tp] = low
        if low >= requested.end:
            return True
        self._source.restart(requested.tp, low)
        return False

    def _check_silence(self, last_progress: float, waiting: dict[TopicPartition, OffsetRange]) -> None:
        """Raise an error if a topic is gone, or if `timeout` is over since the last progress."""
        last = self._connection.last
        # librdkafka reports a topic that is deleted meanwhile as an error of the client, not of a partition.
        if last is not None and last.code() in _GONE:
            raise self._connection.error(last, "a read")
        if time.monotonic() - last_progress < self._timeout:
            return
        first_ranges = list(waiting.values())[:3]
        names = ", ".join(map(str, first_ranges))
        reason = f" ({last.str()})" if last is not None else ""
        raise self._connection.silent(f"gave nothing for {self._timeout:.0f} s while reading {names}{reason}")
