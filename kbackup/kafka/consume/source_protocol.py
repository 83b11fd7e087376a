"""The protocol by which `RangeReader` reads from a source of records: compiled or in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError

from kbackup.types import OffsetRange, RecordBlock, TopicPartition


class Report(NamedTuple):
    """An event of a partition that is no record; `offset` is -1 where the event has none."""

    error: KafkaError
    offset: int


class FetchResult(NamedTuple):
    """Records of a partition that lie in its range, or a report; `ended` where they reach the end of the range.

    `tp` None: a report about the client itself. `leader_epoch` is that of the last record where it is the last of its
    range; -1 where the epoch is unknown.
    """

    tp: TopicPartition | None
    block: RecordBlock | None
    ended: bool
    report: Report | None
    leader_epoch: int = -1


class Source(Protocol):
    """One client. Its errors are kbackup's own."""

    def start(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Read these partitions only, each from its range's start."""
        ...

    def restart(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at `offset`, which the log has now."""
        ...

    def stop(self, tp: TopicPartition) -> None:
        """Read no more of this partition; idempotent."""
        ...

    def take(self) -> Iterable[FetchResult]:
        """Return the records and events that arrived, in order; waits a little where nothing did."""
        ...

    def watermarks(self, tp: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the log's current start and end offsets; `timeout` in seconds."""
        ...

    def close(self) -> None: ...
