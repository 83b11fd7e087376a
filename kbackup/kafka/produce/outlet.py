"""The protocol by which `BlockProducer` sends records: compiled or in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError

from kbackup.kafka.produce.runs import Runs
from kbackup.types import RecordBlock, TopicPartition

CAUSED_BY_ANOTHER = {
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
}
_PART_OF_A_BATCH = "Failed to append record because it was part of a batch"
"""librdkafka's words, where one record of a batch was refused: all have that one's code then."""


class Undelivered(NamedTuple):
    """The record from source offset `source`, and why it is not in `tp`."""

    error: KafkaError
    tp: TopicPartition
    source: int


class RefusedRecordError(Exception):
    """librdkafka did not take a record; why is often said by the report of an earlier one."""

    def __init__(self, lost: Undelivered) -> None:
        super().__init__(lost)
        self.lost = lost


class Progress(NamedTuple):
    """`next` is the source offset from which to go on; `note` is what was committed with it."""

    next: int
    note: str


def cause(lost: Sequence[Undelivered]) -> Undelivered | None:
    """The one that took the others with it."""
    return next((each for each in lost if not _caused_by_another(each.error)), lost[0] if lost else None)


def _caused_by_another(error: KafkaError) -> bool:
    return error.code() in CAUSED_BY_ANOTHER or error.str().startswith(_PART_OF_A_BATCH)


class Outlet(Protocol):
    """One client. Its calls raise confluent-kafka's `KafkaException`; times are in seconds. Close it after use."""

    @property
    def moved(self) -> int:
        """The number of records sent with timestamp 1 for 0, which librdkafka takes for 'now'."""
        ...

    def init(self, timeout: float) -> None:
        """Fence whoever had this transactional id before."""
        ...

    def join(self, consumer: Consumer) -> None:
        """Know the group that progress goes to, whose `consumer` is there for now."""
        ...

    def begin(self) -> None: ...

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Queue a block's records in order; blocks while the queue is full. `RefusedRecordError`, and `CorruptError`
        for a block that is damaged, after the records before the damage may be queued."""
        ...

    def serve(self, wait: float) -> None:
        """Take what is reported, or comes within `wait`."""
        ...

    def lost(self) -> Undelivered | None:
        """Return the records that were not delivered since the last `taken`."""
        ...

    def flush(self, timeout: float) -> int:
        """Wait up to `timeout` seconds for deliveries; return the number of records neither delivered nor lost."""
        ...

    def taken(self) -> dict[TopicPartition, Runs]:
        """Return the target offsets of all records since the last call; to be called after `flush`.

        Targets are unknown where no delivery report gave an offset.
        """
        ...

    def send_progress(self, progress: Mapping[TopicPartition, Progress], timeout: float) -> None: ...

    def commit(self, timeout: float) -> None: ...

    def abort(self, timeout: float) -> None:
        """End the transaction without a trace of what was sent since `begin`."""
        ...

    def close(self) -> None:
        """Give up what is neither delivered nor lost."""
        ...
