"""Records and batches of a controller's metadata log: the bytes that Kafka writes, and damage."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.kafka.cursor import Cursor
from kbackup.migrate.metadata_log.codec import UNKNOWN_TAGS, MetadataRecord, decode_record, encode_record, record
from kbackup.migrate.metadata_log.log import LogRecord, TornError, encode_batch, read_batches
from tests.support.metadata_records import CONTROL, METADATA

SNAPSHOT = bytes.fromhex(
    "00000000000000000000009a000000000296cc28ee002000000002000001a2031879be000001a2031879beffffffffff"
    "ffffffffffffffffff000000032a0000000800000003160000000001a2031879ae00001e00000208000000050a000000"
    "010000820100000408000000066e00000200000001b77983da0b804fe38cdfb325e387214c020b434f4e54524f4c4c45"
    "520a3132372e302e302e314a9500000000010000000000000000000000030000003f000000000229be389b0020000000"
    "00000001a2031879c7000001a2031879c7ffffffffffffffffffffffffffff000000011a000000080000000406000000"
    "00"
)
"""The 00000000000000000000-0000000000.checkpoint that Kafka 4.3.1 writes when it formats a controller's folder."""


def _decode(data: bytes) -> list[LogRecord]:
    return [r for batch in read_batches(io.BytesIO(data), "log", len(data)) for r in batch.records]


def test_bytes_are_those_of_kafka() -> None:
    batches = list(read_batches(io.BytesIO(SNAPSHOT), "snapshot", len(SNAPSHOT)))
    assert [b.position for b in batches] == [0, 166]
    assert [(r.offset, r.epoch, r.record.name) for b in batches for r in b.records] == [
        (0, 0, "SnapshotHeaderRecord"),
        (1, 0, "KRaftVersionRecord"),
        (2, 0, "VotersRecord"),
        (3, 0, "SnapshotFooterRecord"),
    ]
    voters = batches[0].records[2].record.data
    assert isinstance(voters, dict)
    assert voters["voters"][0]["endpoints"] == [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 19093}]
    again = (encode_batch(b.base_offset, b.epoch, b.timestamp, [r.record for r in b.records]) for b in batches)
    assert b"".join(again) == SNAPSHOT


@given(st.lists(METADATA, min_size=1, max_size=3) | st.lists(CONTROL, min_size=1, max_size=3))
def test_encoded_records_are_decoded(records: list[MetadataRecord]) -> None:
    data = encode_batch(5, 2, 9, records)
    assert _decode(data) == [LogRecord(5 + n, 2, 9, r) for n, r in enumerate(records)]


@given(METADATA)
def test_absent_fields_have_kafkas_default(value: MetadataRecord) -> None:
    (bare,) = _decode(encode_batch(0, 0, 0, [MetadataRecord(value.name, value.number, value.version, {})]))
    assert isinstance(bare.record.data, dict)
    assert isinstance(value.data, dict)
    assert bare.record.data.keys() == value.data.keys()


@given(st.lists(METADATA, min_size=1, max_size=3), st.data())
def test_torn_tail_ends_the_log(records: list[MetadataRecord], data: st.DataObject) -> None:
    first, second = encode_batch(5, 2, 9, records), encode_batch(5 + len(records), 2, 9, records)
    cut = data.draw(st.integers(1, len(second) - 1))
    batches = read_batches(io.BytesIO(first + second[:cut]), "log", len(first) + cut)
    assert next(batches).base_offset == 5
    with pytest.raises(TornError) as error:
        next(batches)
    assert error.value.position == len(first)


@given(METADATA, st.data())
def test_a_flipped_bit_of_a_batch_is_found(value: MetadataRecord, data: st.DataObject) -> None:
    batch = bytearray(encode_batch(5, 2, 9, [value]))
    at = data.draw(st.integers(16, len(batch) - 1))  # what is before is the offset, the length and the epoch
    batch[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError, match=r"log: byte 0: .*(checksum|format)"):
        _decode(bytes(batch))


def test_unknown_records_are_kept_and_named() -> None:
    records = [
        MetadataRecord("metadata record 99", 99, 3, b"what it holds"),
        MetadataRecord("TopicRecord", 2, 7, b"of a newer Kafka"),
        record("TopicRecord", {"name": "t", "topicId": "AAAAAAAAAAAAAAAAAAAAAQ"}),
    ]
    assert [r.record for r in _decode(encode_batch(0, 0, 0, records))] == records
    assert [r.known for r in records] == [False, False, True]
    control = MetadataRecord("control record 9", 9, 4, b"\0\4more", control=True)
    assert _decode(encode_batch(0, 0, 0, [control]))[0].record == control


def test_unknown_tagged_fields_are_kept() -> None:
    topic = record("TopicRecord", {"name": "t", "topicId": "AAAAAAAAAAAAAAAAAAAAAQ", UNKNOWN_TAGS: {7: b"later"}})
    assert _decode(encode_batch(0, 0, 0, [topic]))[0].record == topic


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("00", "frame version 0"),
        ("01", "1 bytes are expected, 0 follow"),
        ("010200 02", "1 bytes are expected, 0 follow"),
        ("010200 00", "name is null, which it can't be"),
        ("010200 02ff", "name is not UTF-8"),
        ("010200 ffffffffff7f", "more than 32 bits"),
        ("010200 ffffffffffff01", "more than 32 bits"),
        ("010700 00000001 0000000000000001 00 00", "1 bytes follow the last field of a FenceBrokerRecord"),
        ("010a00 0275 0275 ffffffff0f", "renewers has 4294967294 elements"),
        ("011100 00000001 0000000000000001 01 00 02 0100", "1 bytes follow the tagged field fenced"),
    ],
)
def test_no_record(value: str, problem: str) -> None:
    with pytest.raises(CorruptError, match=f"log: byte 10[0-9]+: .*{problem}"):
        decode_record(Cursor(bytes.fromhex(value), "log", base=1000))


def test_fields_that_a_version_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="RegisterBrokerRecord, version 0, has no field logDirs"):
        encode_record(record("RegisterBrokerRecord", {"logDirs": []}))
    with pytest.raises(ValueError, match="name can't be null"):
        encode_record(record("TopicRecord", {"name": None}))
