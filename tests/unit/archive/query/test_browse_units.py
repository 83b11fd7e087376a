"""Records are read in small units, whatever the size of a segment or a record."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import zstandard

from kbackup.archive.query.browse import records
from kbackup.archive.segments import read
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.errors import CorruptError
from kbackup.formats import frames
from kbackup.formats.frames import encode_seek_table
from kbackup.formats.record import rows
from tests.support import made_segments as making
from tests.support.browsing import Counting, offsets, one, partition_with
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_segment_goes_by_in_small_pieces(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece has whole records and at most so many bytes, and no byte of a frame is read twice."""
    monkeypatch.setattr(read, "SPAN", 4000)
    monkeypatch.setattr(read, "_GATHERED", 24 * 64)
    monkeypatch.setattr(frames.FrameCompressor.__init__, "__defaults__", (1, 1000))
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=1 << 20, compression=compression), range(1000))
    store.read.clear()
    records_read = list(records(store, "orders", partition_with(segments)))
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
    monkeypatch.setattr(read, "SPAN", 100)
    store = MemoryStore()
    block = block_of([Plain(b"a", b"x" * 5000), Plain(None, None), Plain(b"", b"")])
    with PartitionWriter(store, Target("orders", 1, 0, 1 << 20, "zstd")) as writer:
        segments = [*writer.append(block), *writer.finish()]
    records_read = [row for f in records(store, "orders", partition_with(segments)) for row in rows(f.block)]
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
        list(records(store, "orders", partition_with([bad]), one(3)))
