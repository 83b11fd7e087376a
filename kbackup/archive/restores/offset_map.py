"""Offsets of the source to offsets of the target, as the target's brokers reported them for each record."""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.archive import layout
from kbackup.archive.models import Document, load
from kbackup.archive.restores.unmapped import UnmappedRecords, decode_unmapped, encode_unmapped, sum_unmapped
from kbackup.archive.segments.table import read_bounded
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition
from kbackup.util.system import in_threads

Runs = tuple[Int64Array, Int64Array, Int64Array]
"""Source, target, count: int64[n] each."""

How = Literal["exact", "next record", "log end", "log start", "empty", "expired"]


class Mapped(NamedTuple):
    """The offset on the target, and how it was found.

    `how` is 'exact' if the record itself was restored, 'next record' if it is missing and the next record counts, 'log
    end' if nothing comes after it, 'log start' if it lies before the first restored record, 'empty' if nothing was
    restored, and 'expired' if the target has deleted the record since, and the first record of its log counts.
    """

    offset: int
    how: How


@dataclass(frozen=True, slots=True, eq=False)
class OffsetMap:
    """One partition's map as runs, sorted by source: int64[n] each; record `source + i` went to `target + i`,
    0 <= i < `count`.

    `next` is the target's next offset after the restore, `start` where the target's log starts now.
    """

    source: Int64Array
    target: Int64Array
    count: Int64Array
    next: int
    start: int = 0

    def map(self, committed: int) -> Mapped:
        """Return the target offset of the first restored record whose source offset is at or after `committed`."""
        mapped = self._restored(committed)
        if mapped.offset < self.start:
            return Mapped(self.start, "expired")
        return mapped

    def _restored(self, committed: int) -> Mapped:
        """Return the target offset as the restore left the log, whatever the target has deleted since."""
        if not len(self.source):
            return Mapped(self.next, "empty")
        at = int(np.searchsorted(self.source, committed, side="right")) - 1
        if at < 0:
            return Mapped(int(self.target[0]), "log start")
        into = committed - int(self.source[at])
        if into < self.count[at]:
            return Mapped(int(self.target[at]) + into, "exact")
        if at + 1 < len(self.source):
            return Mapped(int(self.target[at + 1]), "next record")
        return Mapped(self.next, "log end")


@dataclass(frozen=True, slots=True)
class SameLog:
    """The map onto the very log that was archived. Offsets are what they were, as far as the log still has them: from
    `start` to `end`."""

    start: int
    end: int

    def map(self, committed: int) -> Mapped:
        if committed < self.start:
            return Mapped(self.start, "expired")
        if committed > self.end:
            return Mapped(self.end, "log end")
        return Mapped(committed, "exact")


# The offset map of a restore: restores/<id>/offsets.parquet, and the parts it is put together from.
#
# A restore unit writes one part before each of its transactions, and commits the part's name with the transaction. So
# the parts of committed transactions, and no others, can be found again after a crash. The parts of one attempt are
# numbered. Each names the last committed part of the attempt before, which this attempt goes on from.


_RUNS = ("source", "target", "count")


def map_schema(*numbers: str) -> pa.Schema:
    """Return the schema of runs by topic and the int32 columns `numbers`."""
    types: dict[str, pa.DataType] = {"topic": pa.string()}
    types |= dict.fromkeys(numbers, pa.int32())
    types |= dict.fromkeys(_RUNS, pa.int64())
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


SCHEMA = map_schema("partition")
PREVIOUS = b"kbackup.previous"
_CUT = b"kbackup.cut"
_UNMAPPED = b"kbackup.unmapped"
_KEY = b"kbackup.key"
_SUM = b"kbackup.sum"
_NO_SUM = b"sha256:" + b"0" * 64  # as long as any checksum, which takes its place in the file
_ROWS = 1 << 20  # of a map in one row group of its file
_THREADS = 8
_EMPTY = np.empty(0, np.int64)


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
    left out because they have no timestamp; all three count only parts with a window. `unmapped` counts, for all parts,
    the records whose schemas could not be mapped."""

    records: int = 0
    bytes: int = 0
    untimed: int = 0
    unmapped: tuple[UnmappedRecords, ...] = ()

    def plus(self, other: Cut) -> Cut:
        return Cut(
            records=self.records + other.records,
            bytes=self.bytes + other.bytes,
            untimed=self.untimed + other.untimed,
            unmapped=sum_unmapped(self.unmapped + other.unmapped),
        )


NOTHING = Cut()

_Key = TypeVar("_Key", bound=tuple[Any, ...])


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


def runs_table(runs: Mapping[_Key, Runs], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return runs as one table of `schema`. Keys are the values of its first columns: a topic, then int32 numbers."""
    tables = [_one_key_table(key, columns, schema) for key, columns in runs.items()]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _one_key_table(key: tuple[Any, ...], runs: Runs, schema: pa.Schema) -> pa.Table:
    """Return the runs of one key as a table, with the key in each row."""
    topic, *numbers = key
    rows = len(runs[0])
    columns: list[pa.Array[Any]] = [pa.array([topic] * rows, pa.string())]
    for number in numbers:
        same = np.full(rows, number, np.int32)
        columns.append(pa.array(same))
    columns += [pa.array(column, pa.int64()) for column in runs]
    return pa.Table.from_arrays(columns, schema=schema)


def by_partition(table: pa.Table) -> Iterator[tuple[TopicPartition, Runs]]:
    """Yield the runs of each target partition. They stand together in the table, as they do in every part."""
    for (topic, partition), runs in split_runs(table):
        yield TopicPartition(topic, partition), runs


def runs_by_partition(table: pa.Table) -> dict[TopicPartition, Runs]:
    """Return the runs of each target partition, wherever in the table they stand."""
    stretches = defaultdict[TopicPartition, list[Runs]](list)
    for tp, runs in by_partition(table):
        stretches[tp].append(runs)
    return joined(stretches)


def joined(stretches: Mapping[TopicPartition, Sequence[Runs]]) -> dict[TopicPartition, Runs]:
    """Return the runs of each partition, joined from several stretches."""
    return {tp: concatenated(runs) for tp, runs in stretches.items()}


def concatenated(stretches: Sequence[Runs]) -> Runs:
    """Return runs of one partition that follow one another as one."""
    sources, targets, counts = zip(*stretches, strict=True)
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(counts)


def split_runs(table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Runs]]:
    """Yield each stretch of rows with the same key: the values in the columns before the runs, and the runs."""
    if not len(table):
        return
    topics: Any = table.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    source, target, count = (table.column(name).to_numpy() for name in _RUNS)
    numbers = [table.column(name).to_numpy() for name in table.schema.names[1 : -len(_RUNS)]]
    changed = np.diff(codes) != 0
    for column in numbers:
        changed |= np.diff(column) != 0
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), len(table)]
    for start, stop in pairwise(edges):
        topic = topics.dictionary[int(codes[start])].as_py()
        key = (topic, *(int(column[start]) for column in numbers))
        yield key, (source[start:stop], target[start:stop], count[start:stop])


def _part_key(restore_id: str, unit: int, name: MapPartName) -> str:
    return layout.restore_key(restore_id, f"map/{unit}/{name}.parquet")


def write_map_part(
    store: Store,
    restore_id: str,
    unit: int,
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

    keys = (_part_key(restore_id, unit, name) for unit, names in units for name in names)
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
    return Cut(records, size, untimed, unmapped)


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
    reading = read_map_parts(store, restore_id, ((unit.number, unit.parts) for unit in units))
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


def previous_name(part: pa.Table) -> str:
    return (part.schema.metadata or {}).get(PREVIOUS, b"").decode(errors="replace")


class _MapFile:
    """A map as Parquet in memory. Its key and its checksum are in the file itself: no other document has them."""

    def __init__(self, key: str, schema: pa.Schema) -> None:
        metadata = {**(schema.metadata or {}), _KEY: key.encode(), _SUM: _NO_SUM}
        self._sink = io.BytesIO()
        self._waiting: list[pa.Table] = []
        self._rows = 0  # of the tables that wait
        self._schema = schema.with_metadata(metadata)
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= _ROWS:
            self._write_rows()

    def _write_rows(self) -> None:
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []
        self._rows = 0

    def data(self) -> bytes:
        """Return the whole file."""
        if self._rows:
            self._write_rows()
        self._writer.close()
        data = self._sink.getvalue()
        # The checksum is of the file with zeros in its place: whoever checks it puts the zeros back.
        return data.replace(_NO_SUM, _sum(data), 1)


def encode(table: pa.Table, key: str) -> bytes:
    """Encode a map or a part, which belongs under `key`."""
    file = _MapFile(key, table.schema)
    file.write(table)
    return file.data()


def _sum(data: bytes) -> bytes:
    return b"sha256:" + hashlib.sha256(data).hexdigest().encode()


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
    `left_out` are counted, but not in the map. Memory holds the file, and at most about `_ROWS` runs."""
    records = Counter[str]()
    cut = NOTHING
    near = defaultdict[TopicPartition, list[Runs]](list)
    file = _MapFile(layout.restore_key(restore_id, layout.OFFSETS), SCHEMA)
    for part in parts:
        cut = cut.plus(part.cut)
        kept: dict[TopicPartition, Runs] = {}
        for tp, runs in by_partition(part.runs):
            _, _, count = runs
            records[tp.topic] += int(count.sum())
            if tp.topic not in left_out:
                kept[tp] = runs
                near[tp].append(around(runs, wanted.get(tp, _EMPTY)))
        file.write(runs_table(kept) if left_out else part.runs)
    known = WrittenMap(records, cut, joined(near))
    return CollectedMap(file.data(), known)


def write_map(
    store: Store,
    restore_id: str,
    parts: Iterable[MapPart],
    wanted: Mapping[TopicPartition, Int64Array] = MappingProxyType({}),
) -> WrittenMap:
    """Write offsets.parquet from parts in order (`collect_map`)."""
    collected = collect_map(restore_id, parts, wanted)
    store.put(layout.restore_key(restore_id, layout.OFFSETS), collected.data)
    return collected.known


def around(runs: Runs, offsets: Int64Array) -> Runs:
    """Return the first and the last run, and the runs by which `OffsetMap` maps `offsets`."""
    source, target, count = runs
    last = len(source) - 1
    after = np.searchsorted(source, offsets, side="right")
    numbers = np.concatenate(([0, last], after - 1, after))
    keep = np.unique(np.clip(numbers, 0, last))
    return source[keep], target[keep], count[keep]


def decode(data: bytes, name: str, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the map or the part that belongs under the key `name`. `CorruptError` for anything else. A file with
    another checksum is refused before it is parsed."""
    sums = re.findall(rb"sha256:[0-9a-f]{64}", data)
    if len(sums) != 1 or _sum(data.replace(sums[0], _NO_SUM)) != sums[0]:
        raise CorruptError(
            f"file {name} does not match its own checksum",
            "take it from a bucket version or another copy: it was changed after it was written",
        )
    try:
        table = read_bounded(data, name, schema.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(
            f"file {name} is not a Parquet table: {error}",
            "take it from a bucket version or another copy: it may have been cut",
        ) from error
    belongs = (table.schema.metadata or {}).get(_KEY, b"").decode(errors="replace")
    if belongs != name:
        raise CorruptError(
            f"file {name} belongs at {belongs!r}",
            "take the right one from a bucket version: this one was copied from elsewhere",
        )
    return table


# The offset map of a flow: parts, each written before its transaction commits, and folded tables, which take the place
# of the parts before them.
#
# mirrors/<source>/<target>/map/<slot>/<number>-<attempt>.parquet is a part, `folded-<number>-<attempt>.parquet` a table
# of everything up to the part of that name. The numbers of a slot's parts rise from 1. Of several parts with one number
# at most one is committed.


MAP_SCHEMA = map_schema("partition", "incarnation")
"""Runs: record `source + i` of `incarnation` is at `target + i` of the remote `topic` and `partition`, for
0 <= i < `count`."""

_FILE = re.compile(r"^(folded-)?([0-9]{10,})-([0-9a-f]+)\.parquet\Z")


class MappedPartition(NamedTuple):
    """A remote partition, and the incarnation of the source's topic that its records come from."""

    remote: TopicPartition
    incarnation: int


class FlowMapPartName(NamedTuple):
    """The name of a part: `<number>-<attempt>` in the note that is committed with a transaction."""

    number: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> FlowMapPartName | None:
        number, _, attempt = text.partition("-")
        if not number.isdecimal() or not attempt:
            return None
        return cls(int(number), attempt)


def flow_runs_table(runs: Mapping[MappedPartition, Runs]) -> pa.Table:
    """Return runs as a table (`MAP_SCHEMA`), in order of partition and incarnation."""
    rows: dict[tuple[str, int, int], Runs] = {}
    for mapped in sorted(runs):
        key = (mapped.remote.topic, mapped.remote.partition, mapped.incarnation)
        rows[key] = runs[mapped]
    return runs_table(rows, MAP_SCHEMA)


def by_incarnation(table: pa.Table) -> Iterator[tuple[MappedPartition, Runs]]:
    """Yield the runs of each partition and incarnation. They stand together in the table."""
    for (topic, partition, incarnation), runs in split_runs(table):
        yield MappedPartition(TopicPartition(topic, partition), incarnation), runs


def folder(source: str, target: str, slot: int) -> str:
    """Return the folder of a slot's files."""
    return layout.mirror_key(source, target, f"map/{slot:04d}/")


def write_flow_map_part(
    store: Store, directory: str, name: FlowMapPartName, runs: pa.Table, previous: FlowMapPartName | None
) -> None:
    """Write a part. `previous` is the last committed part of the slot, None for its first one."""
    key = f"{directory}{name}.parquet"
    metadata = {PREVIOUS: str(previous or "").encode()}
    part = runs.replace_schema_metadata(metadata)
    store.put_new(key, encode(part, key))


# Bound the runs of a partition: the newest stay exact, older ones are joined so that no answer becomes greater.
#
# Every round leaves a transaction marker in the target, so runs grow with rounds. A stretch of neighbouring runs
# becomes one run with as many records, or two if the source has holes in it. An answer within a stretch may then lie
# before the exact answer, by at most the markers and holes that the stretch has. It never lies behind the exact answer,
# for then a group would skip records. A stretch spans at most 1/`SHARE` of its distance to the newest record, so that
# runs grow with the logarithm of the distance. The first run of each stretch is exact.


EXACT = 1024
"""Runs that are never joined: the newest of a partition."""

SLACK = 512
"""Runs beyond `EXACT` that make joining worthwhile."""

SHARE = 64


def thin(runs: Runs) -> Runs:
    """Return the runs of a partition, joined if there are many."""
    source, target, count = runs
    older = len(source) - EXACT
    if older <= SLACK:
        return runs
    head = int(source[-1] + count[-1])
    rows: list[tuple[int, int, int]] = []
    stretch: list[tuple[int, int, int]] = []
    for row in zip(source[:older].tolist(), target[:older].tolist(), count[:older].tolist(), strict=True):
        end = row[0] + row[2]
        if stretch and (end - stretch[0][0]) * SHARE > head - end:
            rows += _join(stretch)
            stretch = []
        stretch.append(row)
    rows += _join(stretch)
    old_source, old_target, old_count = np.array(rows, np.int64).T
    return (
        np.concatenate([old_source, source[older:]]),
        np.concatenate([old_target, target[older:]]),
        np.concatenate([old_count, count[older:]]),
    )


def _join(stretch: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the first run of a stretch as it is, and one run for everything after it.

    That run lies as late in the source and as early in the target as it can. So an answer is as far behind the first
    run as there are records before the source offset at least, and never farther.
    """
    source, target, count = stretch[0]
    records = sum(records_of_run for _, _, records_of_run in stretch)
    last_source, _, last_count = stretch[-1]
    holes = last_source + last_count - source - records
    if not holes:
        return [(source, target, records)]
    return [(source, target, count), (source + count + holes, target + count, records - count)]


# Slots of a flow: a remote partition always belongs to the same slot, whoever applies its records.


SLOTS = 16
"""Slots of a new flow. With more slots a small round has more transactions; with fewer a large round has fewer
tasks."""

DOCUMENT = "flow.json"


class FlowState(Document, frozen=True, kw_only=True):
    """mirrors/<source>/<target>/flow.json: what never changes in a flow, written before its first record is applied.

    `slots` is the number of slots. `target_cluster_id` is the cluster that the records went to."""

    format: Literal["kbackup-flow"] = "kbackup-flow"
    source: str
    target: str
    archive_id: str
    target_cluster_id: str
    slots: int
    created_at: str


def slot_of(remote: TopicPartition, slots: int) -> int:
    """Return the slot of a remote partition."""
    return zlib.crc32(f"{remote.topic}/{remote.partition}".encode()) % slots


def read_flow(store: Store, source: str, target: str) -> FlowState | None:
    """Return the state of a flow, None for one that never began."""
    key = layout.mirror_key(source, target, DOCUMENT)
    try:
        return load(FlowState, store.get(key), key)
    except NotFoundError:
        return None


FOLD = 16
"""So many parts after the folded table make a new table due."""

_ATTEMPTS = 3


class _ReadPart(NamedTuple):
    """The runs of a file, and the part before it."""

    runs: pa.Table
    previous: FlowMapPartName | None


@dataclass
class SlotMap:
    """The offset map of one slot in memory: the newest folded table and the committed parts after it. `head` is the
    last part in this map, `folded` the last part in the newest folded table.

    `_runs` are in order of source offset, as a list of stretches that is joined when somebody asks for it. `_ends` has
    the target offset after the last record of each partition.
    """

    store: Store
    directory: str
    head: FlowMapPartName | None = None
    folded: FlowMapPartName | None = None
    _runs: dict[MappedPartition, list[Runs]] = field(default_factory=dict)
    _ends: dict[TopicPartition, int] = field(default_factory=dict)

    def runs(self, key: MappedPartition) -> Runs:
        """Return the runs of a partition's incarnation, in order of source offset."""
        stretches = self._runs.get(key)
        if not stretches:
            return _EMPTY, _EMPTY, _EMPTY
        if len(stretches) > 1:
            stretches = [concatenated(stretches)]
            self._runs[key] = stretches
        return stretches[0]

    @property
    def incarnations(self) -> list[MappedPartition]:
        return sorted(self._runs)

    def add(self, name: FlowMapPartName, previous: FlowMapPartName | None, table: pa.Table) -> bool:
        """Add a committed part and return True. If the part does not follow the head, add nothing and return False."""
        if previous != self.head:
            return False
        self._append(table)
        self.head = name
        return True

    def _append(self, table: pa.Table) -> None:
        for key, (source, target, count) in by_incarnation(table):
            next_source = 0
            if key in self._runs:
                last_source, _, last_count = self._runs[key][-1]
                next_source = int(last_source[-1] + last_count[-1])
            next_target = self._ends.get(key.remote, 0)
            if int(target[0]) < next_target or int(source[0]) < next_source:
                # the remote topic was made anew: nothing of what was applied before is in it
                self._runs = {known: runs for known, runs in self._runs.items() if known.remote != key.remote}
            self._runs.setdefault(key, []).append((source, target, count))
            self._ends[key.remote] = int(target[-1] + count[-1])

    def _list(self) -> tuple[list[FlowMapPartName], list[FlowMapPartName]]:
        """Return the names of the parts and of the folded tables, in order."""
        parts: list[FlowMapPartName] = []
        folded: list[FlowMapPartName] = []
        for entry in self.store.list(self.directory):
            match = _FILE.match(entry.key.removeprefix(self.directory))
            if match is None:
                continue
            name = FlowMapPartName(int(match[2]), match[3])
            if match[1]:
                folded.append(name)
            else:
                parts.append(name)
        return sorted(parts), sorted(folded)

    def _read(self, file: FlowMapPartName | str) -> _ReadPart:
        key = f"{self.directory}{file}.parquet"
        table = decode(self.store.get(key), key, MAP_SCHEMA)
        previous = FlowMapPartName.parse(previous_name(table))
        return _ReadPart(table.replace_schema_metadata(None), previous)

    @property
    def _head_number(self) -> int:
        return self.head.number if self.head is not None else 0

    def _read_after_head(self, parts: list[FlowMapPartName]) -> dict[FlowMapPartName, _ReadPart]:
        """Return those of `parts` that come after the head, by name in their order."""
        later = [name for name in parts if name.number > self._head_number]
        return dict(zip(later, in_threads(self._read, later, _THREADS), strict=True))

    def followers(self) -> list[tuple[FlowMapPartName, pa.Table]]:
        """Return the parts that follow the head. At most one is committed; only the target knows which."""
        parts, _ = self._list()
        read = self._read_after_head(parts)
        return [(name, part.runs) for name, part in read.items() if part.previous == self.head]

    def load(self, head: FlowMapPartName | None) -> pa.Table:
        """Go on to the part `head`, which is committed; if it is None, to the last part that another part follows.
        Return the runs of the parts that were added, without the runs of a folded table."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._load(head)
            except NotFoundError as error:  # a writer has folded the part and deleted it since the listing
                if attempt + 1 == _ATTEMPTS:
                    raise CorruptError(
                        f"the offset map under {self.directory} lacks a part that was committed ({error.message})",
                        "take it from a bucket version or another copy of the archive",
                    ) from error
        raise AssertionError

    def _load(self, head: FlowMapPartName | None) -> pa.Table:
        parts, folded = self._list()
        if folded and folded[-1].number > self._head_number:
            table = self._read(f"folded-{folded[-1]}")
            self._runs = {}
            self._ends = {}
            self._append(table.runs)
            self.head = self.folded = folded[-1]
        read = self._read_after_head(parts)
        if head is None:
            followed = [part.previous for part in read.values() if part.previous is not None]
            head = max(followed, default=None)
        added = [MAP_SCHEMA.empty_table()]
        for name in self._chain_to(head, read):
            part = read[name]
            if not self.add(name, part.previous, part.runs):
                raise CorruptError(
                    f"the part {name} of the offset map under {self.directory} follows {part.previous or 'no part'}, "
                    f"not {self.head or 'no part'}",
                    "take the missing parts from a bucket version or another copy of the archive",
                )
            added.append(part.runs)
        return pa.concat_tables(added)

    def _chain_to(
        self, last: FlowMapPartName | None, read: Mapping[FlowMapPartName, _ReadPart]
    ) -> list[FlowMapPartName]:
        """Return the parts from the head (exclusive) to `last`, in order, as each names the part before it.
        `NotFoundError` if one of them was not `read`."""
        chain: list[FlowMapPartName] = []
        name = last
        while name is not None and name.number > self._head_number:
            if name not in read:
                raise NotFoundError(f"part {name} is missing")
            chain.append(name)
            name = read[name].previous
        chain.reverse()
        return chain

    @property
    def merge_due(self) -> bool:
        folded = self.folded.number if self.folded is not None else 0
        return self.head is not None and self.head.number - folded >= FOLD

    def merge_map_parts(self) -> None:
        """Write a folded table of everything. Delete the parts that are in the folded table before it, and the tables
        older than that one."""
        runs: dict[MappedPartition, Runs] = {}
        for mapped in self._runs:
            runs[mapped] = thin(self.runs(mapped))
        self._runs = {mapped: [thinned] for mapped, thinned in runs.items()}
        key = f"{self.directory}folded-{self.head}.parquet"
        table = flow_runs_table(runs)
        self.store.put(key, encode(table, key))  # two writers' tables of one name have the same runs: either may stay
        if self.folded is not None:
            before = self.folded.number
            parts, folded = self._list()
            old = [str(name) for name in parts if name.number <= before]
            old += [f"folded-{name}" for name in folded if name.number < before]
            self.store.delete([f"{self.directory}{name}.parquet" for name in old])
        self.folded = self.head


@dataclass
class FlowMap:
    """The offset map of the flow `source->target` with `slots` slots, 0 for a flow that never began. The files of a
    slot are read when somebody asks for a partition of that slot.

    `heads` names the last committed part of each slot, as the notes of the applied positions do. Without `heads` a slot
    ends at the last part that another part follows: only the target knows whether the very last part was committed.
    """

    store: Store
    source: str
    target: str
    slots: int
    heads: Mapping[int, FlowMapPartName] | None = None
    _loaded: dict[int, SlotMap] = field(default_factory=dict)

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap:
        """Return the map of one remote partition, for source offsets of `incarnation`. `next` is the target offset
        after the last record of that incarnation, 0 if there is none."""
        if not self.slots:
            return OffsetMap(_EMPTY, _EMPTY, _EMPTY, 0)
        slot = self.slot(slot_of(remote, self.slots))
        source, target, count = slot.runs(MappedPartition(remote, incarnation))
        following = int(target[-1] + count[-1]) if len(target) else 0
        return OffsetMap(source, target, count, following)

    def slot(self, number: int) -> SlotMap:
        """Return the map of a slot, read from the store at the first call."""
        if number not in self._loaded:
            slot = SlotMap(self.store, folder(self.source, self.target, number))
            if self.heads is None:
                slot.load(None)
            elif number in self.heads:
                slot.load(self.heads[number])
            self._loaded[number] = slot
        return self._loaded[number]


def open_map(store: Store, source: str, target: str, heads: Mapping[int, FlowMapPartName] | None = None) -> FlowMap:
    """Return the offset map of a flow from its files in `store`: the store of the state, usually the archive's. `heads`
    (`mirror.apply.pending.heads_of`) let the map have the newest part of each slot as well."""
    flow = read_flow(store, source, target)
    slots = flow.slots if flow is not None else 0
    return FlowMap(store, source, target, slots, heads)
