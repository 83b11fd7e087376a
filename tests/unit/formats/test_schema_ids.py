"""Schemas are counted and mapped as a slow reference does it, by compiled code and by plain Python."""

from __future__ import annotations

import pickle
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbackup.native
from kbackup.errors import CorruptError, UndecodableError
from kbackup.formats import record
from kbackup.formats.schema_ids import (
    MOST_IDS,
    MOST_ODD,
    PARTS,
    Part,
    SchemaCounter,
    SchemaUse,
    make_map,
    merge,
    put_schema,
    rewrite,
)
from kbackup.native import schema_kernel
from kbackup.schemas.decoder import HEADERS, SchemaFrame, frame_of
from kbackup.types import Int64Array, RecordBlock, TopicPartition
from tests.support.plain_kernels import plain_kernel
from tests.support.record_blocks import encoded, plain
from tests.unit.formats.reference import Record, a_record, decode_records

T = TopicPartition("t", 0)
GUIDS = [str(uuid.UUID(int=n)) for n in (0, 1, 2**63, 2**64 + 5, 2**128 - 1)]
IDS = [0, 1, 4660, 2**24, 2**31 - 1, 2**31, 2**32 - 1]


KERNELS = {"compiled": schema_kernel, "plain": plain_kernel("schema_kernel")}


@contextmanager
def using(kernel: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kbackup.native, "schema_kernel", KERNELS[kernel])
        yield


def id_frame(number: int, rest: bytes = b"") -> bytes:
    return struct.pack(">BI", 0, number) + rest


def guid_frame(guid: str, rest: bytes = b"") -> bytes:
    return b"\x01" + uuid.UUID(guid).bytes + rest


_REST = st.binary(max_size=6)
_FRAMES = st.builds(id_frame, st.sampled_from(IDS), _REST)
_EIGHT = st.builds(lambda number, rest: struct.pack(">bq", 0, number) + rest, st.sampled_from([-1, *IDS]), _REST)
_NUMBERS = st.integers(0, 2**40).map(lambda n: struct.pack(">q", n))
_FIELDS = st.none() | st.binary(max_size=9) | _FRAMES | _EIGHT | _NUMBERS
FORMS = ("contentId", "globalId", "contentHash", "artifactId")
OWN_NAMES = [f"apicurio.{part}.{form}" for part in PARTS for form in FORMS]
_OTHER_NAMES = ["__value_schema_ix", "__key_schema_i", "apicurio.value.globalIx", ""]
_NAMES = st.sampled_from(["__key_schema_id", "__value_schema_id", *_OTHER_NAMES, *OWN_NAMES])
_LONGS = st.integers(-1, 2**33).map(lambda n: struct.pack(">q", n))
_VALUES = _FIELDS | _LONGS | st.builds(guid_frame, st.sampled_from(GUIDS), _REST) | st.just(b"\x01" + bytes(15))
_RECORDS = st.builds(
    lambda kind, key, value, headers: a_record(
        0, kind=kind, timestamp=5 if kind >= 0 else None, key=key, value=value, headers=headers
    ),
    st.sampled_from([-2, -1, 0, 1]),
    _FIELDS,
    _FIELDS,
    st.lists(st.tuples(_NAMES, _VALUES), max_size=3),
)


@st.composite
def made_records(draw: st.DrawFn) -> list[Record]:
    gaps = draw(st.lists(st.integers(1, 300), min_size=1, max_size=12))
    kinds = draw(st.lists(_RECORDS, min_size=1, max_size=5))
    return [kinds[n % len(kinds)]._replace(offset=int(at)) for n, at in enumerate(np.cumsum(gaps))]


def frames(part: Part, field: bytes, headers: list[tuple[str, bytes | None]]) -> list[tuple[int | None, SchemaFrame]]:
    """The frames of a field, each with the number of its header (None: in front)."""
    name, found = HEADERS[part], list[tuple[int | None, SchemaFrame]]()
    own = [(n, value) for n, (key, value) in enumerate(headers) if key.encode() == name and value is not None]
    for number, value in own:
        try:
            frame = frame_of(b"", [(name, value)], name)
        except UndecodableError:
            continue
        assert frame is not None
        found.append((number, frame))
    if not own and not own_forms(part, headers) and (frame := frame_of(field, [], name)) is not None:
        found.append((None, frame))
    return found


def own_forms(part: Part, headers: list[tuple[str, bytes | None]]) -> list[str]:
    """What headers name in Apicurio's own forms."""
    found = []
    for name, value in headers:
        form = name.removeprefix(f"apicurio.{part}.")
        if name not in OWN_NAMES or form == name or value is None:
            continue
        if form in ("contentHash", "artifactId"):
            found.append(form)
        elif len(value) >= 8 and (number := struct.unpack_from(">q", value)[0]) > 0:
            found.append(f"{form} {number}")
    return found


def is_sure(field: bytes, number: int | None, frame: SchemaFrame) -> bool:
    """Whether a frame can't be a number of eight bytes, or that of gRPC, which has the length of what follows."""
    return number is not None or (len(field) != 8 and frame.schema != len(field) - 5)


def expected_uses(made: list[Record], topic: str = "t") -> list[SchemaUse]:
    uses = []
    for part in PARTS:
        fields = [(field, r.headers) for r in made if (field := r.key if part == "key" else r.value) is not None]
        found = [(field, frames(part, field, headers)) for field, headers in fields]
        framed = [(field, each) for field, each in found if each]
        sure = sum(is_sure(field, *each[0]) for field, each in framed)
        ids = Counter(frame.schema for _, each in framed for _, frame in each)
        odd = sum(count for schema, count in ids.items() if isinstance(schema, int) and schema >= 2**24)
        apicurio = Counter(form for _, headers in fields for form in own_forms(part, headers))
        for field, headers in fields:
            named = own_forms(part, headers) or any(n.encode() == HEADERS[part] and v is not None for n, v in headers)
            if not named and len(field) >= 9 and field[:5] == bytes(5):
                number = struct.unpack_from(">i", field, 5)[0]
                apicurio.update([f"eightBytes {number}"] if number > 0 else [])
        uses.append(SchemaUse(topic, part, len(fields), len(framed), sure, dict(ids), odd=odd, apicurio=dict(apicurio)))
    return uses


def counted(*blocks: RecordBlock) -> list[SchemaUse]:
    counter = SchemaCounter()
    for block in blocks:
        counter.add(T, block)
    return counter.result()


@given(made_records())
def test_counts_are_those_of_the_reference(made: list[Record]) -> None:
    block = encoded(*made)
    for kernel in KERNELS:
        with using(kernel):
            uses = counted(block)
        assert uses == expected_uses(made), kernel
        assert pickle.loads(pickle.dumps(uses)) == uses


NEW_IDS = {1: 7, 4660: 4660, 2**24: 2**31 - 1, 2**31 - 1: 1}
NEW_GUIDS = dict(zip(GUIDS, [GUIDS[0], *GUIDS[:0:-1]], strict=True))


def both(ids: dict[int, int], guids: dict[str, str]) -> Int64Array:
    """The same map for keys and values."""
    pairs: list[tuple[int | str, int | str]] = [*ids.items(), *guids.items()]
    return make_map({"key": dict(pairs), "value": dict(pairs)})


def mapped(made: list[Record], parts: list[Part], ids: dict[int, int]) -> list[Record]:
    result = []
    for r in made:
        fields, headers = {"key": r.key, "value": r.value}, list(r.headers)
        for part in parts:
            field = fields[part]
            for number, frame in frames(part, field, r.headers) if field is not None else []:
                schema = frame.schema
                new = id_frame(ids[schema]) if isinstance(schema, int) else guid_frame(NEW_GUIDS[schema])
                if number is None:
                    fields[part] = new + frame.rest
                else:
                    headers[number] = (headers[number][0], new + frame.rest)
        result.append(r._replace(key=fields["key"], value=fields["value"], headers=headers))
    return result


@given(made_records(), st.sampled_from([["key"], ["value"], ["key", "value"], []]))
def test_frames_are_mapped_as_by_the_reference(made: list[Record], parts: list[Part]) -> None:
    used = {each for use in expected_uses(made) for each in use.ids if isinstance(each, int)}
    ids = {old: NEW_IDS.get(old, old) for old in used}
    block, wanted = encoded(*made), mapped(made, parts, ids)
    before = block.data.tobytes()
    block = replace(block, data=np.frombuffer(before, np.uint8))  # read-only
    for kernel in KERNELS:
        with using(kernel):
            new, left = rewrite(block, both(ids, NEW_GUIDS), parts)
        assert left == []
        assert decode_records(new.data.tobytes()) == wanted, kernel
        assert block.data.tobytes() == before
        record.check(new, "file", 1)
        own = replace(block, data=block.data.copy())
        with using(kernel):
            same, _ = rewrite(own, both(ids, NEW_GUIDS), parts)
        assert same is own
        assert own.data.tobytes() == new.data.tobytes(), "in place where that is possible"


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_and_values_have_maps_of_their_own(kernel: str) -> None:
    block = encoded(plain(0, key=id_frame(1), value=id_frame(1)), plain(1, key=id_frame(2), value=id_frame(2)))
    with using(kernel):
        new, left = rewrite(block, make_map({"key": {1: 11}, "value": {2: 22}}), PARTS)
    records = decode_records(new.data.tobytes())
    assert [(r.key, r.value) for r in records] == [(id_frame(11), id_frame(1)), (id_frame(2), id_frame(22))]
    assert [(each.part, each.schema, each.records.tolist()) for each in left] == [("key", 2, [1]), ("value", 1, [0])]


@pytest.mark.parametrize("kernel", KERNELS)
def test_frames_without_a_mapping_stay_and_are_named_with_their_places(kernel: str) -> None:
    guid = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    made = [
        plain(4, value=id_frame(1)),
        plain(6, key=id_frame(99, b"k"), value=id_frame(98)),
        plain(7, value=b"apart", headers=[("__value_schema_id", guid_frame(guid, b"rest"))]),
        plain(8, value=id_frame(98, b"second")),
    ]
    block = encoded(*made)
    with using(kernel):
        new, left = rewrite(block, both({1: 2}, {}), PARTS)
    assert decode_records(new.data.tobytes()) == [made[0]._replace(value=id_frame(2)), *made[1:]]

    def bytes_at(at: Int64Array, sizes: Int64Array) -> list[bytes]:
        places = zip(at.tolist(), sizes.tolist(), strict=True)
        return [new.data[start : start + size].tobytes() for start, size in places]

    found = {(each.part, each.schema): each for each in left}
    assert found.keys() == {("key", 99), ("value", 98), ("value", guid)}
    assert bytes_at(found["key", 99].at, found["key", 99].sizes) == [id_frame(99, b"k")]
    twice = found["value", 98]
    assert twice.records.tolist() == [1, 3]
    assert bytes_at(twice.at, twice.sizes) == [id_frame(98), id_frame(98, b"second")]
    assert bytes_at(twice.field_at, twice.field_sizes) == [id_frame(98), id_frame(98, b"second")]
    apart = found["value", guid]
    assert bytes_at(apart.at, apart.sizes) == [guid_frame(guid, b"rest")]
    assert bytes_at(apart.field_at, apart.field_sizes) == [b"apart"]


def test_left_frames_get_another_schema() -> None:
    header = [("__value_schema_id", guid_frame(GUIDS[1]))]
    block = encoded(plain(0, value=id_frame(9)), plain(1, value=b"x", headers=header), plain(2, value=id_frame(9)))
    new, left = rewrite(block, both({}, {}), PARTS)
    for each in left:
        wanted = each.select(np.array([True, False])) if each.schema == 9 else each
        put_schema(new, wanted, 4660 if each.schema == 9 else GUIDS[3])
    first, second, third = decode_records(new.data.tobytes())
    assert (first.value, third.value) == (id_frame(4660), id_frame(9))
    assert second.headers == [("__value_schema_id", guid_frame(GUIDS[3]))]


@pytest.mark.parametrize("kernel", KERNELS)
def test_thousands_of_ids_are_listed_and_odd_ones_as_unlisted_beyond_a_thousand(kernel: str) -> None:
    longs = np.random.default_rng(1).integers(2**48, 2**55, 3000).tolist()
    with using(kernel):
        some = counted(encoded(*(plain(n, value=id_frame(1 + n % 3000)) for n in range(9000))))[1]
        many = counted(encoded(*(plain(n, value=struct.pack(">q", long)) for n, long in enumerate(longs))))[1]
    assert some.ids == dict.fromkeys(range(1, 3001), 3)
    assert (some.unlisted, some.odd) == (0, 0)
    assert (many.fields, many.framed, many.sure, many.odd) == (3000, 3000, 0, 3000)
    assert (len(many.ids), many.unlisted) == (MOST_ODD, 3000 - MOST_ODD)


def test_ids_without_a_place_are_counted() -> None:
    """More than a task's table takes: it stays small."""
    total = 20_000
    counter = SchemaCounter()
    for first in range(0, total, 5000):
        counter.add(T, encoded(*(plain(n, value=id_frame(n + 1)) for n in range(first, first + 5000))))
    use = counter.result()[1]
    assert (use.framed, len(use.ids), use.unlisted) == (total, MOST_IDS, total - MOST_IDS)


def test_a_table_grows_without_losing_counts_over_blocks() -> None:
    counter = SchemaCounter()
    for turn in range(3):
        made = (plain(1000 * turn + n, value=id_frame(n + 1)) for n in range(1000))
        counter.add(T, encoded(*made))
    assert counter.result()[1].ids == dict.fromkeys(range(1, 1001), 3)


def test_records_that_are_read_again_count_once() -> None:
    made = [plain(n, value=id_frame(1 + n % 3)) for n in range(10)]
    counter = SchemaCounter()
    counter.add(T, encoded(*made[:5]))
    counter.add(T, encoded(*made[3:]), end=8)
    counter.add(TopicPartition("u", 0), encoded(*made))
    counter.add(TopicPartition("u", 1), encoded(*made))
    assert counter.result() == [*expected_uses(made[:8]), *merge(expected_uses(made, "u") * 2)]


def test_merged_uses_have_the_most_frequent_ids() -> None:
    one = SchemaUse("t", "value", 5, 4, 3, dict.fromkeys(range(1, MOST_IDS + 1), 2))
    other = SchemaUse("t", "value", 2, 2, 2, {MOST_IDS + 1: 3, 7: 1}, unlisted=4, odd=1, apicurio={"contentId 7": 2})
    key = SchemaUse("t", "key", 1, 0, 0, {})
    first, second = merge([one, key, other])
    assert first == key
    assert second[:5] == ("t", "value", 7, 6, 5)
    assert (len(second.ids), second.ids[MOST_IDS + 1], second.ids[7]) == (MOST_IDS, 3, 3)
    assert (second.unlisted, second.odd, second.apicurio) == (4 + 2, 1, {"contentId 7": 2})


def damage(work: Callable[[RecordBlock], object], block: RecordBlock) -> str:
    try:
        work(block)
    except CorruptError as error:
        return error.message
    return ""


def _rewrite(block: RecordBlock) -> None:
    rewrite(block, both(NEW_IDS, NEW_GUIDS), PARTS, f"records of {T}")


@settings(max_examples=200)
@given(made_records(), st.data())
def test_damage_is_named_as_by_the_check(made: list[Record], data: st.DataObject) -> None:
    block = encoded(*made)
    octets = bytearray(block.data.tobytes())
    octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    bad = record.make_block(np.frombuffer(octets, np.uint8), block.offsets, block.positions, block.lengths)
    expected = damage(lambda block: record.check(block, f"records of {T}", 0), bad)
    for kernel in KERNELS:
        with using(kernel):
            assert damage(counted, bad) == expected, kernel
            assert damage(_rewrite, bad) == expected, kernel


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("work", [counted, _rewrite])
def test_an_index_beyond_the_data_is_refused(kernel: str, work: Callable[[RecordBlock], object]) -> None:
    block = encoded(plain(1), plain(2), plain(3))
    changes = [
        ("positions", block.positions - 1),
        ("positions", block.positions + 2**62),
        ("lengths", block.lengths + 2**62),
        ("lengths", -block.lengths),
        ("data", block.data[:-1]),
        ("offsets", block.offsets[:2]),
    ]
    for field, value in changes:
        bad = RecordBlock(**{name: getattr(block, name) for name in RecordBlock.__slots__} | {field: value})
        with using(kernel):
            assert damage(work, bad), field
