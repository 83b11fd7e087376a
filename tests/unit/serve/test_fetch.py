"""Fetch: the records of a log from any offset, within the client's bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive.segments import read
from kbackup.kafka.control.messages import consumer
from kbackup.serve import blocks
from kbackup.serve.protocol import ErrorCode
from tests.support.archives import deletions_of
from tests.support.memory_store import MemoryStore
from tests.support.serve_client import ServeClient, batches_of, fetch_request, records_of, served
from tests.unit.formats.reference import Record, a_record
from tests.unit.serve.made import TOPIC, archive_of, made_records
from tests.unit.serve.test_offsets import offset_of


def read_all(client: ServeClient, offset: int, **values: int) -> list[Record]:
    """Read a log from an offset to its end, as a consumer does."""
    found: list[Record] = []
    for _ in range(1000):
        answer = client.fetch(TOPIC, 0, offset, **values)
        assert answer.error_code == 0
        if offset == answer.high_watermark:
            return found
        found += records_of(answer.records, offset)
        last = batches_of(answer.records)[-1]
        offset = last.base_offset + last.last_offset_delta + 1
    raise AssertionError("the log has no end")


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read segments as a whole, or by their indexes in small parts."""
    if request.param == "large":
        monkeypatch.setattr(blocks, "SMALL", 0)
        monkeypatch.setattr(blocks, "PART", 7)
        monkeypatch.setattr(read, "SPAN", 500)
        monkeypatch.setattr(blocks, "BATCH", 300)
    return str(request.param)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_log_reads_from_every_offset(size: str, compression: str) -> None:
    offsets = [*range(3, 20), 22, 23, *range(40, 90, 3)]
    records = made_records(offsets)
    store = archive_of(records, start=3, end=100, segment_bytes=2000, compression=compression)
    with served(store) as serving, ServeClient(serving) as client:
        for offset in range(3, 101):
            assert read_all(client, offset) == [record for record in records if record.offset >= offset], offset


@settings(max_examples=25)
@given(
    gaps=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    kinds=st.lists(st.sampled_from([0, 0, 1, -2]), min_size=60, max_size=60),
    stamps=st.lists(st.integers(0, 3), min_size=60, max_size=60),
    limit=st.integers(1, 3000),
)
def test_every_kind_of_timestamp_and_gap_comes_back(
    gaps: Sequence[int], kinds: Sequence[int], stamps: Sequence[int], limit: int
) -> None:
    records: list[Record] = []
    offset = 0
    for gap, kind, stamp in zip(gaps, kinds, stamps, strict=False):
        offset += gap
        records.append(a_record(offset, kind=kind, timestamp=stamp if kind >= 0 else None, value=b"v" * gap * 20))
    store = archive_of(records, segment_bytes=700)
    with served(store) as serving, ServeClient(serving) as client:
        assert read_all(client, 0, partition_max_bytes=limit) == records


def test_a_record_that_is_larger_than_the_clients_bounds_comes_alone() -> None:
    records = [a_record(0), a_record(1, value=b"x" * 10_000_000), a_record(2)]
    with served(archive_of(records)) as serving, ServeClient(serving) as client:
        assert read_all(client, 0, max_bytes=100, partition_max_bytes=100) == records


def test_an_answer_keeps_to_the_bytes_of_the_client() -> None:
    records = made_records(range(3000), size=400)
    with served(archive_of(records)) as serving, ServeClient(serving) as client:
        for most in (200_000, 400_000):
            assert most / 2 < len(client.fetch(TOPIC, partition_max_bytes=most).records) <= most
            assert most / 2 < len(client.fetch(TOPIC, max_bytes=most).records) <= most


def test_several_partitions_share_the_room_of_an_answer() -> None:
    records = made_records(range(1000), size=400)
    with served(archive_of(records, records, records, [])) as serving, ServeClient(serving) as client:
        request = fetch_request(TOPIC, 0, max_bytes=300_000)
        kind = consumer.FetchRequest.FetchTopic.FetchPartition
        request.topics[0].partitions = [
            kind(partition=p, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1) for p in range(4)
        ]
        answer = client.ask(request, consumer.FetchResponse, 12)
        sizes = [len(each.records) for each in answer.responses[0].partitions]
        assert sizes[0] > 0
        assert sum(sizes) <= 300_000
        assert [each.high_watermark for each in answer.responses[0].partitions] == [1000, 1000, 1000, 0]


def test_the_bounds_of_a_log_come_with_its_records() -> None:
    with served(archive_of(made_records(range(5, 9)), start=5, end=12)) as serving, ServeClient(serving) as client:
        for isolation in (0, 1):
            answer = client.fetch(TOPIC, 0, 6, isolation_level=isolation)
            bounds = answer.log_start_offset, answer.high_watermark, answer.last_stable_offset
            assert bounds == (5, 12, 12)
            assert answer.aborted_transactions == ([] if isolation else None)


@pytest.mark.parametrize("offset", [4, 13, -1, 1 << 60])
def test_an_offset_outside_of_the_log_is_out_of_range(offset: int) -> None:
    with served(archive_of(made_records(range(5, 9)), start=5, end=12)) as serving, ServeClient(serving) as client:
        assert client.fetch(TOPIC, 0, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_unknown_topics_and_partitions_are_named_so() -> None:
    with served(archive_of(made_records(range(5)))) as serving, ServeClient(serving) as client:
        assert client.fetch("nobody").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.fetch(TOPIC, 7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = fetch_request(TOPIC)
        request.topics[0].topic_id = uuid4()
        answer = client.ask(request, consumer.FetchResponse, 13)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_has_the_records(version: int) -> None:
    records = made_records(range(5))
    with served(archive_of(records)) as serving, ServeClient(serving) as client:
        request = fetch_request(TOPIC)
        request.topics[0].topic_id = serving.current.archive.topics[TOPIC].topic_id
        (topic,) = client.ask(request, consumer.FetchResponse, version).responses
        assert records_of(topic.partitions[0].records) == records


def test_a_session_of_another_server_begins_anew() -> None:
    with served(archive_of(made_records(range(5)))) as serving, ServeClient(serving) as client:
        answer = client.ask(fetch_request(TOPIC, session_id=9, session_epoch=4), consumer.FetchResponse, 12)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_answer_waits_at_the_end_of_a_log_as_long_as_the_client_says() -> None:
    with served(archive_of(made_records(range(5)))) as serving, ServeClient(serving) as client:
        began = time.monotonic()
        answer = client.fetch(TOPIC, 0, 5, max_wait_ms=300)
        assert 0.3 <= time.monotonic() - began < 5
        assert (answer.error_code, answer.records) == (0, b"")


def test_a_reader_at_the_end_gets_the_records_of_a_new_restore_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from kbackup.serve import service

    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.05)
    store = archive_of(made_records(range(5)))
    later = made_records(range(12))

    def back_up() -> None:
        time.sleep(0.3)
        archive_of(later, store=store, number=2)

    with served(store, follow=True) as serving, ServeClient(serving) as client:
        assert read_all(client, 0) == later[:5]
        thread = threading.Thread(target=back_up)
        thread.start()
        answer = client.fetch(TOPIC, 0, 5, max_wait_ms=15_000)
        thread.join()
        assert records_of(answer.records, 5) == later[5:]
        assert answer.high_watermark == 12


def test_a_log_ends_at_its_time() -> None:
    records = made_records(range(20))
    records[3] = records[3]._replace(timestamp=50_000)  # later than those behind it
    with served(archive_of(records), to_time=12_000) as serving, ServeClient(serving) as client:
        assert read_all(client, 0) == [record for record in records if (record.timestamp or 0) <= 12_000]
        assert client.fetch(TOPIC).high_watermark == 13


def test_a_log_without_a_record_at_its_time_is_empty() -> None:
    records = made_records(range(10, 20))
    with served(archive_of(records, start=10), to_time=10_500) as serving, ServeClient(serving) as client:
        assert client.fetch(TOPIC, 0, 10).high_watermark == 11


def test_records_whose_keys_were_deleted_unseen_stay_away() -> None:
    from kbackup.archive.reader import open_archive
    from tests.support.archives import commit_point

    store = archive_of(made_records(range(10)))
    archive = open_archive(store)
    commit_point(archive, 2, deletions=deletions_of(TOPIC, (2, 5), (7, 8)))
    with served(store) as serving, ServeClient(serving) as client:
        assert [record.offset for record in read_all(client, 0)] == [0, 1, 5, 6, 8, 9]


def test_damage_ends_its_own_partition_alone_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    records = made_records(range(50))
    store = archive_of(records, records, segment_bytes=1000)
    key = next(entry.key for entry in store.list() if "partition_000" in entry.key and entry.key.endswith("_records"))
    data = bytearray(store.get(key))
    data[40] ^= 1
    store.put(key, bytes(data))
    with served(store) as serving, ServeClient(serving) as client:
        for _ in range(3):
            assert client.fetch(TOPIC, 0, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert records_of(client.fetch(TOPIC, 1, 0).records)[0] == records[0]
        assert client.fetch(TOPIC, 0, 45).error_code == 0
    named = [line.getMessage() for line in caplog.records if key in line.getMessage()]
    assert len(named) == 1


def test_damage_within_a_value_shows_at_the_end_of_a_large_segment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No record tells that its value was changed: only the checksum of the whole segment does."""
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(read, "SPAN", 2000)
    records = made_records(range(100))
    store = archive_of(records)
    key = next(entry.key for entry in store.list() if entry.key.endswith("_records"))
    data = bytearray(store.get(key))
    data[data.index(b"7 7 7 ")] ^= 1
    store.put(key, bytes(data))
    with served(store) as serving, ServeClient(serving) as client:
        offset = 0
        while (answer := client.fetch(TOPIC, 0, offset)).error_code == 0:
            offset = records_of(answer.records)[-1].offset + 1
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert 0 < offset < 100
    assert [line for line in caplog.records if "checksum" in line.getMessage()]


def test_a_segment_is_fetched_once_for_many_readers() -> None:
    records = made_records(range(2000), size=400)
    store = archive_of(records)
    with served(store) as serving:
        before = store.requests["GET"]
        clients = [ServeClient(serving) for _ in range(12)]
        threads = [threading.Thread(target=read_all, args=(client, 0)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            client.stream.close()
        assert store.requests["GET"] - before == 1


def test_memory_holds_as_much_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(read, "SPAN", 20_000)
    store = archive_of(made_records(range(5000), size=400))
    with served(store, memory=200_000) as serving, ServeClient(serving) as client:
        assert len(read_all(client, 0)) == 5000
        reader = serving.current.reader
        assert reader.kept_bytes <= 100_000 + 50_000
        assert reader.counts.bytes > 1_000_000


def test_a_missing_segment_ends_the_answer_and_not_the_server() -> None:
    store = archive_of(made_records(range(50)))
    with served(store) as serving, ServeClient(serving) as client:
        keys = [entry.key for entry in store.list() if "segment_partition" in entry.key]
        assert store.delete(keys) == []
        assert client.fetch(TOPIC).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch("nobody").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _StuckStore(MemoryStore):
    """A store that answers no request for records until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.let_go = threading.Event()

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        self._wait(key)
        return super().open_range(key, start, length)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        self._wait(key)
        return super().fill(key, start, into)

    def _wait(self, key: str) -> None:
        if "segment_partition" in key:
            self.asked.set()
            self.let_go.wait(30)


def test_a_store_that_does_not_answer_holds_up_no_end() -> None:
    store = _StuckStore()
    archive_of(made_records(range(5)), store=store)
    with served(store) as serving, ServeClient(serving) as client:
        client.send(fetch_request(TOPIC), 12)
        assert store.asked.wait(10)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    store.let_go.set()


_SIZES = st.integers(1, 2000)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["fetch", "time", "start", "end"]), st.integers(0, 1), st.integers(0, 130), _SIZES),
    min_size=1,
    max_size=30,
)


@settings(max_examples=30)
@given(_STEPS)
def test_any_sequence_of_a_consumers_requests_agrees_with_the_records(steps: list[tuple[str, int, int, int]]) -> None:
    """With units of a few records and memory for few of them: whatever was asked before, the answer is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SMALL", 300)
        patch.setattr(blocks, "PART", 5)
        patch.setattr(blocks, "BATCH", 200)
        patch.setattr(read, "SPAN", 400)
        logs = [made_records([*range(0, 40, 3), *range(41, 60)]), made_records(range(70, 110, 2))]
        store = archive_of(*logs, end=120, segment_bytes=1200)
        with served(store, memory=4000) as serving, ServeClient(serving) as client:
            for step, partition, number, most in steps:
                log = logs[partition]
                if step == "fetch":
                    answer = client.fetch(TOPIC, partition, number, partition_max_bytes=most)
                    if number > 120:
                        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                        continue
                    found = records_of(answer.records, number)
                    expected = [record for record in log if record.offset >= number]
                    assert found == expected[: len(found)]
                    assert found or not expected
                else:
                    time_asked = {"time": number * 1000, "start": -2, "end": -1}[step]
                    later = [record.offset for record in log if record.offset >= number]
                    expected_offset = {"time": later[0] if later else -1, "start": 0, "end": 120}[step]
                    assert offset_of(client, time_asked, partition)[:2] == (0, expected_offset)
