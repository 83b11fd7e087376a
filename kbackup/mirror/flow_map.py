"""The offset map of a flow: parts, each written before its transaction commits, and folded tables, which take the place
of the parts before them.

mirrors/<source>/<target>/map/<slot>/<number>-<attempt>.parquet is a part, `folded-<number>-<attempt>.parquet` a table
of everything up to the part of that name. The numbers of a slot's parts rise from 1. Of several parts with one number
at most one is committed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import Document, load
from kbackup.archive.restores.offset_map import (
    PREVIOUS,
    OffsetMap,
    Runs,
    concatenated,
    decode,
    encode,
    map_schema,
    previous_name,
    runs_table,
    split_runs,
)
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import in_threads

_THREADS = 8
_EMPTY = np.empty(0, np.int64)

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
    # Not at every run more: the same older ones would be gone through again at each fold.
    if older <= SLACK:
        return runs
    head = int(source[-1] + count[-1])
    old_runs = zip(source[:older].tolist(), target[:older].tolist(), count[:older].tolist(), strict=True)
    rows: list[tuple[int, int, int]] = []
    stretch: list[tuple[int, int, int]] = []
    for run in old_runs:
        first, _, records = run
        end = first + records
        if stretch:
            begin, _, _ = stretch[0]
            if (end - begin) * SHARE > head - end:
                rows += _join(stretch)
                stretch = []
        stretch.append(run)
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
    # By CRC-32, which the format names: every process of a flow must come to the same slot, or nobody is fenced.
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
            # Offsets of a log only grow. Where one goes back, the remote topic was made anew, and has nothing of what
            # was applied before: neither of this incarnation nor of earlier ones.
            if int(target[0]) < next_target or int(source[0]) < next_source:
                others = [known for known in self._runs if known.remote != key.remote]
                self._runs = {known: self._runs[known] for known in others}
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
        """Return the `parts` that come after the head, by name in their order."""
        # Of the head's own number there may be more parts: of attempts that were given up.
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
        # At the first load, or where another process has folded parts that this map has not read yet, and may have
        # deleted them.
        if folded and folded[-1].number > self._head_number:
            table = self._read(f"folded-{folded[-1]}")
            self._runs = {}
            self._ends = {}
            self._append(table.runs)
            self.head = self.folded = folded[-1]
        read = self._read_after_head(parts)
        # A writer names the part before its own only after that part's transaction was committed.
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
        # Joined here and nowhere else: the map in memory and the one in the file give the same answers.
        runs: dict[MappedPartition, Runs] = {}
        for mapped in self._runs:
            runs[mapped] = thin(self.runs(mapped))
        self._runs = {mapped: [thinned] for mapped, thinned in runs.items()}
        key = f"{self.directory}folded-{self.head}.parquet"
        table = flow_runs_table(runs)
        # Two writers' tables of one name have the same runs: either may stay.
        self.store.put(key, encode(table, key))
        # The new table is there before anything goes. What it replaces stays until the next fold, for readers that have
        # listed the files already; one that is slower than 16 transactions lists again.
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
