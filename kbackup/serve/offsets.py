"""Answer ListOffsets and OffsetForLeaderEpoch: the offsets of times and of leader epochs."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from typing import Any

from kbackup.kafka.control.messages import consumer
from kbackup.serve.blocks import Timed, UnreadableError
from kbackup.serve.current import Current
from kbackup.serve.logs import UNKNOWN_EPOCH, ServedLog
from kbackup.serve.protocol import Api, ClientRequest, ErrorCode
from kbackup.types import TopicPartition

log = logging.getLogger(__name__)

_LATEST = -1
_EARLIEST = -2
_GREATEST = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING = -6
_NONE = -1

_AT_ONCE = 64
"""Partitions of a request that are looked up side by side."""

_Topic = consumer.ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse
_EpochTopic = consumer.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochEnd = _EpochTopic.EpochEndOffset


class Offsets:
    """Answers questions for offsets."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def apis(self) -> list[Api]:
        return [
            Api(consumer.ListOffsetsRequest, consumer.ListOffsetsResponse, 1, 11, self.list_offsets),
            Api(consumer.OffsetForLeaderEpochRequest, consumer.OffsetForLeaderEpochResponse, 2, 4, self.ends_of_epochs),
        ]

    async def list_offsets(self, request: ClientRequest) -> Any:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def answer(name: str, asked: Any) -> Any:
            async with limit:
                return await self._partition(TopicPartition(name, asked.partition_index), asked.timestamp)

        topics: list[Any] = []
        for topic in request.message.topics:
            found = await asyncio.gather(*(answer(topic.name, asked) for asked in topic.partitions))
            topics.append(_Topic(name=topic.name, partitions=list(found)))
        return consumer.ListOffsetsResponse(topics=topics)

    async def _partition(self, tp: TopicPartition, timestamp: int) -> Any:
        served = self._current.archive.logs.get(tp)
        if served is None:
            return _Partition(partition_index=tp.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            found = await self._found(served, timestamp)
        except UnreadableError:
            return _Partition(partition_index=tp.partition, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        except Exception:  # the other partitions go on
            log.exception("internal error while looking for an offset of %s", tp)
            return _Partition(partition_index=tp.partition, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        if found is None:
            return _Partition(
                partition_index=tp.partition, error_code=0, timestamp=_NONE, offset=_NONE, leader_epoch=_NONE
            )
        epoch = epoch_of(served, found.offset)
        return _Partition(
            partition_index=tp.partition,
            error_code=0,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=epoch,
        )

    async def _found(self, served: ServedLog, timestamp: int) -> Timed | None:
        """Return the offset that a broker would find, None if there is none."""
        reader = self._current.reader
        if timestamp == _LATEST:
            return Timed(await reader.end_of(served), _NONE)
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            # A log without tiered storage is wholly local: both begin at the same place.
            return Timed(served.start, _NONE)
        if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING):
            return None
        if timestamp == _GREATEST:
            return await reader.greatest(served)
        return await reader.first_at(served, timestamp)

    async def ends_of_epochs(self, request: ClientRequest) -> Any:
        topics: list[Any] = []
        for topic in request.message.topics:
            partitions = [await self._epoch_end(topic.topic, asked) for asked in topic.partitions]
            topics.append(_EpochTopic(topic=topic.topic, partitions=partitions))
        return consumer.OffsetForLeaderEpochResponse(topics=topics)

    async def _epoch_end(self, topic: str, asked: Any) -> Any:
        served = self._current.archive.logs.get(TopicPartition(topic, asked.partition))
        if served is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return _EpochEnd(error_code=code, partition=asked.partition, leader_epoch=_NONE, end_offset=_NONE)
        try:
            end = await self._current.reader.end_of(served)
        except UnreadableError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            return _EpochEnd(error_code=code, partition=asked.partition, leader_epoch=_NONE, end_offset=_NONE)
        # Where one epoch ends and the next begins, the archive knows only roughly. A consumer asks to find out whether
        # the log was cut behind its back. This one never is: so its epoch has all that it has read.
        return _EpochEnd(error_code=0, partition=asked.partition, leader_epoch=asked.leader_epoch, end_offset=end)


def epoch_of(served: ServedLog, offset: int) -> int:
    """Return the leader epoch of an offset, -1 if it is not known."""
    number = bisect_right(served.epochs, offset, key=lambda start: start.offset)
    return served.epochs[number - 1].leader_epoch if number else UNKNOWN_EPOCH
