"""Folders that a killed sink of the Java tool left: every whole record is read, and every torn byte is told."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.java import JavaFolder
from kbackup.archive.query.java import JAVA, is_java_archive, java_content, java_topics, readable
from kbackup.archive.segments.read import SegmentRanges, read_segment
from kbackup.errors import CorruptError, NoArchiveError
from kbackup.formats import record
from kbackup.formats.index import encode_group_offsets
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS
from tests.support.java_sink import FLAWS, LAST, TORN, KilledError, Sink, torn_folder
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, a_record, from_batch

STEM = "orders/segment_partition_000_from_offset_0000000000"
RECORDS = [a_record(3 * n, kind=n % 2, key=b"key", value=b"v" * (30 + n), headers=[("h", None)]) for n in range(4)]


def read(store: Store, topic: str) -> list[list[Record]]:
    """The records of each partition, by the two ways that read segments."""
    (held,) = java_content(store, [topic]).topics
    folder = pickle.loads(pickle.dumps(readable(store, JAVA)))
    records = []
    for partition in held.partitions:
        whole, ranged = [], []
        for segment in partition.segments:
            whole += [r for block in read_segment(folder, segment) for r in from_batch(record.decode(block))]
            blocks = SegmentRanges(folder, segment).numbered(0, segment.count)
            ranged += [r for block in blocks for r in from_batch(record.decode(block))]
        assert whole == ranged
        records.append(whole)
    return records


def stored(sink: Sink) -> MemoryStore:
    store = MemoryStore()
    store.put("orders/index_partition_000", b"\x01")
    store.put(f"{STEM}_records", bytes(sink.records))
    store.put(f"{STEM}_index", bytes(sink.index))
    return store


def killed_at(room: int) -> Sink | None:
    """None where it has written everything before."""
    sink = Sink(room)
    try:
        sink.write(RECORDS)
    except KilledError:
        return sink
    return None


@pytest.mark.exhaustive
def test_a_kill_at_every_byte() -> None:
    room = 0
    while (sink := killed_at(room)) is not None:
        due = [r for r in RECORDS if r.offset in sink.whole]
        store = stored(sink)
        assert read(store, "orders") == [due], room
        torn = len(sink.records) - 1 - sum(s.bytes - 1 for s in java_content(store, ["orders"]).topics[0].segments)
        warnings = java_content(store, ["orders"]).warnings
        assert any(f"has {torn:,} bytes behind" in text for text in warnings) == (torn > 0)
        store.delete([f"{STEM}_index"])  # the tool rebuilds it from the records file
        assert read(store, "orders") == [due], room
        sink.restart(RECORDS)
        assert read(stored(sink), "orders") == [RECORDS], room
        room += 1
    assert room > 300


def test_every_record_of_a_torn_folder(tmp_path: Path) -> None:
    store = FileStore(torn_folder(tmp_path / "java"))
    for topic in java_topics(store):
        due = [p.truth() for p in PARTITIONS if p.topic == topic]
        assert read(store, topic) == due
    content = java_content(store, java_topics(store))
    assert sorted(content.warnings) == sorted(set(content.warnings))
    for file, what in FLAWS.items():
        assert [text for text in content.warnings if text.startswith(f"file {file} {what}")], file
    assert len(content.warnings) == len(FLAWS)
    assert ArchiveReader(store).catalogue().warnings == content.warnings


def test_only_segments_are_a_folder_too(tmp_path: Path) -> None:
    root = torn_folder(tmp_path / "java")
    for path in [*root.glob("*/*index*"), *root.glob("*/consumer_offsets_*")]:
        path.unlink()
    store = FileStore(root)
    assert is_java_archive(store)
    for topic in java_topics(store):
        assert read(store, topic) == [p.truth() for p in PARTITIONS if p.topic == topic]
    with pytest.raises(NoArchiveError):
        java_content(store, [])


def test_whole_files_are_read_unchanged(tmp_path: Path) -> None:
    store = FileStore(torn_folder(tmp_path / "java"))
    folder = JavaFolder(store)
    key = "payments/segment_partition_000_from_offset_0000000066"
    for name in (f"{key}_records", f"{key}_index", "orders.v1/index_partition_000"):
        assert folder.get(name) == store.get(name)
        assert folder.stat(name) == store.stat(name)
    sizes = {entry.key: entry.size for entry in folder.list()}
    there = {entry.key: entry.size for entry in store.list()}
    assert sizes == there | {f"{LAST}_records": there[f"{LAST}_records"] - len(TORN)}
    assert len(folder.get(f"{LAST}_records")) == sizes[f"{LAST}_records"]


def test_bytes_that_may_be_records_whose_index_is_lost() -> None:
    """A cut segment is whole as far as its index goes; without an index, nothing says where the records end."""
    sink = Sink(1 << 30)
    sink.write(RECORDS)
    sink.records += b"\xff" * 64
    store = stored(sink)
    assert read(store, "orders") == [RECORDS]
    assert ["has 64 bytes behind offset 9" in text for text in java_content(store, ["orders"]).warnings] == [True]
    damaged = bytearray(sink.index)
    damaged[20:30] = bytes(10)
    for index in (damaged, bytearray()):
        sink.index = index
        with pytest.raises(CorruptError, match=f"{STEM}_records at byte"):
            java_content(stored(sink), ["orders"])


def test_a_damaged_index_of_whole_records_is_done_without() -> None:
    sink = Sink(1 << 30)
    sink.write(RECORDS)
    for at in range(1, len(sink.index) - 24):  # the last one's damage shows when its record is read
        damaged = Sink(0)
        damaged.records, damaged.index = sink.records, bytearray(sink.index)
        damaged.index[at] ^= 0x40
        assert read(stored(damaged), "orders") == [RECORDS], at


def test_own_groups_of_a_java_folder_are_not_read() -> None:
    sink = Sink(1 << 20)
    sink.write(RECORDS)
    store = stored(sink)
    offsets = encode_group_offsets({layout.mirror_group("A", "B"): 7, "billing": 3})
    store.put("orders/consumer_offsets_partition_000", offsets)
    assert list(java_content(store, ["orders"]).groups) == ["billing"]
