"""Find orphans: objects that no catalog refers to and that no reader may still have open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import astuple

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, TableRef
from kbackup.archive.catalog.opening import Committed, read_catalog, state_of
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Manifest, load
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import ObjectInfo, Store
from kbackup.types import Incarnation, IncarnationPartition

Ends = Mapping[IncarnationPartition, int]


@dataclass(frozen=True)
class Orphans:
    """Objects to delete, catalogs first, and `upto`, the newest of the catalogs among them or before them.

    `unreadable` is a catalog of the grace time that can't be read: nothing is deleted until its time is over."""

    upto: int
    objects: tuple[ObjectInfo, ...]
    unreadable: int | None = None

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.objects)


def find_orphans(store: Store, newest: Committed, objects: Collection[ObjectInfo], cutoff: float) -> Orphans:
    """Return the orphans among `objects`, a listing of the whole store, that are not needed by readers who opened the
    archive after `cutoff` (seconds since the epoch by the store's clock)."""
    for number in recent_catalogs(objects, newest.state, cutoff):
        try:
            oldest = _open_whole(store, newest, number)
        except (NotFoundError, CorruptError):
            # objects of swept catalogs may be deleted where the catalog itself could not be (object lock)
            if number > newest.state.swept:
                return Orphans(0, (), number)
            continue
        try:
            return _orphans(store, _deciding(store, newest, oldest), objects)
        except (NotFoundError, CorruptError):
            return Orphans(0, (), number)
    raise AssertionError("the newest catalog is kept and was read")


def _open_whole(store: Store, newest: Committed, number: int) -> Committed:
    if number == newest.state.number:
        return newest
    committed = open_catalog(store, number, newest.state.archive_id)
    referred_keys(committed)
    _newest_manifest(store, committed)
    return committed


def recent_catalogs(objects: Iterable[ObjectInfo], state: State, cutoff: float) -> list[int]:
    """The catalogs that were the newest one at or after `cutoff`, oldest first, by the times of the store. `state` is
    that of the newest.

    A catalog was the newest until the next one was created. A sweep may have deleted those up to `state.swept`; any
    other that the listing lacks counts as young.
    """
    created = {
        number: each.modified
        for each in objects
        if (number := layout.parse_catalog_key(each.key)) is not None
    }
    kept = [state.number]
    for number in range(state.number - 1, 0, -1):
        if created.get(kept[-1], inf) <= cutoff:
            break
        if number in created or number > state.swept:
            kept.append(number)
    return kept[::-1]


def _deciding(store: Store, newest: Committed, oldest: Committed) -> list[Committed]:
    """Return the catalogs that decide which objects are orphans, oldest first."""
    first = oldest.state.number
    archive_id = newest.state.archive_id
    catalogs = [newest]
    number = newest.state.reinstated
    while first < number:
        if number < newest.state.number:
            catalogs.append(open_catalog(store, number, archive_id))
        number = min(number - 1, read_catalog(store, number - 1, archive_id).reinstated)
    if first < newest.state.number:
        catalogs.append(oldest)
    return catalogs[::-1]


def _newest_manifest(store: Store, committed: Committed) -> Manifest | None:
    point = committed.state.newest
    return load(Manifest, store.get(point.documents[0]), point.documents[0]) if point is not None else None


def _orphans(store: Store, kept: Sequence[Committed], objects: Iterable[ObjectInfo]) -> Orphans:
    """Return the objects that are orphans by the oldest and by the newest of the catalogs that decide, `kept`, oldest
    first."""
    first = kept[0].state.number
    referred = set[str]().union(*map(referred_keys, kept))
    filled = {place for committed in kept for place in _filled(committed.state)}
    ends = [(c.state, _ends(c.state, _newest_manifest(store, c))) for c in (kept[0], kept[-1])]
    catalogs: list[ObjectInfo] = []
    others: list[ObjectInfo] = []
    for each in objects:
        number = layout.parse_catalog_key(each.key)
        if number is not None:
            if number < first:
                catalogs.append(each)
        elif each.key not in referred and all(_may_go(each.key, s, filled, e) for s, e in ends):
            others.append(each)
    return Orphans(first - 1, (*sorted(catalogs), *sorted(others)))


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
