"""Archived records become Kafka's record batches, by compiled code and by plain Python, as kafka-python reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.kafka.batches import EpochStart, LogBatches, Producer, bodies, empty_log_batch, log_batches, repeated
from kbackup.kafka.control.messages import DefaultRecordBatch
from kbackup.native import batch_kernel
from tests.support.plain_kernels import plain_kernel
from tests.support.record_blocks import encoded, plain
from tests.unit.formats.reference import Record, encode_record

_PRODUCER = Producer(7, 3)


KERNELS = {"compiled": batch_kernel, "plain": plain_kernel("batch_kernel")}


@pytest.fixture(params=["compiled", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = KERNELS[request.param]
    monkeypatch.setattr(batch_kernel, "write_records", chosen.write_records)
    monkeypatch.setattr(batch_kernel, "write_log_batches", chosen.write_log_batches)


def _read(data: bytes) -> list[Record]:
    """Return the records of a batch as kafka-python reads them, at the offsets within the batch."""
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    found: list[Record] = []
    for each in batch:
        kind = -2 if each.timestamp == -1 else 0
        time = None if each.timestamp == -1 else each.timestamp
        key = None if each.key is None else bytes(each.key)
        value = None if each.value is None else bytes(each.value)
        headers = [(name, None if data is None else bytes(data)) for name, data in each.headers]
        found.append(Record(each.offset, kind, time, key, value, headers))
    return found


_DATA = st.none() | st.binary(max_size=300)
_HEADERS = st.lists(st.tuples(st.text(max_size=40), st.none() | st.binary(max_size=20)), max_size=3)
_TIMES = st.integers(min_value=0, max_value=(1 << 62))


@given(st.lists(st.tuples(_TIMES, _DATA, _DATA, _HEADERS), min_size=1, max_size=20))
def test_a_batch_has_every_field_of_its_records(made: list[tuple[int, bytes | None, bytes | None, list]]) -> None:  # type: ignore[type-arg]
    records = [Record(at, 0, time, key, value, headers) for at, (time, key, value, headers) in enumerate(made)]
    (body,) = bodies(encoded(*records), 1 << 20)
    batch = body.batch(_PRODUCER, 5)
    assert _read(batch.data) == records
    head = DefaultRecordBatch(batch.data)
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (7, 3, 5)
    assert head.max_timestamp == max(record.timestamp or 0 for record in records)


def test_both_kernels_write_the_same_bytes(kernel: None) -> None:
    records = [
        plain(0, timestamp=0),
        plain(1, key=None, value=None, headers=[("a", None), ("", b"x" * 200)]),
        Record(2, -1, None, b"", b"", []),
        Record(3, -2, None, b"k" * 70, b"v" * 9000, []),
        Record(4, 1, (1 << 62) + 5, b"k", b"v", []),
    ]
    (body,) = bodies(encoded(*records), 1 << 20)
    expected = [record._replace(offset=at, kind=-2 if record.kind < 0 else 0) for at, record in enumerate(records)]
    assert _read(body.batch(_PRODUCER, 0).data) == expected


def test_a_block_is_cut_into_batches_that_are_no_larger_than_asked(kernel: None) -> None:
    records = [plain(at, value=b"v" * 100) for at in range(10)]
    made = list(bodies(encoded(*records), 400, first=1))
    assert [body.records for body in made] == [3, 3, 3]
    first = _read(made[0].batch(_PRODUCER, 0).data)[0]
    assert first.value == b"v" * 100


def test_a_record_larger_than_asked_has_a_batch_of_its_own(kernel: None) -> None:
    made = list(bodies(encoded(plain(0), plain(1, value=b"v" * 1000), plain(2)), 100))
    assert [body.records for body in made] == [1, 1, 1]


def test_sequences_begin_again_behind_the_greatest_one() -> None:
    body = repeated(encode_record(plain(0)), 2)
    assert DefaultRecordBatch(body.batch(_PRODUCER, (1 << 31) + 4).data).base_sequence == 4


def test_a_batch_of_a_transaction_says_so() -> None:
    body = repeated(encode_record(plain(0)), 2)
    assert DefaultRecordBatch(body.batch(_PRODUCER, 0, transactional=True).data).is_transactional
    assert not DefaultRecordBatch(body.batch(_PRODUCER, 0).data).is_transactional


def test_one_record_is_repeated_at_rising_offsets(kernel: None) -> None:
    body = repeated(encode_record(plain(9, value=None)), 300)
    found = _read(body.batch(_PRODUCER, 0).data)
    assert [record.offset for record in found] == list(range(300))
    assert {record.value for record in found} == {None}


@pytest.mark.parametrize("at", [8, 20, 25, 30, 31])
def test_a_damaged_record_is_named_and_nothing_is_read_beyond_it(at: int, kernel: None) -> None:
    block = encoded(plain(0), plain(1))
    data = block.data.copy()
    data[int(block.positions[1]) + at] ^= 0x55
    with pytest.raises(CorruptError, match="record 1 of a block"):
        list(bodies(replace(block, data=data), 1 << 20))


def test_a_record_that_goes_beyond_its_block_is_refused(kernel: None) -> None:
    block = encoded(plain(0), plain(1))
    lengths = np.array([block.lengths[0], block.lengths[1] + 1])
    with pytest.raises(CorruptError, match="record 1 of a block"):
        list(bodies(replace(block, lengths=lengths), 1 << 20))


# Batches of a log, with the offsets that the records have.


def _batches(made: LogBatches) -> list[DefaultRecordBatch]:
    begins = [0, *made.ends.tolist()[:-1]]
    found = [DefaultRecordBatch(bytes(made.data[a:b])) for a, b in zip(begins, made.ends.tolist(), strict=True)]
    assert all(batch.validate_crc() for batch in found)
    return found


def _log_records(made: LogBatches) -> list[Record]:
    found: list[Record] = []
    for batch in _batches(made):
        for each in batch:
            kind = -2 if each.timestamp == -1 else each.timestamp_type
            value = None if each.value is None else bytes(each.value)
            key = None if each.key is None else bytes(each.key)
            headers = [(name, None if data is None else bytes(data)) for name, data in each.headers]
            found.append(Record(each.offset, kind, None if kind == -2 else each.timestamp, key, value, headers))
    return found


@given(
    st.lists(st.tuples(st.integers(1, 1 << 33), st.sampled_from([0, 1, -2]), _DATA, _HEADERS), min_size=1, max_size=20)
)
def test_a_log_has_every_record_at_its_offset(made: list[tuple[int, int, bytes | None, list]]) -> None:  # type: ignore[type-arg]
    records: list[Record] = []
    offset = 0
    for gap, kind, value, headers in made:
        offset += gap
        records.append(Record(offset, kind, gap if kind >= 0 else None, None, value, headers))
    log = log_batches(encoded(*records), [], 500)
    assert _log_records(log) == records
    assert [batch.base_offset + batch.last_offset_delta for batch in _batches(log)] == log.lasts.tolist()


def test_both_kernels_write_the_same_log(kernel: None) -> None:
    records = [plain(at * 3, kind=at % 4 // 3, timestamp=at // 5, headers=[("h", b"x" * at)]) for at in range(60)]
    log = log_batches(encoded(*records), [EpochStart(0, 2), EpochStart(31, 5)], 900)
    assert _log_records(log) == records
    epochs = [(batch.base_offset, batch.leader_epoch) for batch in _batches(log)]
    assert all(epoch == (2 if base < 31 else 5) for base, epoch in epochs)


def test_records_that_brokers_stamped_share_a_batch_with_those_of_their_time_alone() -> None:
    """Clients take the batch's time for each of its records."""
    records = [plain(at, kind=1, timestamp=at // 4) for at in range(12)] + [plain(12, timestamp=2)]
    made = _batches(log_batches(encoded(*records), [], 1 << 20))
    assert [(batch.base_offset, batch.max_timestamp, batch.timestamp_type) for batch in made] == [
        (0, 0, 1), (4, 1, 1), (8, 2, 1), (12, 2, 0)
    ]  # fmt: skip


def test_a_reader_begins_with_the_batch_that_has_its_offset() -> None:
    log = log_batches(encoded(*[plain(at * 2, value=b"v" * 100) for at in range(10)]), [], 300)
    for offset in range(19):
        found = log.from_offset(offset, 1)
        assert found is not None
        data, last = found
        batch = DefaultRecordBatch(bytes(data))
        assert last == batch.base_offset + batch.last_offset_delta >= offset
        assert not [each for each in log.lasts.tolist() if offset <= each < last]
    assert log.from_offset(19, 1) is None
    whole = log.from_offset(0, 1 << 20)
    assert whole is not None
    assert len(whole[0]) == log.nbytes


def test_a_batch_without_records_covers_its_offsets() -> None:
    batch = DefaultRecordBatch(empty_log_batch(5, 9))
    assert batch.validate_crc()
    assert (batch.base_offset, batch.last_offset_delta, list(batch)) == (5, 4, [])


@pytest.mark.parametrize("at", [8, 20, 25, 30, 31])
def test_a_damaged_record_makes_no_log(at: int, kernel: None) -> None:
    block = encoded(plain(0), plain(1))
    data = block.data.copy()
    data[int(block.positions[1]) + at] ^= 0x55
    with pytest.raises(CorruptError, match="record 1 of a block"):
        log_batches(replace(block, data=data), [], 1 << 20)
