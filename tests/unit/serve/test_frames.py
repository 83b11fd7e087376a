"""Requests are read within bounds, and a producer's without its records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kbackup.kafka.control.messages import metadata, producer
from kbackup.serve.frames import SMALL_FRAME, Frame, RequestReader, RequestRoom
from kbackup.serve.protocol import LARGEST_FRAME, Api, HostileClientError, decode_request, read_header
from tests.support.serve_client import encoded_request
from tests.unit.serve.asking import in_loop

PRODUCE = producer.ProduceRequest
TOPIC = PRODUCE.TopicProduceData


def produce(topics: dict[str, dict[int, bytes | None]], acks: int = 1, transaction: str | None = None) -> Any:
    data = [
        TOPIC(
            name=name,
            topic_id=UUID(int=1 + number),
            partition_data=[TOPIC.PartitionProduceData(index=index, records=own) for index, own in partitions.items()],
        )
        for number, (name, partitions) in enumerate(topics.items())
    ]
    return PRODUCE(transactional_id=transaction, acks=acks, timeout_ms=1000, topic_data=data)


async def read_all(data: bytes, room: RequestRoom | None = None, most: int = LARGEST_FRAME) -> Frame | None:
    """Read a request of a client that sends it and goes away."""
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return await RequestReader(stream, room or RequestRoom()).read(most, 1)


def decoded(frame: bytes, version: int) -> Any:
    async def nobody(request: Any) -> None:
        return None

    header = read_header(frame)
    assert (header.key, header.version, header.client_id) == (0, version, "test")
    return decode_request(Api(PRODUCE, producer.ProduceResponse, 3, 13, nobody), header)


LARGE = b"r" * (SMALL_FRAME + 1)


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=15)
@given(
    topics=st.dictionaries(
        st.text(max_size=20).filter(lambda text: len(text.encode("utf-8", "ignore")) == len(text)),
        st.dictionaries(st.integers(0, 1000), st.none() | st.binary(max_size=300), max_size=3),
        max_size=3,
    ),
    transaction=st.none() | st.sampled_from(["", "mine"]),
)
def test_a_producers_request_comes_without_its_records(
    version: int, topics: dict[str, dict[int, bytes | None]], transaction: str | None
) -> None:
    large = {**topics, "large": {0: LARGE, 1: None, 2: b""}}
    expected = {name: dict.fromkeys(partitions) for name, partitions in large.items()}

    async def scenario() -> None:
        frame = await read_all(encoded_request(produce(large, -1, transaction), version))
        assert frame is not None
        found = decoded(frame.data, version)
        by_id = version >= 13
        names = [each.topic_id if by_id else each.name for each in found.topic_data]
        assert names == [UUID(int=1 + number) if by_id else name for number, name in enumerate(expected)]
        partitions = [{each.index: each.records for each in topic.partition_data} for topic in found.topic_data]
        assert partitions == list(expected.values())
        assert (found.transactional_id, found.acks) == (transaction, -1)

    in_loop(scenario)


def mangled(version: int, change: Callable[[bytearray], None]) -> bytes:
    frame = bytearray(encoded_request(produce({"orders": {0: LARGE}}), version))
    change(frame)
    return bytes(frame)


def longer_records(frame: bytearray) -> None:
    at = frame.index(len(LARGE).to_bytes(4))
    frame[at : at + 4] = (0x7FFFFFFF).to_bytes(4)


def longer_name(frame: bytearray) -> None:
    frame[12:14] = b"\x7f\xff"


def many_topics(frame: bytearray) -> None:
    at = frame.index(b"\0\0\0\1\0\6orders")
    frame[at : at + 4] = (0x7FFFFFFF).to_bytes(4)


@pytest.mark.parametrize("change", [longer_records, longer_name, many_topics])
def test_a_producers_request_that_is_none_is_refused(change: Callable[[bytearray], None]) -> None:
    async def scenario() -> None:
        with pytest.raises((HostileClientError, asyncio.IncompleteReadError)):
            await read_all(mangled(3, change))

    in_loop(scenario)


def test_names_alone_are_bounded_too() -> None:
    partitions: dict[int, bytes | None] = {0: b""}
    many = {f"{number:0200}": partitions for number in range(8000)}

    async def scenario() -> None:
        with pytest.raises(HostileClientError):
            await read_all(encoded_request(produce(many), 9))

    in_loop(scenario)


def metadata_request(size: int) -> bytes:
    """A request for a topic whose name is so long."""
    kind = metadata.MetadataRequest.MetadataRequestTopic
    return encoded_request(metadata.MetadataRequest(topics=[kind(name="n" * size)]), 9)


def test_large_requests_wait_for_room_and_small_ones_never() -> None:
    async def scenario() -> None:
        room = RequestRoom(300_000)
        data = metadata_request(200_000)
        stream = asyncio.StreamReader(limit=1 << 20)
        stream.feed_data(data + data)
        first = RequestReader(stream, room)
        frame = await first.read(LARGEST_FRAME, 1)
        assert frame is not None
        assert room.taken == frame.room == len(data) - 4

        waiting = asyncio.ensure_future(read_all(data, room))
        await _go_on()
        assert not waiting.done()
        small = await read_all(metadata_request(100), room)
        assert small is not None
        assert small.room == 0

        first.answered(frame)
        assert await waiting is not None
        assert room.taken == len(data) - 4

    in_loop(scenario)


def test_a_connection_that_ends_gives_its_room_back() -> None:
    async def scenario() -> None:
        room = RequestRoom(300_000)
        data = metadata_request(200_000)
        stream = asyncio.StreamReader(limit=1 << 20)
        stream.feed_data(data)
        reader = RequestReader(stream, room)
        await reader.read(LARGEST_FRAME, 1)
        late = asyncio.ensure_future(read_all(data, room))
        await _go_on()
        late.cancel()
        reader.close()
        assert room.taken == 0
        assert await read_all(data, room) is not None

    in_loop(scenario)


def test_a_request_larger_than_all_room_is_read_alone() -> None:
    async def scenario() -> None:
        room = RequestRoom(100)
        assert await read_all(metadata_request(200_000), room) is not None

    in_loop(scenario)


def _go_on() -> Awaitable[None]:
    return asyncio.sleep(0.05)
