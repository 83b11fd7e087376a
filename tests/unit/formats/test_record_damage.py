"""Damaged records are refused; a rotation cuts where the rule does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError, UsageError
from kbackup.formats import record
from kbackup.types import RecordBlock
from tests.support.record_blocks import encoded, plain
from tests.unit.formats.reference import Record, to_batch
from tests.unit.formats.strategies import records


def damaged(block: RecordBlock, at: int, octets: bytes) -> RecordBlock:
    data = bytearray(block.data.tobytes())
    data[at : at + len(octets)] = octets
    return record.make_block(np.frombuffer(data, np.uint8), block.offsets, block.positions, block.lengths)


# One record: offset 0-8, type 8, timestamp 12, key length 20, "k" 24, value length 25, "v" 29, count 30,
# header key length 34, "ü" 38, header value length 40, "x" 44, end 45.
ONE = plain(7, headers=[("ü", b"x")])


@pytest.mark.parametrize("copies", [1, 40], ids=["walked", "vectorised"])
@pytest.mark.parametrize(
    ("at", "octets", "where", "message"),
    [
        (7, b"\x63", 0, "another record offset"),
        (8, b"\x00\x00\x00\x02", 8, "unknown timestamp type"),
        (8, b"\x7f", 8, "unknown timestamp type"),
        (20, b"\xff\xff\xff\xfe", 20, "key length"),
        (20, b"\x7f\xff\xff\xff", 20, "key length"),
        (25, b"\xff\xff\xff\xfe", 25, "value length"),
        (25, b"\x00\x00\x00\x20", 25, "value length"),
        (30, b"\xff\xff\xff\xff", 30, "header count"),
        (30, b"\x00\x00\x00\x00", 34, "after the record's last field"),
        (30, b"\x00\x00\x00\x02", 30, "header count"),
        (34, b"\xff\xff\xff\xff", 34, "header key length"),
        (34, b"\x00\x00\x00\x63", None, "header"),
        (40, b"\xff\xff\xff\xfe", 40, "header value length"),
        (40, b"\x00\x00\x00\x00", 44, "after the record's last header"),
        (40, b"\x00\x00\x00\x02", None, "header"),
    ],
)
def test_check_names_file_and_byte(
    copies: int, at: int, octets: bytes, where: int | None, message: str
) -> None:
    block = encoded(*(ONE._replace(offset=7 + i) for i in range(copies)))
    last = int(block.positions[-1])
    if at == 7 and copies > 1:
        octets = b"\x00"
    bad = damaged(block, last + at, octets)
    place = "" if where is None else f"seg at byte {1000 + last + where}: "
    with pytest.raises(CorruptError, match=f"{place}.*{message}") as caught:
        record.check(bad, "seg", 1000)
    assert caught.value.hint
    with pytest.raises(CorruptError, match=message):
        record.decode(bad)


@pytest.mark.parametrize("copies", [1, 40], ids=["walked", "vectorised"])
def test_a_header_key_that_is_not_utf8_is_whole_but_no_text(copies: int) -> None:
    block = encoded(*(ONE._replace(offset=7 + i) for i in range(copies)))
    odd = damaged(block, int(block.positions[-1]) + 38, b"\xc3\x28")
    record.check(odd, "seg", 1000)
    with pytest.raises(UsageError, match=f"seg at byte {1000 + int(block.positions[-1]) + 38}: .* not UTF-8"):
        record.decode(odd, "seg", 1000)


def test_check_refuses_an_index_that_does_not_cover_the_data() -> None:
    block = encoded(plain(1), plain(2), plain(3))
    changes = [
        ("positions", block.positions + 1),
        ("lengths", block.lengths - 1),
        ("lengths", block.lengths * 0),
        ("data", block.data[:-1]),
        ("data", np.append(block.data, np.uint8(0))),
        ("offsets", block.offsets[::-1]),
        ("offsets", block.offsets[:2]),
    ]
    for field, value in changes:
        parts = {name: getattr(block, name) for name in RecordBlock.__slots__} | {field: value}
        with pytest.raises(CorruptError, match="seg at byte"):
            record.check(RecordBlock(**parts), "seg", 1)


@settings(max_examples=200)
@given(records(min_size=1, max_size=30), st.data())
def test_damage_is_refused_or_leaves_the_structure(made: list[Record], data: st.DataObject) -> None:
    """A flipped bit gives `CorruptError` or records that encode to just those bytes."""
    block = record.encode(to_batch(made))
    at = data.draw(st.integers(0, block.nbytes - 1))
    bad = damaged(block, at, bytes([int(block.data[at]) ^ (1 << data.draw(st.integers(0, 7)))]))
    try:
        batch = record.decode(bad)
    except (CorruptError, UsageError):  # of a header key that is no text any more
        return
    assert record.encode(batch).data.tobytes() == bad.data.tobytes()


@settings(max_examples=150)
@given(records(min_size=1, max_size=20), st.data())
def test_scan_of_damaged_or_cut_bytes(made: list[Record], data: st.DataObject) -> None:
    octets = bytearray(record.encode(to_batch(made)).data.tobytes())
    octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(octets[: data.draw(st.integers(0, len(octets)))])
    try:
        block = record.scan(cut, name="seg", partial=True)
    except CorruptError:
        return
    record.check(block, "seg", 0)
    assert block.data.tobytes() == cut[: block.nbytes]
    if block.nbytes < len(cut):
        with pytest.raises(CorruptError, match=f"seg at byte {block.nbytes}: .* ends within this record"):
            record.scan(cut, name="seg")


def test_scan_refuses_offsets_that_do_not_follow() -> None:
    octets = encoded(plain(5)).data.tobytes()
    assert len(record.scan(octets, name="seg", first_after=4)) == 1
    with pytest.raises(CorruptError, match="seg at byte 100: record offset 5 where one above 5"):
        record.scan(octets, name="seg", base=100, first_after=5)


@given(st.lists(st.integers(24, 60), max_size=40), st.integers(0, 200))
def test_rotation_cut_is_the_rule_applied_record_by_record(lengths: list[int], threshold: int) -> None:
    expected, size = [], threshold + 1
    for length in lengths:
        if size > threshold:
            expected.append(0)
            size = 1
        expected[-1] += 1
        size += length
    cut, rest, size = [], np.array(lengths, np.int64), 1
    while len(rest):
        count = record.rotation_cut(rest, size, threshold)
        if count == 0:
            size = 1
            continue
        cut.append(count)
        size += int(rest[:count].sum())
        rest = rest[count:]
    assert cut == expected


def test_rotation_goes_on_in_a_file_that_has_room() -> None:
    lengths = np.array([50, 50, 50], np.int64)
    assert record.rotation_cut(lengths, 1, 101) == 3
    assert record.rotation_cut(lengths, 1, 100) == 2
    assert record.rotation_cut(lengths, 101, 101) == 1
    assert record.rotation_cut(lengths, 102, 101) == 0
    assert record.rotation_cut(lengths[:0], 1, 100) == 0
