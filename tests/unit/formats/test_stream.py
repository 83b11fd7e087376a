from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.formats import record
from kbackup.formats.index import SegmentIndex
from kbackup.types import RecordBlock
from tests.support.record_blocks import index_of
from tests.unit.formats.reference import Record, encode_record, records, to_batch


def segment(made: list[Record]) -> tuple[bytes, SegmentIndex]:
    block = record.encode(to_batch(made))
    return b"\x01" + block.data.tobytes(), index_of([block])


def chunked(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


def joined(blocks: Iterator[RecordBlock]) -> tuple[bytes, list[int]]:
    found = list(blocks)
    return b"".join(b.data.tobytes() for b in found), [int(o) for b in found for o in b.offsets]


@pytest.mark.parametrize("indexed", [True, False])
@given(made=records(), sizes=st.lists(st.integers(0, 200), max_size=30))
def test_any_chunks_give_the_records(indexed: bool, made: list[Record], sizes: list[int]) -> None:
    data, index = segment(made)
    found = record.blocks(chunked(data, sizes), index if indexed else None, name="seg")
    assert joined(found) == (data[1:], [r.offset for r in made])


@pytest.mark.parametrize("indexed", [True, False])
@settings(max_examples=100)
@given(made=records(min_size=1, max_size=12), data=st.data())
def test_a_cut_file_is_refused_after_its_whole_records(indexed: bool, made: list[Record], data: st.DataObject) -> None:
    octets, index = segment(made)
    cut = data.draw(st.integers(0, len(octets) - 1))
    if not indexed and cut in [1, *(index.positions + index.lengths).tolist()]:
        return  # without an index, a file cut between records can't be told from a whole one
    sizes = data.draw(st.lists(st.integers(1, 100), max_size=10))
    with pytest.raises(CorruptError, match="seg at byte"):
        list(record.blocks(chunked(octets[:cut], sizes), index if indexed else None, name="seg"))


@pytest.mark.parametrize("indexed", [True, False])
def test_trailing_bytes_and_other_magic_are_refused(indexed: bool) -> None:
    octets, index = segment([Record(1, 0, 5, b"k", None, [])])
    for data, message in [(octets + b"\0", "at byte 34: "), (b"\x02" + octets[1:], "magic byte 0x02"), (b"", "empty")]:
        for sizes in ([], [1, 4, 20], [len(octets)]):
            with pytest.raises(CorruptError, match=message):
                list(record.blocks(chunked(data, sizes), index if indexed else None, name="seg"))


def test_offsets_must_increase_across_blocks() -> None:
    one = encode_record(Record(7, -1, None, None, None, []))
    chunks = [b"\x01" + one, one]
    with pytest.raises(CorruptError, match="seg at byte 25: record offset 7 where one above 7"):
        list(record.blocks(chunks, None, name="seg"))


def test_records_that_disagree_with_their_index_are_refused() -> None:
    octets, index = segment([Record(i, 0, 5, b"k", b"v", []) for i in range(50)])
    other = SegmentIndex(index.offsets + 1, index.positions, index.lengths)
    with pytest.raises(CorruptError, match="seg at byte 1: another record offset"):
        list(record.blocks([octets], other, name="seg"))
    shifted = SegmentIndex(index.offsets, index.positions + 1, index.lengths)
    with pytest.raises(CorruptError, match="seg at byte"):
        list(record.blocks([octets], shifted, name="seg"))


@settings(max_examples=150)
@given(made=records(min_size=1, max_size=12), data=st.data())
def test_damage_gives_an_error_or_the_same_structure(made: list[Record], data: st.DataObject) -> None:
    octets, index = segment(made)
    bad = bytearray(octets)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    chosen = index if data.draw(st.booleans()) else None
    try:
        result = list(record.blocks([bytes(bad)], chosen, name="seg"))
    except CorruptError:
        return
    for block in result:
        record.check(block, "seg", 0)
    again = b"".join(block.data.tobytes() for block in result)
    assert b"\x01" + again == bytes(bad)


@pytest.mark.parametrize("indexed", [True, False])
def test_memory_is_a_few_chunks(indexed: bool) -> None:
    """Every block comes as soon as its chunk is in, and is no larger than a chunk and a record."""
    octets, index = segment([Record(i, 0, 5, None, bytes(500), []) for i in range(2000)])
    given_ = 0

    def chunks() -> Iterator[bytes]:
        nonlocal given_
        for start in range(0, len(octets), 10_000):
            given_ += 1
            yield octets[start : start + 10_000]

    for count, block in enumerate(record.blocks(chunks(), index if indexed else None, name="seg"), 1):
        assert given_ == count
        assert block.nbytes < 10_000 + 600


@pytest.mark.parametrize("indexed", [True, False])
def test_small_chunks_are_gathered_to_large_blocks(indexed: bool) -> None:
    octets, index = segment([Record(i, 0, i, None, bytes([i % 251]) * 10_000, []) for i in range(1500)])
    found = list(record.blocks(chunked(octets, [65_536] * 250), index if indexed else None, name="seg", least=4 << 20))
    assert [round(block.nbytes / (4 << 20), 1) for block in found] == [1, 1, 1, 0.6]
    assert b"".join(block.data.tobytes() for block in found) == octets[1:], "none shares memory with a later one"


@pytest.mark.parametrize("indexed", [True, False])
def test_a_record_of_20_mb_in_small_chunks(indexed: bool) -> None:
    value = np.random.default_rng(1).bytes(20_000_000)
    made = [Record(i, 0, 5, b"k", v, []) for i, v in enumerate([b"a", value, b"c"])]
    octets, index = segment(made)
    found = record.blocks(chunked(octets, [65_536] * 300), index if indexed else None, name="seg")
    assert joined(found) == (octets[1:], [0, 1, 2])
