"""Records are encoded and decoded as the reference does; damaged or cut ones are refused, with file and byte."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError, UsageError
from kbackup.formats import record
from kbackup.formats.index import SegmentIndex
from kbackup.types import RECORDS, RecordBlock
from tests.support.record_blocks import encoded, index_of, plain
from tests.unit.formats.reference import Record, a_record, decode_records, encode_record, from_batch, records, to_batch


@given(records())
def test_encode_is_the_reference(made: list[Record]) -> None:
    block = record.encode(to_batch(made))
    parts = [encode_record(r) for r in made]
    assert block.data.tobytes() == b"".join(parts)
    assert block.offsets.tolist() == [r.offset for r in made]
    assert block.lengths.tolist() == [len(part) for part in parts]
    assert block.positions.tolist() == [sum(map(len, parts[:i])) for i in range(len(parts))]
    times = [r.timestamp for r in made if r.timestamp is not None]
    assert (block.min_timestamp, block.max_timestamp) == (min(times, default=None), max(times, default=None))
    assert block.largest == max(map(len, parts), default=0)
    record.check(block, "file", 1)


@given(records())
def test_decode_is_the_inverse(made: list[Record]) -> None:
    batch = record.decode(record.encode(to_batch(made)))
    batch.validate(full=True)
    assert batch.schema == RECORDS
    assert from_batch(batch) == made
    assert decode_records(record.encode(batch).data.tobytes()) == made


@given(records(min_size=1), st.data())
def test_sliced_batches_encode_as_their_rows(made: list[Record], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(made)))
    part = to_batch(made).slice(start, data.draw(st.integers(0, len(made) - start)))
    assert record.encode(part).data.tobytes() == b"".join(encode_record(r) for r in from_batch(part))


@given(records(), st.data())
def test_a_slice_of_a_block_is_the_block_of_those_records(made: list[Record], data: st.DataObject) -> None:
    block = record.encode(to_batch(made))
    start = data.draw(st.integers(0, len(made)))
    stop = data.draw(st.integers(start, len(made)))
    part, own = record.slice_block(block, start, stop), record.encode(to_batch(made[start:stop]))
    for field in ("data", "offsets", "positions", "lengths"):
        assert np.array_equal(getattr(part, field), getattr(own, field))
    assert (part.min_timestamp, part.max_timestamp) == (own.min_timestamp, own.max_timestamp)
    assert part.largest == own.largest
    assert not part.nbytes or np.shares_memory(part.data, block.data)


@given(records())
def test_scan_finds_what_encode_wrote(made: list[Record]) -> None:
    block = record.encode(to_batch(made))
    found = record.scan(block.data.tobytes(), name="file", base=1)
    for field in ("data", "offsets", "positions", "lengths"):
        assert np.array_equal(getattr(found, field), getattr(block, field))


@pytest.mark.exhaustive
def test_a_record_of_20_mb_and_one_of_many_headers() -> None:
    value = np.random.default_rng(1).bytes(20_000_000)
    headers = [("h", b"x" * (i % 3)) for i in range(20_000)]
    made = [plain(1), plain(2, value=value), plain(3, headers=headers), plain(4)]
    block = encoded(*made)
    assert block.data.tobytes() == b"".join(encode_record(r) for r in made)
    assert from_batch(record.decode(block)) == made


def test_a_block_survives_pickling() -> None:
    block = pickle.loads(pickle.dumps(encoded(plain(1), plain(2))))
    assert from_batch(record.decode(block)) == [plain(1), plain(2)]


def test_slices_stay_within_the_block() -> None:
    with pytest.raises(IndexError, match="records 1 to 3 of a block of 2"):
        record.slice_block(encoded(plain(1), plain(2)), 1, 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([plain(5), plain(5)], "row 1 .* offset"),
        ([plain(-1)], "row 0 .* offset"),
        ([plain(1), plain(2, kind=2)], "row 1 .* timestamp type"),
        ([plain(1), plain(2, kind=-1)], "row 1 .* timestamp"),
        ([plain(1, timestamp=None)], "row 0 .* timestamp"),
        ([plain(1, kind=None)], "row 0 .* timestamp type"),
        ([plain(None)], "null offset"),  # type: ignore[arg-type]
        ([plain(1, headers=[(None, b"x")])], "null header key"),
    ],
)
def test_rows_that_cannot_be_encoded_are_refused(rows: list[Record], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        record.encode(to_batch(rows))


def test_another_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="another schema"):
        record.encode(pa.RecordBatch.from_pydict({"offset": [1]}))


# Damaged records are refused; a rotation cuts where the rule does.


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
def test_check_names_file_and_byte(copies: int, at: int, octets: bytes, where: int | None, message: str) -> None:
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


# test_stream


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
    octets, index = segment([a_record(1, value=None)])
    for data, message in [(octets + b"\0", "at byte 34: "), (b"\x02" + octets[1:], "magic byte 0x02"), (b"", "empty")]:
        for sizes in ([], [1, 4, 20], [len(octets)]):
            with pytest.raises(CorruptError, match=message):
                list(record.blocks(chunked(data, sizes), index if indexed else None, name="seg"))


def test_offsets_must_increase_across_blocks() -> None:
    one = encode_record(a_record(7, kind=-1, timestamp=None, key=None, value=None))
    chunks = [b"\x01" + one, one]
    with pytest.raises(CorruptError, match="seg at byte 25: record offset 7 where one above 7"):
        list(record.blocks(chunks, None, name="seg"))


def test_records_that_disagree_with_their_index_are_refused() -> None:
    octets, index = segment([a_record(i) for i in range(50)])
    other = SegmentIndex(index.offsets + 1, index.positions, index.lengths)
    with pytest.raises(CorruptError, match="seg at byte 1: another record offset"):
        list(record.blocks([octets], other, name="seg"))
    shifted = SegmentIndex(index.offsets, index.positions + 1, index.lengths)
    with pytest.raises(CorruptError, match="seg at byte"):
        list(record.blocks([octets], shifted, name="seg"))


@pytest.mark.parametrize("indexed", [True, False])
def test_memory_is_a_few_chunks(indexed: bool) -> None:
    """Every block comes as soon as its chunk is in, and is no larger than a chunk and a record."""
    octets, index = segment([a_record(i, key=None, value=bytes(500)) for i in range(2000)])
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
    octets, index = segment([a_record(i, timestamp=i, key=None, value=bytes([i % 251]) * 10_000) for i in range(1500)])
    found = list(record.blocks(chunked(octets, [65_536] * 250), index if indexed else None, name="seg", least=4 << 20))
    assert [round(block.nbytes / (4 << 20), 1) for block in found] == [1, 1, 1, 0.6]
    assert b"".join(block.data.tobytes() for block in found) == octets[1:], "none shares memory with a later one"


@pytest.mark.parametrize("indexed", [True, False])
def test_a_record_of_20_mb_in_small_chunks(indexed: bool) -> None:
    value = np.random.default_rng(1).bytes(20_000_000)
    made = [a_record(i, value=v) for i, v in enumerate([b"a", value, b"c"])]
    octets, index = segment(made)
    found = record.blocks(chunked(octets, [65_536] * 300), index if indexed else None, name="seg")
    assert joined(found) == (octets[1:], [0, 1, 2])
