"""The offset map of a restore: restores/<id>/offsets.parquet, and the parts that it is put together from.

A restore unit writes one part before each of its transactions, and commits the part's name with the transaction. So
the parts of committed transactions, and no others, can be found again after a crash. The parts of one attempt are
numbered. Each names the last committed part of the attempt before, which this attempt goes on from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.restores.offset_map import (
    PREVIOUS,
    SCHEMA,
    MapFile,
    Runs,
    by_partition,
    decode,
    encode,
    joined,
    previous_name,
    runs_table,
)
from kbackup.archive.restores.unmapped import UnmappedRecords, decode_unmapped, encode_unmapped, sum_unmapped
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition
from kbackup.util.system import in_threads

_CUT = b"kbackup.cut"
_UNMAPPED = b"kbackup.unmapped"
_LEFT_OUT = b"kbackup.left_out"
_THREADS = 8
_NO_OFFSETS = np.empty(0, np.int64)


class MapPartName(NamedTuple):
    """The name of a part: `<attempt>-<number>` in the progress that is committed with a transaction."""

    attempt: str
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> MapPartName | None:
        attempt, _, number = text.rpartition("-")
        if not attempt or not number.isdecimal():
            return None
        return cls(attempt, int(number))


class Cut(NamedTuple):
    """Counts that only reading the records gives. `records` and `bytes` are in the windows, and `untimed` records were
    left out because they have no timestamp; all three count only parts with a window. For all parts, `unmapped` counts
    the records whose schemas could not be mapped, and `left_out` those that a transform left out, by topic of the
    target."""

    records: int = 0
    bytes: int = 0
    untimed: int = 0
    unmapped: tuple[UnmappedRecords, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()

    def plus(self, other: Cut) -> Cut:
        return Cut(
            records=self.records + other.records,
            bytes=self.bytes + other.bytes,
            untimed=self.untimed + other.untimed,
            unmapped=sum_unmapped(self.unmapped + other.unmapped),
            left_out=_sum_left_out(self.left_out + other.left_out),
        )


def _sum_left_out(counts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return one count per topic, in order."""
    sums = Counter[str]()
    for topic, records in counts:
        sums[topic] += records
    return tuple(sorted(sums.items()))


NOTHING = Cut()


class MapPart(NamedTuple):
    """The map of one transaction, and what windows selected for the transaction."""

    runs: pa.Table
    cut: Cut = NOTHING


class WrittenMap(NamedTuple):
    """What a restore needs to know of the map that it wrote: records by topic, what windows selected, and for each
    partition the runs that map the offsets of its groups (`around`)."""

    records: Mapping[str, int]
    cut: Cut
    runs: Mapping[TopicPartition, Runs]


def _part_key(restore_id: str, unit: int, name: MapPartName) -> str:
    return layout.restore_key(restore_id, f"map/{unit}/{name}.parquet")


def write_map_part(
    store: Store,
    restore_id: str,
    unit: int,
    *,
    name: MapPartName,
    runs: pa.Table,
    previous: MapPartName | None,
    cut: Cut = NOTHING,
) -> None:
    """Write a part of a unit's map. `previous` is the last part of the attempt before, None if there was none. `cut` is
    what windows selected since the part before."""
    counts = f"{cut.records},{cut.bytes},{cut.untimed}"
    metadata = {PREVIOUS: str(previous or "").encode(), _CUT: counts.encode()}
    if cut.unmapped:
        metadata[_UNMAPPED] = encode_unmapped(cut.unmapped)
    if cut.left_out:
        metadata[_LEFT_OUT] = msgspec.json.encode(dict(cut.left_out))
    key = _part_key(restore_id, unit, name)
    part = runs.replace_schema_metadata(metadata)
    store.put_new(key, encode(part, key))


def committed_names(store: Store, restore_id: str, unit: int, last: MapPartName | None) -> list[MapPartName]:
    """Return the parts that a unit has committed, in order, `last` being the one named in its progress."""
    names: list[MapPartName] = []
    while last is not None:
        # All parts of an attempt up to its last committed one are committed, and each names the same part before it.
        of_attempt = [MapPartName(last.attempt, number) for number in range(last.number + 1)]
        names = of_attempt + names
        key = _part_key(restore_id, unit, of_attempt[0])
        first = decode(store.get(key), key)
        last = previous_of(first)
    return names


def read_map_parts(
    store: Store, restore_id: str, units: Iterable[tuple[int, Sequence[MapPartName]]]
) -> Iterator[MapPart]:
    """Yield the named parts of units in order. A few parts are read side by side."""

    def read(key: str) -> pa.Table:
        return decode(store.get(key), key)

    def keys_of_parts() -> Iterator[str]:
        for unit, names in units:
            for name in names:
                yield _part_key(restore_id, unit, name)

    keys = keys_of_parts()
    # A batch at a time: there is a part for each transaction, and only these are in memory.
    while batch := list(islice(keys, 2 * _THREADS)):
        for table in in_threads(read, batch, _THREADS):
            cut = _cut_of(table.schema.metadata)
            yield MapPart(table.replace_schema_metadata(None), cut)


def _cut_of(metadata: Mapping[bytes, bytes]) -> Cut:
    """Return the counts of a part. Parts of older versions have none, which counts as 0."""
    counts = metadata.get(_CUT, b"0,0,0").decode()
    records, size, untimed = map(int, counts.split(","))
    unmapped: tuple[UnmappedRecords, ...] = ()
    if _UNMAPPED in metadata:
        unmapped = decode_unmapped(metadata[_UNMAPPED])
    left_out: dict[str, int] = {}
    if _LEFT_OUT in metadata:
        left_out = msgspec.json.decode(metadata[_LEFT_OUT], type=dict[str, int])
    return Cut(records, size, untimed, unmapped, tuple(left_out.items()))


class MappedUnit(NamedTuple):
    """A unit, its partitions on the target, and the parts of its map."""

    number: int
    partitions: Sequence[TopicPartition]
    parts: Sequence[MapPartName]


def in_order(store: Store, restore_id: str, units: Iterable[MappedUnit]) -> Iterator[MapPart]:
    """Yield the maps of units in order of partition. The map of a unit with several partitions is held until the turn
    of each partition comes."""
    held: dict[TopicPartition, list[Runs]] = {}

    def release(partitions: Iterable[TopicPartition]) -> Iterator[MapPart]:
        for tp in sorted(partitions):
            tables = [runs_table({tp: runs}) for runs in held.pop(tp)]
            yield MapPart(pa.concat_tables(tables))

    units = sorted(units, key=lambda unit: min(unit.partitions))
    named_parts = [(unit.number, unit.parts) for unit in units]
    # One reader for all units, so that the parts of small units are read side by side, too.
    reading = read_map_parts(store, restore_id, named_parts)
    for unit in units:
        first = min(unit.partitions)
        yield from release([tp for tp in held if tp < first])
        for part in islice(reading, len(unit.parts)):
            if len(unit.partitions) == 1:
                yield part
                continue
            for tp, runs in by_partition(part.runs):
                held.setdefault(tp, []).append(runs)
            # what windows selected counts once, though the runs of the part come later and one by one
            yield MapPart(SCHEMA.empty_table(), part.cut)
    yield from release(held)


def begun_map_parts(store: Store, restore_id: str, unit: int) -> Iterator[pa.Table]:
    """Yield every part that an attempt at the unit has written, whether its transaction was committed or not."""
    for entry in store.list(layout.restore_key(restore_id, f"map/{unit}/")):
        yield decode(store.get(entry.key), entry.key)


def previous_of(part: pa.Table) -> MapPartName | None:
    """Return the part of an earlier attempt that the attempt of `part` went on from."""
    return MapPartName.parse(previous_name(part))


class CollectedMap(NamedTuple):
    """The map of a restore as a file, and what the restore needs to know of it."""

    data: bytes
    known: WrittenMap


def collect_map(
    restore_id: str,
    parts: Iterable[MapPart],
    wanted: Mapping[TopicPartition, Int64Array] = MappingProxyType({}),
    left_out: Container[str] = (),
) -> CollectedMap:
    """Put a map together from parts in order. `wanted` are source offsets to be mapped. Topics of the target that are
    `left_out` are counted, but not in the map. Memory holds the file, and at most about a million runs."""
    records = Counter[str]()
    cut = NOTHING
    near = defaultdict[TopicPartition, list[Runs]](list)
    file = MapFile(layout.restore_key(restore_id, layout.OFFSETS), SCHEMA)
    for part in parts:
        cut = cut.plus(part.cut)
        kept: dict[TopicPartition, Runs] = {}
        for tp, runs in by_partition(part.runs):
            _, _, count = runs
            records[tp.topic] += int(count.sum())
            if tp.topic not in left_out:
                kept[tp] = runs
                near[tp].append(around(runs, wanted.get(tp, _NO_OFFSETS)))
        # the part's own table, unless a topic may be missing from it: making one takes 15 µs a partition
        file.write(runs_table(kept) if left_out else part.runs)
    known = WrittenMap(records, cut, joined(near))
    return CollectedMap(file.data(), known)


def around(runs: Runs, offsets: Int64Array) -> Runs:
    """Return the first and the last run, and the runs by which `OffsetMap` maps `offsets`."""
    source, target, count = runs
    last = len(source) - 1
    # The first run maps the offsets before all runs. The last one shows where they end.
    after = np.searchsorted(source, offsets, side="right")
    numbers = np.concatenate(([0, last], after - 1, after))
    keep = np.unique(np.clip(numbers, 0, last))
    return source[keep], target[keep], count[keep]
