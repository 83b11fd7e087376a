"""Find orphans: objects that no catalog refers to and that no reader may still have open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import astuple

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, TableRef
from kbackup.archive.catalog.opening import Committed, read_catalog, state_of
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Manifest, load
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import ObjectInfo, Store
from kbackup.types import Incarnation, IncarnationPartition

_THREADS = 16
_REPAIR = "take it from a bucket version or another copy of the archive, or run 'kbackup repair'"
Ends = Mapping[IncarnationPartition, int]


@dataclass(frozen=True)
class Orphans:
    """Objects to delete, catalogs first, and `upto`, the newest of the catalogs among them or before them.

    `unreadable` is a catalog of the grace time that can't be read, or that is not the one that the next catalog names:
    nothing is deleted until its time is over."""

    upto: int
    objects: tuple[ObjectInfo, ...]
    unreadable: int | None = None

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.objects)


def find_orphans(store: Store, newest: Committed, objects: Iterable[ObjectInfo], cutoff: float) -> Orphans:
    """Return the orphans among `objects`, a listing of the whole store, that are not needed by readers who opened the
    archive after `cutoff` (seconds since the epoch by the store's clock).

    Whoever may write can commit any catalog and overwrite others, but not make an object older than its last write.
    Therefore the oldest catalog that decides was written before `cutoff` and has its checksums of everything else, and
    only objects that were written before `cutoff` are orphans. No catalog's own numbers or times count.
    """
    state = newest.state
    listed = {
        number: each
        for each in store.list(layout.CATALOG)
        if (number := layout.parse_catalog_key(each.key)) is not None and number <= state.number
    }
    first = max((number for number, each in listed.items() if each.modified <= cutoff), default=None)
    if first is None:
        return Orphans(0, ())
    window = sorted(number for number in listed if first <= number < state.number)
    with ThreadPoolExecutor(_THREADS) as pool:
        catalogs = list(pool.map(lambda number: _readable(store, number, state.archive_id), window))
    unreadable = [number for number, catalog in zip(window, catalogs, strict=True) if catalog is None]
    read = [*filter(None, catalogs), *filter(None, [newest.catalog])]
    replaced = [
        before.number
        for before, after in pairwise(read)
        if after.previous is not None
        and after.previous.number == before.number
        and after.previous.checksum != before.checksum
    ]
    if unreadable or replaced:
        return Orphans(0, (), min(unreadable + replaced))
    deciding = [
        Committed(state_of(store, catalog), catalog)
        for catalog in read[:-1]
        if catalog.number in (first, catalog.reinstated)
    ]
    deciding.append(newest)
    number = first
    try:
        for committed in deciding:
            number = committed.state.number
            referred_keys(committed)
            _newest_manifest(store, committed)
    except (NotFoundError, CorruptError):
        return Orphans(0, (), number)
    return _orphans(store, deciding, listed.values(), objects, cutoff)


def _readable(store: Store, number: int, archive_id: str) -> Catalog | None:
    try:
        return read_catalog(store, number, archive_id)
    except (NotFoundError, CorruptError):
        return None


def _newest_manifest(store: Store, committed: Committed) -> Manifest | None:
    point = committed.state.newest
    if point is None:
        return None
    manifest = load(Manifest, store.get(point.documents[0]), point.documents[0])
    if manifest.checksum != point.manifest:
        raise CorruptError(f"file {point.documents[0]} is not the manifest that the catalog names", _REPAIR)
    return manifest


def _orphans(
    store: Store,
    deciding: Sequence[Committed],
    catalogs: Iterable[ObjectInfo],
    objects: Iterable[ObjectInfo],
    cutoff: float,
) -> Orphans:
    """Return the objects that are orphans by the oldest and by the newest of the catalogs that decide, oldest first."""
    first = deciding[0].state.number
    referred = set[str]().union(*map(referred_keys, deciding))
    filled = {place for committed in deciding for place in _filled(committed.state)}
    ends = [(c.state, _ends(c.state, _newest_manifest(store, c))) for c in (deciding[0], deciding[-1])]
    oldest = layout.catalog_key(first)
    old = [each for each in catalogs if each.key < oldest and each.modified <= cutoff]
    others = [
        each
        for each in objects
        if each.modified <= cutoff
        and layout.parse_catalog_key(each.key) is None
        and each.key not in referred
        and all(_may_go(each.key, state, filled, end) for state, end in ends)
    ]
    return Orphans(first - 1, (*sorted(old), *sorted(others)))


def referred_keys(committed: Committed) -> set[str]:
    """The keys that a catalog refers to."""
    state, catalog = committed.state, committed.catalog
    keys = {ref.key for ref in table_refs(catalog)} if catalog is not None else set()
    keys.update(key for documents in state.points.columns("documents")[0] for key in documents)
    (segments,) = state.segments.columns("key")
    keys.update(segments)
    keys.update(map(layout.index_key_of, segments))
    return keys


def table_refs(catalog: Catalog) -> list[TableRef]:
    """The files of a catalog's tables."""
    return [ref for refs in astuple(catalog.tables) for ref in refs]


def _ends(state: State, manifest: Manifest | None) -> Ends:
    """Return the ends of the partitions of living incarnations."""
    topics = manifest.topics if manifest is not None else ()
    ends = {(t.name, t.incarnation, p.partition): p.end for t in topics for p in t.partitions}
    for place, start in state.starts.items():
        ends[place] = max(start.start, ends.get(place, 0))
    return ends


def _filled(state: State) -> set[IncarnationPartition]:
    """The partitions that have segments."""
    return set(zip(*state.segments.columns("topic", "incarnation", "partition"), strict=True))


def _may_go(key: str, state: State, filled: Collection[IncarnationPartition], ends: Ends) -> bool:
    """Return whether an object that no deciding catalog refers to is an orphan that nobody creates again. Derived files
    stay where there are segments (`filled`)."""
    table = layout.parse_table_key(key)
    if table is not None:
        return table <= state.number
    point = layout.parse_point_key(key)
    if point is not None:
        return point[0] < state.next_point
    place = layout.parse_topic_key(key)
    if place is None:
        return False
    (topic, incarnation), name = place
    segment = layout.parse_segment(name)
    life = state.lives.get((topic, incarnation))
    if incarnation < state.highest.get(topic, 0) or (
        life is not None and (life.retired or life.last is not None)
    ):
        return segment is not None or _is_unused(name, (topic, incarnation), filled)
    return segment is not None and segment.start < ends.get((topic, incarnation, segment.partition), 0)


def _is_unused(name: str, incarnation: Incarnation, filled: Collection[IncarnationPartition]) -> bool:
    """Return whether a file is a derived one of a partition or topic without segments."""
    partition = layout.parse_partition_index(name)
    if partition is not None:
        return (*incarnation, partition) not in filled
    return layout.parse_group_offsets(name) is not None and all(p[:2] != incarnation for p in filled)


def open_catalog(store: Store, number: int, archive_id: str) -> Committed:
    catalog = read_catalog(store, number, archive_id)
    return Committed(state_of(store, catalog), catalog)
