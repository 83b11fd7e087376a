"""Indexes of segments and partitions, and offsets of groups: both ways, and what is refused."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import CorruptError, UsageError
from kbackup.formats import index as indexes
from kbackup.formats import record
from tests.support.record_blocks import index_of
from tests.unit.formats.reference import Record, a_record, encode_record, records, to_batch


def entries(index: indexes.SegmentIndex) -> list[tuple[int, int, int]]:
    return list(zip(*(c.tolist() for c in (index.offsets, index.positions, index.lengths)), strict=True))


@given(records())
def test_the_index_of_blocks(made: list[Record]) -> None:
    half = len(made) // 2
    index = index_of(record.encode(to_batch(part)) for part in (made[:half], made[half:]))
    expected, position = b"\x01", 1
    for r in made:
        length = len(encode_record(r))
        expected += struct.pack(">qqq", r.offset, position, length)
        position += length
    assert indexes.encode_index(index) == expected
    assert entries(indexes.decode_index(expected, "idx")) == entries(index)
    assert index.file_size == position


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(24, 2**40)), max_size=30))
def test_positions_past_2_gib(rows: list[tuple[int, int]]) -> None:
    gaps, lengths = np.array(rows, np.int64).reshape(-1, 2).T
    ends = 1 + np.cumsum(lengths)
    index = indexes.SegmentIndex(np.cumsum(gaps) - 1, ends - lengths, lengths)
    assert entries(indexes.decode_index(indexes.encode_index(index), "idx")) == entries(index)


def test_a_stream_whose_index_says_5_gib_names_where_it_was_cut() -> None:
    octets = encode_record(a_record(0, kind=-1, timestamp=None, key=None, value=None))
    lengths = np.array([24, 5 << 30], np.int64)
    index = indexes.SegmentIndex(np.array([0, 1]), np.array([1, 25]), lengths)
    found = record.blocks([b"\x01" + octets + bytes(100)], index, name="seg")
    assert len(next(found)) == 1
    with pytest.raises(CorruptError, match=r"seg at byte 125: .* its index at 5368709145"):
        next(found)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([(5, 2, 24)], "byte 9: .* position"),
        ([(5, 1, 24), (6, 26, 24)], "byte 33: .* position"),
        ([(5, 1, 23)], "byte 17: .* shorter than 24"),
        ([(5, 1, -24)], "byte 17: .* shorter than 24"),
        ([(-1, 1, 24)], "byte 1: offsets"),
        ([(5, 1, 24), (5, 25, 24)], "byte 25: offsets"),
        ([(-(2**63), 1, 24)], "byte 1: offsets"),
        ([(5, 1, 24), (-(2**63), 25, 24)], "byte 25: offsets"),
        ([(5, 1, 2**63 - 1)], "byte 17: .* without end"),
    ],
)
def test_bad_entries_are_refused(table: list[tuple[int, int, int]], message: str) -> None:
    data = b"\x01" + b"".join(struct.pack(">qqq", *row) for row in table)
    with pytest.raises(CorruptError, match=f"idx at {message}"):
        indexes.decode_index(data, "idx")


def test_cut_and_foreign_indexes_are_refused() -> None:
    data = indexes.encode_index(index_of([record.encode(to_batch([a_record(1, key=b"", value=b"")]))]))
    for size in range(2, len(data)):
        with pytest.raises(CorruptError, match="within an entry"):
            indexes.decode_index(data[:size], "idx")
    for bad, message in [(b"", "empty"), (b"\x00" + data[1:], "0x00")]:
        with pytest.raises(CorruptError, match=message):
            indexes.decode_index(bad, "idx")


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=60)


@given(st.dictionaries(st.integers(0, 2**63 - 1), NAMES, max_size=20))
def test_partition_index_round_trip(segments: dict[int, str]) -> None:
    made = [indexes.PartitionIndexEntry(segments[start], start) for start in sorted(segments)]
    expected = b"\x01" + b"".join(
        struct.pack(">i", len(e.name.encode())) + e.name.encode() + struct.pack(">q", e.start_offset) for e in made
    )
    assert indexes.encode_partition_index(made) == expected
    assert indexes.decode_partition_index(expected, "part") == made


def entry(name: bytes, start: int, length: int | None = None) -> bytes:
    return struct.pack(">i", len(name) if length is None else length) + name + struct.pack(">q", start)


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (entry(b"a", -1), "byte 6: start offset -1"),
        (entry(b"a", 5) + entry(b"b", 5), "byte 19: start offset 5 after 5"),
        (entry(b"", 1), "byte 1: segment name of 0 bytes"),
        (entry(b"a", 1, -1), "byte 1: segment name of -1 bytes"),
        (entry(b"a", 1, 2**31 - 1), "byte 1: .* within an entry"),
        (entry(b"a", 1)[:-1], "byte 1: .* within an entry"),
        (entry(b"a", 1) + b"\0\0", "byte 14: .* within an entry"),
        (entry(b"\xff", 1), "byte 5: .* not UTF-8"),
        (entry(b"../a", 1), "byte 5: .* plain file name"),
    ],
)
def test_bad_partition_indexes_are_refused(octets: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=f"part at {message}"):
        indexes.decode_partition_index(b"\x01" + octets, "part")


GROUPS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(GROUPS, st.integers(-1, 2**63 - 1)))
def test_round_trip_without_groups_that_never_committed(offsets: dict[str, int]) -> None:
    data = indexes.encode_group_offsets(offsets)
    there = {group: offset for group, offset in offsets.items() if offset != -1}
    assert json.loads(data) == there
    found = indexes.decode_group_offsets(data, "groups")
    assert list(found.items()) == list(there.items())


def test_group_files_are_compact_utf8_of_possible_offsets() -> None:
    assert indexes.encode_group_offsets({"grün": 1, "b": -1, "c": 0}) == '{"grün":1,"c":0}'.encode()
    assert indexes.encode_group_offsets({}) == b"{}"
    for offset in (-2, 2**63):
        with pytest.raises(UsageError, match="group g: offset"):
            indexes.encode_group_offsets({"g": offset})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
        (b'{"a":1}x', "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON"),
        (b'{"\xff":1}', "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b'{"a":1,"a":1}', "is listed twice"),
        (b'{"a":-1}', "no offset"),
        (b'{"a":1.0}', "no offset"),
        (b'{"a":true}', "no offset"),
        (b'{"a":null}', "no offset"),
        (b'{"a":"1"}', "no offset"),
        (b'{"a":{}}', "no offset"),
        (b'{"a":9223372036854775808}', "no offset"),
        (b'{"\\ud800":1}', "not Unicode"),
    ],
)
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=f"groups: .*{message}") as caught:
        indexes.decode_group_offsets(data, "groups")
    assert caught.value.hint


@given(st.binary(max_size=60) | GROUPS.map(str.encode))
def test_arbitrary_bytes_give_offsets_or_a_refusal(data: bytes) -> None:
    try:
        found = indexes.decode_group_offsets(data, "groups")
    except CorruptError:
        return
    assert json.loads(data) == found
