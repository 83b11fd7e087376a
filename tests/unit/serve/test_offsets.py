"""ListOffsets and OffsetForLeaderEpoch, as a broker answers them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.kafka.control.messages import consumer
from kbackup.serve.protocol import ErrorCode
from tests.support.serve_client import ServeClient, served
from tests.unit.formats.reference import Record, a_record
from tests.unit.serve.made import TOPIC, archive_of, made_records


def offset_of(client: ServeClient, timestamp: int, partition: int = 0, version: int = 11) -> tuple[int, int, int]:
    """Return error, offset and timestamp of the answer."""
    kind = consumer.ListOffsetsRequest.ListOffsetsTopic
    asked = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
    request = consumer.ListOffsetsRequest(
        replica_id=-1, isolation_level=1, topics=[kind(name=TOPIC, partitions=[asked])], timeout_ms=1000
    )
    response = client.ask(request, consumer.ListOffsetsResponse, version)
    (found,) = response.topics[0].partitions
    return found.error_code, found.offset, found.timestamp


@pytest.mark.parametrize("version", range(1, 12))
def test_the_bounds_of_a_log(version: int) -> None:
    with served(archive_of(made_records(range(5, 9)), start=5, end=12)) as serving, ServeClient(serving) as client:
        assert offset_of(client, -2, version=version) == (0, 5, -1)
        assert offset_of(client, -1, version=version) == (0, 12, -1)
        assert offset_of(client, -1, 3, version)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_tiered_storage_has_nothing() -> None:
    with served(archive_of(made_records(range(5, 9)), start=5, end=12)) as serving, ServeClient(serving) as client:
        assert offset_of(client, -4) == (0, 5, -1)
        assert offset_of(client, -5) == (0, -1, -1)
        assert offset_of(client, -6) == (0, -1, -1)


def test_an_empty_log_has_no_times() -> None:
    with served(archive_of([], start=7)) as serving, ServeClient(serving) as client:
        assert [offset_of(client, time) for time in (-2, -1, -3, 0)] == [
            (0, 7, -1), (0, 7, -1), (0, -1, -1), (0, -1, -1)
        ]  # fmt: skip


def _first_at(records: Sequence[Record], time: int) -> tuple[int, int, int]:
    for record in records:
        if record.timestamp is not None and record.timestamp >= time:
            return 0, record.offset, record.timestamp
    return 0, -1, -1


def _greatest(records: Sequence[Record]) -> tuple[int, int, int]:
    stamps = [record.timestamp for record in records if record.timestamp is not None]
    if not stamps:
        return 0, -1, -1
    return _first_at(records, max(stamps))


@settings(max_examples=30)
@given(st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=40), st.integers(200, 2000))
def test_times_in_any_order_are_found_as_a_broker_finds_them(stamps: list[int | None], segment_bytes: int) -> None:
    records = [
        a_record(2 * number, kind=0 if stamp is not None else -2, timestamp=stamp)
        for number, stamp in enumerate(stamps)
    ]
    with served(archive_of(records, segment_bytes=segment_bytes)) as serving, ServeClient(serving) as client:
        for time in range(14):
            assert offset_of(client, time) == _first_at(records, time), time
        assert offset_of(client, -3) == _greatest(records)


def test_a_moment_bounds_what_is_found() -> None:
    with served(archive_of(made_records(range(20))), to_time=9_500) as serving, ServeClient(serving) as client:
        assert offset_of(client, -1) == (0, 10, -1)
        assert offset_of(client, -3) == (0, 9, 9000)
        assert offset_of(client, 9_500) == (0, -1, -1)


@pytest.mark.parametrize("version", range(2, 5))
def test_a_position_is_never_cut_off(version: int) -> None:
    kind = consumer.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=4)
    unknown = kind.OffsetForLeaderPartition(partition=9, current_leader_epoch=-1, leader_epoch=4)
    request = consumer.OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[kind(topic=TOPIC, partitions=[asked, unknown])]
    )
    with served(archive_of(made_records(range(9)))) as serving, ServeClient(serving) as client:
        response = client.ask(request, consumer.OffsetForLeaderEpochResponse, version)
    found, missing = response.topics[0].partitions
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 4, 9)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
