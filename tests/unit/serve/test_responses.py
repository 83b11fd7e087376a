"""Responses as frames: as kafka-python encodes them, with records that are not copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.kafka.control.messages import consumer, metadata
from kbackup.serve.protocol import Api, RequestHeader
from kbackup.serve.responses import encode_response

VERSIONS = range(4, 19)
SIZES = [0, 1, 126, 127, 128, (16 << 10) - 1, 16 << 10, 70_000, 3_000_000]
"""Of records: about those where their length takes another byte, and where they are a piece of their own."""


async def _never(request: Any) -> Any:
    raise AssertionError


FETCH = Api(consumer.FetchRequest, consumer.FetchResponse, VERSIONS[0], VERSIONS[-1], _never)
METADATA = Api(metadata.MetadataRequest, metadata.MetadataResponse, 1, 12, _never)


def header_of(api: Api, version: int) -> RequestHeader:
    return RequestHeader(api.key, version, 7, "client", memoryview(b""))


def fetch_response(*topics: Sequence[bytes | memoryview]) -> Any:
    """Return an answer with these records of each partition of each topic."""
    kind = consumer.FetchResponse.FetchableTopicResponse
    answers: list[Any] = []
    for number, partitions in enumerate(topics):
        of_partitions: list[Any] = []
        for index, records in enumerate(partitions):
            of_partitions.append(
                kind.PartitionData(partition_index=index, high_watermark=9, aborted_transactions=[], records=records)
            )
        answers.append(kind(topic=f"topic-{number}", topic_id=UUID(int=number + 1), partitions=of_partitions))
    return consumer.FetchResponse(responses=answers)


def encoded_by_kafka_python(response: Any, version: int) -> bytes:
    response.API_VERSION = version
    response.with_header(correlation_id=7)
    return bytes(response.encode(header=True, framed=True))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_response_is_encoded_as_kafka_python_does_it(version: int) -> None:
    records = [bytes([number]) * size for number, size in enumerate(SIZES)]
    topics = [records, [b""], [], records[::-1]]
    pieces = encode_response(FETCH, header_of(FETCH, version), fetch_response(*topics))
    assert b"".join(pieces) == encoded_by_kafka_python(fetch_response(*topics), version)


@given(
    sizes=st.lists(st.lists(st.sampled_from(SIZES[:-1]) | st.integers(0, 40_000), max_size=4), max_size=3),
    version=st.sampled_from(VERSIONS),
)
def test_records_of_any_sizes_stand_in_their_places(sizes: list[list[int]], version: int) -> None:
    topics = [[b"r" * size for size in partitions] for partitions in sizes]
    pieces = encode_response(FETCH, header_of(FETCH, version), fetch_response(*topics))
    assert b"".join(pieces) == encoded_by_kafka_python(fetch_response(*topics), version)


def test_large_records_are_sent_from_where_they_are() -> None:
    kept = memoryview(b"x" * 100_000)
    pieces = encode_response(FETCH, header_of(FETCH, 12), fetch_response([kept, b"small", kept]))
    assert [piece for piece in pieces if piece is kept] == [kept, kept]
    assert len(pieces) == 5


def test_other_responses_are_one_piece() -> None:
    (frame,) = encode_response(METADATA, header_of(METADATA, 9), metadata.MetadataResponse(cluster_id="here"))
    assert bytes(frame) == encoded_by_kafka_python(metadata.MetadataResponse(cluster_id="here"), 9)
