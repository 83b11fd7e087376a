"""What a source of records gives to `RangeReader`, whichever way it gets them from librdkafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError

from kbackup.types import OffsetRange, RecordBlock, TopicPartition


class Report(NamedTuple):
    """What is said beside records; `offset` is -1 where it is about none."""

    error: KafkaError
    offset: int


class Piece(NamedTuple):
    """Records of a partition that lie in its range, or that its end is reached by them, or a report. `tp` None: a
    report about the client itself. `leader_epoch` is that of the last record where it is the last one of its range;
    -1 where it is not known."""

    tp: TopicPartition | None
    block: RecordBlock | None
    ended: bool
    report: Report | None
    leader_epoch: int = -1


class Source(Protocol):
    """One client. Its errors are kbackup's own."""

    def start(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Read these partitions, each from its range's start, and no other any more."""
        ...

    def restart(self, tp: TopicPartition, offset: int) -> None:
        """Go on at `offset`, which the log has now."""
        ...

    def stop(self, tp: TopicPartition) -> None:
        """Nothing more of this partition is wanted; idempotent."""
        ...

    def take(self) -> Iterable[Piece]:
        """What came, in order; waits a little where nothing did."""
        ...

    def watermarks(self, tp: TopicPartition, timeout: float) -> tuple[int, int]:
        """Where the log begins and ends now; `timeout` in seconds."""
        ...

    def close(self) -> None: ...
