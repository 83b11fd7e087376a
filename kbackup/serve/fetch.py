"""Answer Fetch: batches of logs, from any offset, within the bounds that the client gives."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbackup.kafka.batches import empty_log_batch
from kbackup.kafka.control.messages import consumer
from kbackup.metrics.registry import counted
from kbackup.serve.blocks import BATCH, UnreadableError
from kbackup.serve.current import Current
from kbackup.serve.logs import ServedLog
from kbackup.serve.protocol import Api, ClientRequest, ErrorCode
from kbackup.types import TopicPartition

log = logging.getLogger(__name__)

_NAMES_BY_ID = 13
"""The first version of Fetch that names topics by id."""
_READ_COMMITTED = 1

_AT_ONCE = 8
"""Logs that are read side by side for one answer."""
_LEAST_WAIT = 2.0
"""Seconds for which an answer waits for records that are there, whatever the client asks for: a store takes its time,
and an empty answer would be asked for again at once."""
_MOST_WAIT = 60.0
"""Seconds for which an answer waits for longer logs, whatever the client asks for."""
_LEAST_ROOM = BATCH
_MOST_ROOM = 16 << 20
"""Bytes of an answer, at most: between these, by how many clients there are."""

_Response = consumer.FetchResponse.FetchableTopicResponse
_Answer = _Response.PartitionData


@dataclass(slots=True, eq=False)
class _Asked:
    """A partition that a request asks for, and its answer as far as it is known."""

    served: ServedLog | None
    offset: int
    room: int
    answer: Any


@dataclass(slots=True)
class FetchCounts:
    """What was sent."""

    bytes: int = 0
    answers: int = 0


class Fetching:
    """Answers Fetch. `memory` bounds the bytes of all answers that are on their way; `clients` says how many clients
    there are."""

    def __init__(self, current: Current, memory: int) -> None:
        self._current = current
        self._memory = memory
        self.clients = 1
        self.counts = FetchCounts()

    def apis(self) -> list[Api]:
        return [Api(consumer.FetchRequest, consumer.FetchResponse, 4, 18, self.fetch)]

    async def fetch(self, request: ClientRequest) -> Any:
        message = request.message
        if message.session_id:
            # We give no session, so this one was another server's: the client begins a new one.
            return consumer.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        until = time.monotonic() + min(max(0, message.max_wait_ms) / 1000, _MOST_WAIT)
        while True:
            topics, asked = self._answers(request)
            taken, failed = await self._fill(asked, message, until)
            remaining = until - time.monotonic()
            if taken >= message.min_bytes or failed or remaining <= 0 or not asked:
                break
            # At the ends of logs. Nothing but a new restore point makes them longer.
            await self._current.wait_for_change(remaining)
        self.counts.bytes += taken
        counted.add("kbackup_serve_sent_bytes_total", taken)
        self.counts.answers += 1
        return consumer.FetchResponse(responses=topics)

    def _answers(self, request: ClientRequest) -> tuple[list[Any], list[_Asked]]:
        """Return an answer for each partition without records yet, by topics and in order."""
        archive = self._current.archive
        topics: list[Any] = []
        asked: list[_Asked] = []
        by_id = request.version >= _NAMES_BY_ID
        aborted: list[Any] | None = [] if request.message.isolation_level == _READ_COMMITTED else None
        for topic in request.message.topics:
            name = archive.by_id.get(topic.topic_id) if by_id else topic.topic
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id and name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partitions: list[Any] = []
            for each in topic.partitions:
                served = archive.logs.get(TopicPartition(name, each.partition)) if name is not None else None
                answer = _Answer(
                    partition_index=each.partition,
                    error_code=ErrorCode.NONE if served is not None else unknown,
                    high_watermark=-1,
                    aborted_transactions=aborted,
                    records=b"",
                )
                partitions.append(answer)
                asked.append(_Asked(served, each.fetch_offset, each.partition_max_bytes, answer))
            topics.append(_Response(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
        return topics, asked

    async def _fill(self, asked: list[_Asked], message: Any, until: float) -> tuple[int, bool]:
        """Put records into answers, in order, until the room is full. Return the bytes, and whether one of the answers
        is an error."""
        failed = False
        readable: list[_Asked] = []
        for each in asked:
            if each.served is None:
                failed = True
                continue
            try:
                end = await self._current.reader.end_of(each.served)
            except UnreadableError:
                each.answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                failed = True
                continue
            _set_bounds(each, end)
            if each.answer.error_code:
                failed = True
            elif each.offset < end:
                readable.append(each)
        room = min(message.max_bytes, self._most())
        taken = 0
        running: deque[tuple[_Asked, asyncio.Task[int]]] = deque()
        waiting = iter(readable)
        deadline = max(until, time.monotonic() + _LEAST_WAIT)
        # In order, so that no partition starves: clients ask for those first that came last in the answer before.
        while taken < room:
            for each in _first(waiting, _AT_ONCE - len(running)):
                running.append((each, asyncio.ensure_future(self._records(each, room - taken))))
            if not running:
                break
            each, task = running.popleft()
            if not task.done() and taken and taken >= message.min_bytes:
                # What is there goes out; the rest is in memory when the client comes again.
                running.appendleft((each, task))
                break
            await asyncio.wait([task], timeout=max(0.0, deadline - time.monotonic()))
            if not task.done():
                running.appendleft((each, task))
                break
            size = task.result()
            if taken and taken + size > room:
                each.answer.records = b""
                break
            taken += size
            failed = failed or bool(each.answer.error_code)
        for each, task in running:
            if not task.done():
                # It goes on: what it reads stays in memory. Its records are no longer for this answer.
                each.answer = None
            elif taken + task.result() <= room:
                taken += task.result()
            else:
                each.answer.records = b""
        return taken, failed

    async def _records(self, asked: _Asked, room: int) -> int:
        """Read the records of one partition into its answer. Return their bytes."""
        served = asked.served
        assert served is not None  # noqa: S101 (only such partitions are read)
        answer = asked.answer
        data: bytes | memoryview = b""
        code = ErrorCode.NONE
        try:
            # The first batch comes whatever its size: else a reader could not pass a large record.
            located = await self._current.reader.batches(served, asked.offset, min(room, asked.room))
            if located is not None:
                data = located.data
            else:
                # No record lies between here and the end: a reader goes on behind what is gone.
                data = empty_log_batch(asked.offset, answer.high_watermark - 1, served.leader_epoch)
        except UnreadableError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        except Exception:  # the other partitions go on
            log.exception("internal error while reading %s", served.tp)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if asked.answer is None:
            return 0
        answer.error_code = code
        answer.records = data
        return len(data)

    def _most(self) -> int:
        return max(_LEAST_ROOM, min(_MOST_ROOM, self._memory // max(1, self.clients)))


def _set_bounds(asked: _Asked, end: int) -> None:
    served, answer = asked.served, asked.answer
    assert served is not None  # noqa: S101 (the caller has looked)
    answer.high_watermark = end
    answer.last_stable_offset = end
    answer.log_start_offset = served.start
    if not served.start <= asked.offset <= end:
        answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE


def _first(waiting: Iterator[_Asked], most: int) -> Iterator[_Asked]:
    for _ in range(most):
        each = next(waiting, None)
        if each is None:
            return
        yield each
