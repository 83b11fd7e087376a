"""Pages of records: just those that are wanted, with the requests that they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query.browse import Catalogue, PartitionRecords, catalogue, records, tail
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.window import Window
from kbackup.archive.segments import ranged
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.errors import CorruptError, UsageError
from kbackup.formats import frames
from kbackup.formats.record import decode
from kbackup.formats.rows import Row, rows
from kbackup.formats.seek import encode_seek_table
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore
from tests.golden.java_archive import ROOT as JAVA
from tests.support import made_segments as making
from tests.support.archives import T0, make_archive
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.unit.formats.reference import from_batch


class Counting(FaultyStore):
    """Also what is listed and looked at; `read` has each range: key, start, length."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        if (encryption := encryption_of(inner)) is not None:
            self.encryption = encryption
        self.read: list[tuple[str, int, int]] = []

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        self.read.append((key, start, length))
        return super().open_range(key, start, length)

    def of_topics(self) -> list[tuple[str, str]]:
        """(operation, what of a segment) for every request that is not for metadata."""
        return [
            (operation, key.rpartition("_")[2])
            for operation, key in self.calls
            if key.startswith(layout.TOPICS)
        ]


def encrypting(inner: Store, folder: Path) -> CryptStore:
    key = folder / "key"
    if not key.exists():
        key.write_text(generate_key())
    return CryptStore(inner, Keyring(inner, f"file:{key}"))


def offsets(answers: Iterator[PartitionRecords]) -> list[int]:
    return [int(o) for f in answers for o in f.block.offsets]


def partition_of(store: Store, topic: str, number: int = 0) -> ArchivedPartition:
    return catalogue(store, topic=topic).partition(topic, number)


def one(offset: int) -> Window:
    return Window(ranges=((offset, offset + 1),))


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("topic", "offset", "requests"),
    [
        ("orders", 5, ["index", "records"]),
        ("orders", 18, ["index", "records"]),  # in a segment with a gap
        ("clicks", 13, ["index", "records.zst", "records.zst"]),  # the seek table as well
    ],
)
def test_what_one_record_costs(
    tmp_path: Path, topic: str, offset: int, requests: list[str], encrypted: bool
) -> None:
    plain = MemoryStore()
    make_archive(encrypting(plain, tmp_path) if encrypted else plain)
    below = Counting(plain)
    store = Counting(encrypting(below, tmp_path) if encrypted else below)
    partition = partition_of(store, topic)
    assert store.of_topics() == [], "metadata alone tells where it is"
    metadata = [key for _, key in store.calls]
    assert len(metadata) == len(set(metadata)), "each file once"
    assert not [key for key in metadata if key.endswith((layout.GROUPS, layout.METADATA))]
    (found,) = records(store, topic, partition, one(offset), 1)
    (row,) = rows(found.block)
    assert (row.offset, row.value) == (offset, b"value %d of 0 " % offset * 6)
    assert store.of_topics() == [("open_range", what) for what in requests]
    # below, what an object begins with is read once before its first range
    beginnings = len(set(requests)) if encrypted else 0
    assert len(below.of_topics()) == len(requests) + beginnings


def test_a_record_among_many_is_a_small_read() -> None:
    """Of a segment without gaps one entry of the index is read, and the record's bytes; of one with gaps at most as
    many entries as offsets are missing."""
    store = Counting(MemoryStore())
    dense = making.write(store, making.target(threshold=1 << 20), range(5000))
    gappy = making.write(store, making.target(1, threshold=1 << 20), [*range(4000), *range(4100, 5100)])
    for segments, offset, entries in ((dense, 4321, 1), (gappy, 4321, 101)):
        store.read.clear()
        (found,) = records(store, "orders", held(segments), one(offset), 1)
        assert [row.key for row in rows(found.block)] == [b"key-4321"]
        (_, _, index), (_, _, record) = store.read
        assert index <= 24 * entries
        assert record == found.block.nbytes


def held(segments: list[Segment]) -> ArchivedPartition:
    return ArchivedPartition(0, segments[0].first, segments[-1].last + 1, tuple(segments))


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


ORDERS = [*range(10), 15, *range(17, 40)]


@given(st.integers(0, 45), st.integers(0, 45), st.none() | st.integers(1, 40))
def test_ranges_of_offsets(made: MemoryStore, start: int, end: int, most: int | None) -> None:
    window = Window(ranges=((start, end),) if start < end else ())
    found = offsets(records(made, "orders", partition_of(made, "orders"), window, most))
    assert found == [o for o in ORDERS if start <= o < end][:most]


@given(st.integers(-2, 45), st.integers(-2, 45), st.none() | st.integers(1, 40))
def test_times(made: MemoryStore, start: int, end: int, most: int | None) -> None:
    window = Window(from_time=T0 + start * 1000, to_time=T0 + end * 1000)
    found = offsets(records(made, "orders", partition_of(made, "orders"), window, most))
    assert found == [o for o in ORDERS if start <= o <= end][:most]


@given(st.integers(1, 60))
def test_tails(made: MemoryStore, most: int) -> None:
    assert offsets(tail(made, "orders", partition_of(made, "orders"), most)) == ORDERS[-most:]
    assert offsets(tail(made, "clicks", partition_of(made, "clicks"), most)) == list(range(20))[-most:]


def test_a_tail_reads_what_it_shows(made: MemoryStore) -> None:
    store = Counting(made)
    partition = partition_of(store, "orders")
    assert offsets(tail(store, "orders", partition, 1)) == [39]
    assert [key for key, _, _ in store.read] == [
        layout.index_key_of(partition.segments[-1].key),
        partition.segments[-1].key,
    ]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_segment_goes_by_in_small_pieces(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece has whole records and at most so many bytes, and no byte of a frame is read twice."""
    monkeypatch.setattr(ranged, "SPAN", 4000)
    monkeypatch.setattr(ranged, "_GATHERED", 24 * 64)
    monkeypatch.setattr(frames.FrameCompressor.__init__, "__defaults__", (1, 1000))
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=1 << 20, compression=compression), range(1000))
    store.read.clear()
    records_read = list(records(store, "orders", held(segments)))
    assert offsets(iter(records_read)) == list(range(1000))
    assert len(records_read) > 10
    assert max(f.block.nbytes for f in records_read) <= 4000
    ranges = [(start, start + length) for key, start, length in store.read if key == segments[0].key]
    if compression == "none":
        assert ranges[0][0] == 1
        assert ranges[-1][1] == segments[0].bytes
    else:
        (tail_start, _), *ranges = sorted(ranges, key=lambda r: -r[1])[1:]  # the seek table, in two looks
        ranges.reverse()
        assert (ranges[0][0], ranges[-1][1]) == (0, tail_start)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def test_a_record_larger_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "SPAN", 100)
    store = MemoryStore()
    block = block_of([Plain(b"a", b"x" * 5000), Plain(None, None), Plain(b"", b"")])
    with PartitionWriter(store, Target("orders", 1, 0, 1 << 20, "zstd")) as writer:
        segments = [*writer.append(block), *writer.finish()]
    records_read = [row for f in records(store, "orders", held(segments)) for row in rows(f.block)]
    assert [(r.key, r.value) for r in records_read] == [(b"a", b"x" * 5000), (None, None), (b"", b"")]


def test_frames_that_hold_more_than_they_should() -> None:
    """A seek table that says little of a frame that gives a lot: it is refused, not unpacked to its end."""
    store = MemoryStore()
    (segment,) = making.write(store, making.target(threshold=1 << 20, compression="zstd"), range(10))
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    data = bomb + encode_seek_table([(len(bomb), segment.bytes)])
    store.delete([segment.key])
    store.put(segment.key, data)
    bad = replace(segment, stored=len(data))
    with pytest.raises(CorruptError, match=f"goes past plain byte {segment.bytes}"):
        list(records(store, "orders", held([bad]), one(3)))


def test_rows_are_the_records() -> None:
    """Also header keys that are no text, nulls, and records that nobody knows the time of."""
    given_ = [
        Plain(b"k", None, headers=((b"\xff", b"1"), (b"", None))),
        Plain(None, b"", kind=-1),
        Plain(b"\xc3", b"v", kind=1, timestamp=-5),
        Plain(b"", b"v", kind=-2),
    ]
    assert list(rows(block_of(given_))) == [
        Row(n, r.kind, r.timestamp if r.kind >= 0 else None, r.key, r.value, r.headers)
        for n, r in enumerate(given_)
    ]


def test_a_folder_of_the_java_tool() -> None:
    store = FileStore(JAVA / "archive")
    whole = catalogue(store)
    assert whole.restore_point is None
    for topic in whole.topics:
        for partition in topic.partitions:
            found = [r for f in records(store, topic.name, partition) for r in rows(f.block)]
            assert len(found) == partition.records
    assert sum(p.records for t in whole.topics for p in t.partitions) == 385


def test_of_an_earlier_restore_point(made: MemoryStore) -> None:
    earlier: Catalogue = catalogue(made, "1", "orders")
    assert [t.name for t in earlier.topics] == ["orders"]
    assert offsets(records(made, "orders", earlier.partition("orders", 0))) == list(range(10))


def test_what_is_not_there(made: MemoryStore) -> None:
    with pytest.raises(
        UsageError, match=r"there is no topic order in restore point 2; did you mean orders\?"
    ):
        catalogue(made, topic="order")
    with pytest.raises(UsageError, match="topic orders has no partition 3 in restore point 2"):
        partition_of(made, "orders", 3)


@pytest.mark.parametrize("end", ["_index", "_records"])
def test_damage_is_named(end: str) -> None:
    store = MemoryStore()
    make_archive(store)
    partition = partition_of(store, "orders")
    key = partition.segments[0].key.replace("_records", end)
    data = store.get(key)
    store.put(key, data[:1] + b"\x7f" * (len(data) - 1))
    with pytest.raises(CorruptError, match=key.rpartition("/")[2]):
        list(records(store, "orders", partition, one(0), 1))
    store.delete([key])
    with pytest.raises(CorruptError, match=f"{key} is missing"):
        list(records(store, "orders", partition, one(0), 1))


def test_rows_agree_with_the_decoder(made: MemoryStore) -> None:
    for found in records(made, "orders", partition_of(made, "orders")):
        decoded = from_batch(decode(found.block))
        assert [(*r[:5], [(key.decode(), value) for key, value in r.headers]) for r in rows(found.block)] == [
            tuple(r) for r in decoded
        ]
