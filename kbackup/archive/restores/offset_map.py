"""Offsets of the source to offsets of the target, by the broker's own word on where each record went."""

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
    """`how`: the record itself was restored; it was missing and the next one counts; there is nothing after
    it; it lies before the first restored record; nothing was restored; the target's log has lost the place
    since, and its first record counts."""

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
        return mapped if mapped.offset >= self.start else Mapped(self.start, "expired")

    def _restored(self, committed: int) -> Mapped:
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
    """The map onto the very log that was archived: offsets are what they were, as far as it still has them
    (`start` to `end`)."""

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
# A restore unit writes one part before each of its transactions is committed and commits the part's name with
# it, so that the parts of committed transactions, and no others, can be found again after a crash. Parts of one
# attempt are numbered; each names the part of the attempt before that it goes on from.


def map_schema(*numbers: str) -> pa.Schema:
    """Return the schema of runs by topic and the int32 columns `numbers`."""
    types: dict[str, pa.DataType] = {"topic": pa.string(), **dict.fromkeys(numbers, pa.int32())}
    types |= dict.fromkeys(("source", "target", "count"), pa.int64())
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


SCHEMA = map_schema("partition")
PREVIOUS = b"kbackup.previous"
_CUT = b"kbackup.cut"
_UNMAPPED = b"kbackup.unmapped"
_KEY = b"kbackup.key"
_SUM = b"kbackup.sum"
_NO_SUM = b"sha256:" + b"0" * 64
_ROWS = 1 << 20  # of a map in one row group of its file
_THREADS = 8
_EMPTY = np.empty(0, np.int64)


class MapPartName(NamedTuple):
    """Written as `<attempt>-<number>` in the progress that is committed with a transaction."""

    attempt: str
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> MapPartName | None:
        attempt, _, number = text.rpartition("-")
        return cls(attempt, int(number)) if attempt and number.isdecimal() else None


class Cut(NamedTuple):
    """What only the records tell. Of parts with a window alone: the records in it, their bytes, and how many were left
    out for want of a timestamp. Of all parts: the records whose schemas could not be mapped."""

    records: int = 0
    bytes: int = 0
    untimed: int = 0
    unmapped: tuple[UnmappedRecords, ...] = ()

    def plus(self, other: Cut) -> Cut:
        return Cut(
            self.records + other.records,
            self.bytes + other.bytes,
            self.untimed + other.untimed,
            sum_unmapped((*self.unmapped, *other.unmapped)),
        )


NOTHING = Cut()

_Key = TypeVar("_Key", bound=tuple[Any, ...])


class MapPart(NamedTuple):
    """The map of a transaction, and what windows selected for it."""

    runs: pa.Table
    cut: Cut = NOTHING


class WrittenMap(NamedTuple):
    """What a restore needs to know of the map that it wrote: records by topic, what windows selected, and of each
    partition the runs by which the wanted offsets are mapped (`around`)."""

    records: Mapping[str, int]
    cut: Cut
    runs: Mapping[TopicPartition, Runs]


def runs_table(runs: Mapping[_Key, Runs], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return runs as one table of `schema`. Keys are the values of its first columns: a topic, then int32 numbers."""
    tables = [
        pa.Table.from_arrays(
            [
                pa.array([topic] * len(columns[0]), pa.string()),
                *(pa.array(np.full(len(columns[0]), number, np.int32)) for number in numbers),
                *(pa.array(column, pa.int64()) for column in columns),
            ],
            schema=schema,
        )
        for (topic, *numbers), columns in runs.items()
    ]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def by_partition(table: pa.Table) -> Iterator[tuple[TopicPartition, Runs]]:
    """Yield the runs of a table in which each target partition's stand together, as in every part."""
    for (topic, partition), runs in split_runs(table):
        yield TopicPartition(topic, partition), runs


def runs_by_partition(table: pa.Table) -> dict[TopicPartition, Runs]:
    """Return the runs of each target partition, wherever they stand."""
    pieces = defaultdict[TopicPartition, list[Runs]](list)
    for tp, runs in by_partition(table):
        pieces[tp].append(runs)
    return joined(pieces)


def joined(pieces: Mapping[TopicPartition, Sequence[Runs]]) -> dict[TopicPartition, Runs]:
    whole: dict[TopicPartition, Runs] = {}
    for tp, some in pieces.items():
        source, target, count = (np.concatenate(columns) for columns in zip(*some, strict=True))
        whole[tp] = source, target, count
    return whole


def split_runs(table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Runs]]:
    """Yield the runs of each stretch of rows with the same values in the columns before the runs, and these values."""
    if not len(table):
        return
    topics: Any = table.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    *numbers, source, target, count = (table.column(name).to_numpy() for name in table.schema.names[1:])
    changed = np.any([np.diff(column) != 0 for column in (codes, *numbers)], axis=0)
    for a, b in pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), len(table)]):
        topic = topics.dictionary[int(codes[a])].as_py()
        yield (topic, *(int(column[a]) for column in numbers)), (source[a:b], target[a:b], count[a:b])


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
    """`cut` is what windows selected since the part before."""
    numbers = (cut.records, cut.bytes, cut.untimed)
    metadata = {PREVIOUS: str(previous or "").encode(), _CUT: ",".join(map(str, numbers)).encode()}
    if cut.unmapped:
        metadata[_UNMAPPED] = encode_unmapped(cut.unmapped)
    key = _part_key(restore_id, unit, name)
    store.put_new(key, encode(runs.replace_schema_metadata(metadata), key))


def committed_names(store: Store, restore_id: str, unit: int, last: MapPartName | None) -> list[MapPartName]:
    """Return the parts that a unit has committed, in order, `last` being the one named in its progress."""
    names: list[MapPartName] = []
    while last is not None:
        attempt = [MapPartName(last.attempt, n) for n in range(last.number + 1)]
        key = _part_key(restore_id, unit, attempt[0])
        last, names = previous_of(decode(store.get(key), key)), attempt + names
    return names


def read_map_parts(
    store: Store, restore_id: str, units: Iterable[tuple[int, Sequence[MapPartName]]]
) -> Iterator[MapPart]:
    """Yield the named parts of units in order; a few are read side by side."""
    keys = (_part_key(restore_id, unit, name) for unit, names in units for name in names)
    while some := list(islice(keys, 2 * _THREADS)):
        for table in in_threads(lambda key: decode(store.get(key), key), some, _THREADS):
            yield MapPart(table.replace_schema_metadata(None), _cut_of(table.schema.metadata))


def _cut_of(metadata: Mapping[bytes, bytes]) -> Cut:
    """Return the counts of a part; nothing where it is older than they are."""
    counts, unmapped = metadata.get(_CUT), metadata.get(_UNMAPPED)
    numbers = "0,0,0" if counts is None else counts.decode()
    records, size, untimed = map(int, numbers.split(","))
    return Cut(records, size, untimed, () if unmapped is None else decode_unmapped(unmapped))


class MappedUnit(NamedTuple):
    """A unit, its partitions on the target, and the parts of its map."""

    number: int
    partitions: Sequence[TopicPartition]
    parts: Sequence[MapPartName]


def in_order(store: Store, restore_id: str, units: Iterable[MappedUnit]) -> Iterator[MapPart]:
    """Yield the maps of units in order of partition. Those of units with several partitions are held until their turn
    comes."""
    held: dict[TopicPartition, list[Runs]] = {}

    def due(before: TopicPartition | None = None) -> Iterator[MapPart]:
        for tp in sorted(tp for tp in held if before is None or tp < before):
            yield MapPart(pa.concat_tables(runs_table({tp: runs}) for runs in held.pop(tp)))

    units = sorted(units, key=lambda unit: min(unit.partitions))
    reading = read_map_parts(store, restore_id, ((unit.number, unit.parts) for unit in units))
    for unit in units:
        yield from due(min(unit.partitions))
        for part in islice(reading, len(unit.parts)):
            if len(unit.partitions) == 1:
                yield part
                continue
            for tp, runs in by_partition(part.runs):
                held.setdefault(tp, []).append(runs)
            yield MapPart(SCHEMA.empty_table(), part.cut)
    yield from due()


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
    """A map as Parquet in memory, with its place and its own checksum: nothing else vouches for the file."""

    def __init__(self, key: str, schema: pa.Schema) -> None:
        told = {**(schema.metadata or {}), _KEY: key.encode(), _SUM: _NO_SUM}
        self._sink, self._waiting, self._rows = io.BytesIO(), list[pa.Table](), 0
        self._schema = schema.with_metadata(told)
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= _ROWS:
            self._write_rows()

    def _write_rows(self) -> None:
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0

    def data(self) -> bytes:
        """Return the whole file."""
        if self._rows:
            self._write_rows()
        self._writer.close()
        data = self._sink.getvalue()
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
    `left_out` are counted, but not in the map. Memory holds the file, and of the runs `_ROWS` at once."""
    records, cut, near = Counter[str](), NOTHING, defaultdict[TopicPartition, list[Runs]](list)
    file = _MapFile(layout.restore_key(restore_id, layout.OFFSETS), SCHEMA)
    for part in parts:
        cut = cut.plus(part.cut)
        kept: dict[TopicPartition, Runs] = {}
        for tp, runs in by_partition(part.runs):
            records[tp.topic] += int(runs[2].sum())
            if tp.topic not in left_out:
                kept[tp] = runs
                near[tp].append(around(runs, wanted.get(tp, _EMPTY)))
        file.write(runs_table(kept) if left_out else part.runs)
    return CollectedMap(file.data(), WrittenMap(records, cut, joined(near)))


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
    """Return the first and the last run, and those by which `OffsetMap` maps `offsets`."""
    source, target, count = runs
    after = np.searchsorted(source, offsets, side="right")
    keep = np.unique(np.clip([0, len(source) - 1, *(after - 1), *after], 0, len(source) - 1))
    return source[keep], target[keep], count[keep]


def decode(data: bytes, name: str, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the map or the part that belongs under the key `name`; `CorruptError` for anything else, before it is
    parsed."""
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


# The offset map of a flow: parts, each written before its transaction commits, and the tables that they are folded
# into.
#
# mirrors/<source>/<target>/map/<slot>/<number>-<attempt>.parquet is a part, `folded-<number>-<attempt>.parquet` a table
# of everything up to the part of that name. The numbers of a slot's parts rise from 1; of several parts of one number
# one at most is committed.


MAP_SCHEMA = map_schema("partition", "incarnation")
"""Runs: record `source + i` of `incarnation` is at `target + i` of the remote `topic` and `partition`, for
0 <= i < `count`."""

_FILE = re.compile(r"^(folded-)?([0-9]{10,})-([0-9a-f]+)\.parquet\Z")


class MappedPartition(NamedTuple):
    """A remote partition, and the incarnation of the source's topic that its records come from."""

    remote: TopicPartition
    incarnation: int


class FlowMapPartName(NamedTuple):
    """Written as `<number>-<attempt>` in the note that is committed with a transaction."""

    number: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> FlowMapPartName | None:
        number, _, attempt = text.partition("-")
        return cls(int(number), attempt) if number.isdecimal() and attempt else None


def flow_runs_table(runs: Mapping[MappedPartition, Runs]) -> pa.Table:
    """Return runs as a table (`MAP_SCHEMA`), in order of partition and incarnation."""
    rows = {(*remote, incarnation): columns for (remote, incarnation), columns in sorted(runs.items())}
    return runs_table(rows, MAP_SCHEMA)


def by_incarnation(table: pa.Table) -> Iterator[tuple[MappedPartition, Runs]]:
    """Yield the runs of each partition and incarnation, which stand together in a table."""
    for (topic, partition, incarnation), runs in split_runs(table):
        yield MappedPartition(TopicPartition(topic, partition), incarnation), runs


def folder(source: str, target: str, slot: int) -> str:
    return layout.mirror_key(source, target, f"map/{slot:04d}/")


def write_flow_map_part(
    store: Store, directory: str, name: FlowMapPartName, runs: pa.Table, previous: FlowMapPartName | None
) -> None:
    """Write a part. `previous` is the last committed part of the slot, None for its first one."""
    key = f"{directory}{name}.parquet"
    metadata = {PREVIOUS: str(previous or "").encode()}
    store.put_new(key, encode(runs.replace_schema_metadata(metadata), key))


# Bound the runs of a partition: the newest stay exact, older ones are joined so that no answer becomes greater.
#
# Every round leaves a transaction marker in the target, so runs grow with rounds. A stretch of neighbouring runs
# becomes one run with as many records, or two where the source has holes in it. An answer within a stretch may then
# lie before the exact one, by at most the markers and holes that the stretch has. An answer never lies behind the
# exact one. What a stretch spans is at most 1/`SHARE` of its distance to the newest record, so that runs grow with
# the logarithm of the distance. The first run of each stretch is exact.


EXACT = 1024
"""Runs that are never joined: the newest of a partition."""

SLACK = 512
"""Runs beyond `EXACT` that make joining worthwhile."""

SHARE = 64


def thin(runs: Runs) -> Runs:
    """Return the runs, joined where there are many."""
    source, target, count = runs
    older = len(source) - EXACT
    if older <= SLACK:
        return runs
    head = int(source[-1] + count[-1])
    rows: list[tuple[int, int, int]] = []
    stretch: list[tuple[int, int, int]] = []
    for row in zip(*(column[:older].tolist() for column in runs), strict=True):
        end = row[0] + row[2]
        if stretch and (end - stretch[0][0]) * SHARE > head - end:
            rows += _join(stretch)
            stretch = []
        stretch.append(row)
    rows += _join(stretch)
    joined = np.array(rows, np.int64).T
    source, target, count = (np.concatenate([old, new[older:]]) for old, new in zip(joined, runs, strict=True))
    return source, target, count


def _join(stretch: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the first run as it is, and everything after it as late in the source and as early in the target as can
    be: so many records as lie before a source offset at least, so far is the answer from the first run's end."""
    source, target, count = stretch[0]
    records = sum(c for _, _, c in stretch)
    holes = stretch[-1][0] + stretch[-1][2] - source - records
    if not holes:
        return [(source, target, records)]
    return [(source, target, count), (source + count + holes, target + count, records - count)]


# Slots of a flow: a remote partition always belongs to the same one, whoever applies it.


SLOTS = 16
"""Of a new flow. More of them are more transactions in a small round, fewer are fewer tasks of a large one."""

DOCUMENT = "flow.json"


class FlowState(Document, frozen=True, kw_only=True):
    """mirrors/<source>/<target>/flow.json: what never changes of a flow, written before its first record is applied.

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
"""Parts after the folded table that make a new one due."""

_ATTEMPTS = 3


@dataclass
class SlotMap:
    """The offset map of one slot in memory: the newest folded table and the committed parts after it. `head` is the
    last part that is in it, `folded` the last that the newest folded table contains."""

    store: Store
    directory: str
    head: FlowMapPartName | None = None
    folded: FlowMapPartName | None = None
    _runs: dict[MappedPartition, list[Runs]] = field(default_factory=dict)
    _ends: dict[TopicPartition, int] = field(default_factory=dict)

    def runs(self, key: MappedPartition) -> Runs:
        """Return the runs of a partition's incarnation, in order of source offset."""
        pieces = self._runs.get(key)
        if not pieces:
            return _EMPTY, _EMPTY, _EMPTY
        if len(pieces) > 1:
            source, target, count = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
            self._runs[key] = pieces = [(source, target, count)]
        return pieces[0]

    @property
    def incarnations(self) -> list[MappedPartition]:
        return sorted(self._runs)

    def add(self, name: FlowMapPartName, previous: FlowMapPartName | None, table: pa.Table) -> bool:
        """Add a committed part. False, and nothing is added, where it does not follow the head."""
        if previous != self.head:
            return False
        self._append(table)
        self.head = name
        return True

    def _append(self, table: pa.Table) -> None:
        for key, (source, target, count) in by_incarnation(table):
            pieces = self._runs.get(key)
            following = int(pieces[-1][0][-1] + pieces[-1][2][-1]) if pieces else 0
            if int(target[0]) < self._ends.get(key.remote, 0) or int(source[0]) < following:
                # the remote topic was made anew: nothing of what was applied before is in it
                self._runs = {known: runs for known, runs in self._runs.items() if known.remote != key.remote}
            self._runs.setdefault(key, []).append((source, target, count))
            self._ends[key.remote] = int(target[-1] + count[-1])

    def _list(self) -> tuple[list[FlowMapPartName], list[FlowMapPartName]]:
        """Return the names of the parts and of the folded tables, in order."""
        parts: list[FlowMapPartName] = []
        folded: list[FlowMapPartName] = []
        for entry in self.store.list(self.directory):
            if match := _FILE.match(entry.key.removeprefix(self.directory)):
                (folded if match[1] else parts).append(FlowMapPartName(int(match[2]), match[3]))
        return sorted(parts), sorted(folded)

    def _read(self, file: FlowMapPartName | str) -> tuple[pa.Table, FlowMapPartName | None]:
        """Return the runs of a file, and the part before it."""
        key = f"{self.directory}{file}.parquet"
        table = decode(self.store.get(key), key, MAP_SCHEMA)
        return table.replace_schema_metadata(None), FlowMapPartName.parse(previous_name(table))

    def _read_after_head(
        self, parts: list[FlowMapPartName]
    ) -> dict[FlowMapPartName, tuple[pa.Table, FlowMapPartName | None]]:
        known = self.head.number if self.head else 0
        later = [name for name in parts if name.number > known]
        return dict(zip(later, in_threads(self._read, later, _THREADS), strict=True))

    def followers(self) -> list[tuple[FlowMapPartName, pa.Table]]:
        """Return the parts that follow the head. At most one is committed; only the target knows which."""
        read = self._read_after_head(self._list()[0])
        return [(name, table) for name, (table, previous) in read.items() if previous == self.head]

    def load(self, head: FlowMapPartName | None) -> pa.Table:
        """Go on to the part `head`, which is committed; None: to the last part that another one follows. Returns the
        runs of the parts that were added, without the runs of a folded table."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._load(head)
            except NotFoundError as error:  # folded and deleted meanwhile
                if attempt + 1 == _ATTEMPTS:
                    raise CorruptError(
                        f"the offset map under {self.directory} lacks a part that was committed ({error.message})",
                        "take it from a bucket version or another copy of the archive",
                    ) from error
        raise AssertionError

    def _load(self, head: FlowMapPartName | None) -> pa.Table:
        parts, folded = self._list()
        if folded and folded[-1].number > (self.head.number if self.head else 0):
            self._runs, self._ends = {}, {}
            self._append(self._read(f"folded-{folded[-1]}")[0])
            self.head = self.folded = folded[-1]
        read = self._read_after_head(parts)
        name = head or max((previous for _, previous in read.values() if previous is not None), default=None)
        chain: list[FlowMapPartName] = []
        while name is not None and name.number > (self.head.number if self.head else 0):
            if name not in read:
                raise NotFoundError(f"part {name} is missing")
            chain.insert(0, name)
            name = read[name][1]
        for name in chain:
            table, previous = read[name]
            if not self.add(name, previous, table):
                raise CorruptError(
                    f"the part {name} of the offset map under {self.directory} follows {previous or 'no part'}, not "
                    f"{self.head or 'no part'}",
                    "take the missing parts from a bucket version or another copy of the archive",
                )
        return pa.concat_tables([MAP_SCHEMA.empty_table(), *(read[name][0] for name in chain)])

    @property
    def merge_due(self) -> bool:
        return self.head is not None and self.head.number - (self.folded.number if self.folded else 0) >= FOLD

    def merge_map_parts(self) -> None:
        """Write a table of everything, and delete what the table before it stands for already."""
        runs = {mapped: thin(self.runs(mapped)) for mapped in self._runs}
        self._runs = {mapped: [thinned] for mapped, thinned in runs.items()}
        key = f"{self.directory}folded-{self.head}.parquet"
        self.store.put(
            key, encode(flow_runs_table(runs), key)
        )  # two writers' tables of one name say the same: either stays
        if self.folded is not None:
            before = self.folded.number
            parts, folded = self._list()
            old = [str(name) for name in parts if name.number <= before]
            old += [f"folded-{name}" for name in folded if name.number < before]
            self.store.delete([f"{self.directory}{name}.parquet" for name in old])
        self.folded = self.head


@dataclass
class FlowMap:
    """The offset map of the flow `source->target` with `slots` slots, 0 for a flow that never began. It reads a slot's
    files when a partition of that slot is asked for.

    `heads` names the last committed part of each slot, as the notes of the applied positions do. Without them a slot
    ends at the last part that another one follows: whether the very last one was committed is known in the target.
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
        source, target, count = self.slot(slot_of(remote, self.slots)).runs(MappedPartition(remote, incarnation))
        return OffsetMap(source, target, count, int(target[-1] + count[-1]) if len(target) else 0)

    def slot(self, number: int) -> SlotMap:
        """Return the map of a slot, read from the store at the first call."""
        if number not in self._loaded:
            slot = SlotMap(self.store, folder(self.source, self.target, number))
            if self.heads is None or number in self.heads:
                slot.load(None if self.heads is None else self.heads[number])
            self._loaded[number] = slot
        return self._loaded[number]


def open_map(store: Store, source: str, target: str, heads: Mapping[int, FlowMapPartName] | None = None) -> FlowMap:
    """Return the offset map of a flow from its files in `store`: the store of the state, usually the archive's. `heads`
    (`mirror.apply.pending.heads_of`) let the map have the newest part of each slot as well."""
    flow = read_flow(store, source, target)
    return FlowMap(store, source, target, flow.slots if flow is not None else 0, heads)
