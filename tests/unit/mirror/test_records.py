"""The bytes of MirrorMaker 2's internal records."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError, UnreachableError
from kbackup.kafka.small_topic import RecordWriter
from kbackup.mirror.records import Checkpoint, Heartbeat, OffsetSync
from kbackup.types import TopicPartition

MirrorRecord = Heartbeat | Checkpoint | OffsetSync

KNOWN: list[tuple[MirrorRecord, str, str]] = [
    (Heartbeat("A", "B", 1700000000123), "000141000142", "00000000018bcfe5687b"),
    (
        Checkpoint("grp-é", TopicPartition("A.topic1", 3), 1234, 1201, "md"),
        "00066772702dc3a90008412e746f7069633100000003",
        "000000000000000004d200000000000004b100026d64",
    ),
    (
        OffsetSync(TopicPartition("topic1", 3), 1200, 1163),
        "0006746f7069633100000003",
        "00000000000004b0000000000000048b",
    ),
]
"""Records with their key and value as Kafka's Java classes write them."""

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TP = st.builds(TopicPartition, TEXT, st.integers(-(1 << 31), (1 << 31) - 1))
RECORDS = (
    st.builds(Heartbeat, TEXT, TEXT, LONG)
    | st.builds(Checkpoint, TEXT, TP, LONG, LONG, TEXT)
    | st.builds(OffsetSync, TP, LONG, LONG)
)


@pytest.mark.parametrize(("record", "key", "value"), KNOWN)
def test_bytes_are_those_of_java(record: MirrorRecord, key: str, value: str) -> None:
    assert (record.key.hex(), record.value.hex()) == (key, value)
    assert type(record).decode(bytes.fromhex(key), bytes.fromhex(value)) == record


@given(RECORDS)
def test_encoded_records_are_decoded(record: MirrorRecord) -> None:
    assert type(record).decode(record.key, record.value) == record
    assert type(record).decode(record.key, record.value + b"more") == record


@given(RECORDS, st.data())
def test_cut_bytes_are_refused(record: MirrorRecord, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(record.value) - 1))
    with pytest.raises(UndecodableError, match=r"too few|follow"):
        type(record).decode(record.key, record.value[:size])


@given(st.sampled_from([Heartbeat, Checkpoint, OffsetSync]), st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused(kind: type[MirrorRecord], key: bytes, value: bytes) -> None:
    try:
        record = kind.decode(key, value)
    except UndecodableError:
        return
    assert key.startswith(record.key)
    assert value.startswith(record.value)


@pytest.mark.parametrize("record", [KNOWN[0][0], KNOWN[1][0]])
def test_another_version_is_refused(record: MirrorRecord) -> None:
    with pytest.raises(UndecodableError, match="unknown version 1"):
        type(record).decode(record.key, b"\x00\x01" + record.value[2:])


# Writing records of internal topics while nobody answers.


NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
RECORD = Heartbeat("A", "B", 1)


@pytest.mark.exhaustive
def test_a_record_that_nobody_takes_is_an_error_and_the_next_one_is_tried() -> None:
    with closing(RecordWriter(NOBODY, "target", timeout=0.3)) as writer:
        for _ in range(2):
            with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 .* writing to topic heartbeats"):
                writer.write("heartbeats", [RECORD])


def test_nothing_to_write_needs_no_answer() -> None:
    with closing(RecordWriter(NOBODY, "target")) as writer:
        assert writer.write("heartbeats", []) == 0


def test_a_write_is_aborted_from_another_thread() -> None:
    writer = RecordWriter(NOBODY, "target", timeout=300)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            writer.write("heartbeats", [RECORD])
        except BaseException as error:  # noqa: BLE001 (looked at below)
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    until = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < until:
        writer.abort()
        thread.join(0.05)
    assert not thread.is_alive()
    assert "writing to topic heartbeats" in str(errors[0])
