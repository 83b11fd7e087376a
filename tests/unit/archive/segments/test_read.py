"""Reading segments back, and taking over what another attempt left: nothing damaged gets through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kbackup.archive import layout
from kbackup.archive.segments.read import read_index, read_segment, read_small
from kbackup.archive.segments.salvage import salvage_segment
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, UnreachableError
from tests.support.faulty_store import FaultyStore, down
from tests.support.made_segments import target, write

COMPRESSIONS = ["none", "zstd"]
Change = Callable[[bytes], bytes]


def _one(store: FaultyStore, compression: str = "none") -> Segment:
    (segment,) = write(store, target(threshold=1 << 20, compression=compression), range(50, 90))
    return segment


def _read(store: FaultyStore, segment: Segment) -> int:
    return sum(map(len, read_segment(store, segment)))


def _overwrite(store: FaultyStore, key: str, change: Change) -> None:
    store.put(key, change(store.get(key)))


def _flip(at: int) -> Change:
    return lambda data: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGE: dict[str, Change] = {
    "empty": lambda data: b"",
    "magic": _flip(0),
    "first record": _flip(5),
    "middle": lambda data: _flip(len(data) // 2)(data),
    "last byte": lambda data: _flip(len(data) - 1)(data),
    "cut by one": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "one byte more": lambda data: data + b"\0",
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    ("which", "damage"),
    # what follows a records object's promised size is never read
    [
        (which, damage)
        for which in ("records", "index")
        for damage in DAMAGE
        if (which, damage) != ("records", "one byte more")
    ],
)
def test_no_damage_is_read_over(which: str, damage: str, compression: str, store: FaultyStore) -> None:
    segment = _one(store, compression)
    assert _read(store, segment) == 40
    key = segment.key if which == "records" else layout.index_key_of(segment.key)
    _overwrite(store, key, DAMAGE[damage])
    with pytest.raises(CorruptError) as raised:
        _read(store, segment)
    assert key in str(raised.value)
    assert raised.value.hint


def test_a_damaged_byte_that_still_reads_well_fails_by_its_checksum(store: FaultyStore) -> None:
    segment = _one(store)
    at = store.get(segment.key).index(b"vvvv")
    _overwrite(store, segment.key, _flip(at))
    with pytest.raises(CorruptError, match=r"is not what its manifest says \(checksum\)"):
        _read(store, segment)


def test_a_short_read_is_no_end(store: FaultyStore) -> None:
    segment = _one(store)
    store.short[segment.key] = segment.stored - 30
    with pytest.raises(CorruptError, match="wanted up to byte"):
        _read(store, segment)


@pytest.mark.parametrize("change", [{"count": 39}, {"first": 49}, {"last": 90}])
def test_an_index_of_another_segment(change: dict[str, int], store: FaultyStore) -> None:
    segment = replace(_one(store), **change)  # type: ignore[arg-type]
    with pytest.raises(CorruptError, match=r"has 40 records, the segment should have"):
        read_index(store, segment)


def test_a_missing_index(store: FaultyStore) -> None:
    segment = _one(store)
    store.delete([layout.index_key_of(segment.key)])
    with pytest.raises(CorruptError, match=r"_index is missing"):
        _read(store, segment)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("with_index", [True, False])
def test_taking_over_makes_the_segment_whole(with_index: bool, compression: str, store: FaultyStore) -> None:
    segment = _one(store, compression)
    index = store.get(layout.index_key_of(segment.key))
    if not with_index:
        store.delete([layout.index_key_of(segment.key)])
    assert salvage_segment(store, target(compression=compression), segment.key) == segment
    assert store.get(layout.index_key_of(segment.key)) == index
    assert _read(store, segment) == 40


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("damage", ["empty", "magic", "cut by one", "cut in half", "one byte more"])
def test_damaged_segments_are_not_salvaged(
    damage: str, with_index: bool, compression: str, store: FaultyStore
) -> None:
    segment = _one(store, compression)
    _overwrite(store, segment.key, DAMAGE[damage])
    if not with_index:
        store.delete([layout.index_key_of(segment.key)])
    with pytest.raises(CorruptError) as raised:
        salvage_segment(store, target(compression=compression), segment.key)
    assert segment.key in str(raised.value)
    assert with_index or layout.index_key_of(segment.key) not in {e.key for e in store.list()}


def test_a_segment_without_a_record_is_not_ours(store: FaultyStore) -> None:
    key = layout.records_key(target().directory, 0, 0, "none")
    store.put_new(key, b"\x01")
    with pytest.raises(CorruptError, match="has no record"):
        salvage_segment(store, target(), key)


@pytest.mark.parametrize(
    "damage", ["empty", "magic", "first record", "middle", "cut by one", "one byte more"]
)
def test_an_index_that_disagrees_is_not_taken_over(damage: str, store: FaultyStore) -> None:
    segment = _one(store)
    _overwrite(store, layout.index_key_of(segment.key), DAMAGE[damage])
    with pytest.raises(CorruptError):
        salvage_segment(store, target(), segment.key)


def test_a_store_that_fails_is_not_damage(store: FaultyStore) -> None:
    segment = _one(store)
    store.faults.append(down("open_range", "*_records"))
    with pytest.raises(UnreachableError):
        salvage_segment(store, target(), segment.key)


def test_a_small_segment_is_read_without_its_index(store: FaultyStore) -> None:
    (segment,) = write(store, target(threshold=1 << 20), range(5, 40))
    store.calls.clear()
    (block,) = read_small(store, segment)
    assert block.offsets.tolist() == list(range(5, 40))
    assert store.calls == [("open_range", segment.key)]
    for wrong in (replace(segment, count=34), replace(segment, first=4), replace(segment, last=40)):
        with pytest.raises(CorruptError, match="does not have the records that the catalog promises"):
            list(read_small(store, wrong))
    with pytest.raises(CorruptError, match="is not what its manifest says"):
        list(read_small(store, replace(segment, crc="0" * 16)))
    unknown = replace(segment, crc="")
    assert len(next(iter(read_small(store, unknown)))) == 35
