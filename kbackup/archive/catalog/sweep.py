"""The sweep: deleting objects that no catalog refers to which a reader may still have open.

A delete may reach the store late, after a pause of any length. Therefore a key is deleted only when nobody creates it
again: catalogs and tables are named once, restore points have numbers that were given, and segments lie below the end
(or the log start) of their partition, or belong to an incarnation that is over. What lies at or beyond an end belongs
to the next backup.

Few catalogs decide: the newest, and the oldest one that was the newest within the grace time. Ends only grow, and what
one of the catalogs between them dropped is in the oldest, or lies beyond its ends, or was brought back in between: the
catalogs that brought rows back (`Catalog.reinstated`) decide as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf

from msgspec.structs import astuple

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit, open_newest, read_catalog, state_of
from kbackup.archive.catalog.documents import Catalog, TableRef
from kbackup.archive.catalog.retention import mark_swept, undo_expiration
from kbackup.archive.catalog.state import HistoryRow, Incarnation, IncarnationPartition, State
from kbackup.archive.models import Manifest, load
from kbackup.errors import CorruptError, NotFoundError, RefusedError
from kbackup.store.base import Failed, ObjectInfo, Store

_AT_ONCE = 1000
_THREADS = 16

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
    """The orphans among `objects`, a listing of the whole store, that no reader needs who opened the archive after
    `cutoff` (seconds since the epoch by the store's clock)."""
    for number in kept_catalogs(objects, newest.state, cutoff):
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


def kept_catalogs(objects: Iterable[ObjectInfo], state: State, cutoff: float) -> list[int]:
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
    """The catalogs that decide, oldest first."""
    first = oldest.state.number
    archive_id = newest.state.archive_id
    found = [newest]
    number = newest.state.reinstated
    while first < number:
        if number < newest.state.number:
            found.append(open_catalog(store, number, archive_id))
        number = min(number - 1, read_catalog(store, number - 1, archive_id).reinstated)
    if first < newest.state.number:
        found.append(oldest)
    return found[::-1]


def _newest_manifest(store: Store, committed: Committed) -> Manifest | None:
    point = committed.state.newest
    return load(Manifest, store.get(point.documents[0]), point.documents[0]) if point is not None else None


def _orphans(store: Store, kept: Sequence[Committed], objects: Iterable[ObjectInfo]) -> Orphans:
    """The orphans by the catalogs that decide, `kept`, oldest first: they have to agree."""
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
    """Where the partitions of living incarnations end."""
    topics = manifest.topics if manifest is not None else ()
    ends = {(t.name, t.incarnation, p.partition): p.end for t in topics for p in t.partitions}
    for place, start in state.starts.items():
        ends[place] = max(start.start, ends.get(place, 0))
    return ends


def _filled(state: State) -> set[IncarnationPartition]:
    """The partitions that have segments."""
    return set(zip(*state.segments.columns("topic", "incarnation", "partition"), strict=True))


def _may_go(key: str, state: State, filled: Collection[IncarnationPartition], ends: Ends) -> bool:
    """Whether an object that no deciding catalog refers to is an orphan that nobody creates again. Derived files stay
    where there are segments (`filled`)."""
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
    """Whether a file is a derived one that follows from nothing."""
    partition = layout.parse_partition_index(name)
    if partition is not None:
        return (*incarnation, partition) not in filled
    return layout.parse_group_offsets(name) is not None and all(p[:2] != incarnation for p in filled)


def commit_sweep(store: Store, newest: Committed, orphans: Orphans, author: Author) -> Committed:
    """The commit before `orphans` of catalog `newest` are deleted: no undo reaches back behind it, and the history of
    the catalogs that go stays in a table. `RefusedError` where rows were brought back in the meantime."""
    if not orphans.objects:
        return newest
    numbers = [n for e in orphans.objects if (n := layout.parse_catalog_key(e.key)) is not None]
    history = read_history(store, newest.state.archive_id, numbers)

    def operation(state: State) -> State:
        if state.reinstated != newest.state.reinstated:
            raise RefusedError(
                f"nothing was deleted: catalog {state.reinstated} brought restore points back in the meantime",
                "run the command again",
            )
        if state.swept >= orphans.upto and not history:
            return state
        known = set(state.history.columns("catalog")[0])
        rows = [row for row in history if row.catalog not in known]
        return mark_swept(replace(state, history=state.history.append(rows)), orphans.upto)

    return commit(store, newest, operation, author)


def delete_orphans(store: Store, orphans: Orphans) -> list[Failed]:
    """Returns each object that could not be deleted: a later sweep tries again."""
    keys = [each.key for each in orphans.objects]
    failed: list[Failed] = []
    for at in range(0, len(keys), _AT_ONCE):
        failed += store.delete(keys[at : at + _AT_ONCE])
    return failed


def read_history(store: Store, archive_id: str, numbers: Iterable[int]) -> list[HistoryRow]:
    """The rows of catalogs, in order; none for a catalog that a sweep has deleted."""

    def read(number: int) -> HistoryRow | None:
        try:
            made = read_catalog(store, number, archive_id).operation
        except NotFoundError:
            return None
        return HistoryRow(number, made.kind, made.run, made.by, made.at, made.summary)

    with ThreadPoolExecutor(_THREADS) as pool:
        return [row for row in pool.map(read, sorted(numbers)) if row is not None]


def last_expiration(store: Store, newest: Committed) -> int | None:
    """The catalog of the newest expiration that was not undone and that no sweep has reached; None without one."""
    undone = 0
    for number in range(newest.state.number, newest.state.swept + 1, -1):
        try:
            kind = read_catalog(store, number, newest.state.archive_id).operation.kind
        except NotFoundError:
            return None
        if kind == "undo":
            undone += 1
        elif kind == "expire":
            if not undone:
                return number
            undone -= 1
    return None


def commit_undo(store: Store, newest: Committed, number: int) -> Committed:
    """Take back the expiration of catalog `number`; `RefusedError` where a sweep may have deleted its objects."""
    archive_id = newest.state.archive_id
    try:
        after = open_catalog(store, number, archive_id).state
        before = open_catalog(store, number - 1, archive_id).state
        author = Author("undo", "", f"expiration of catalog {number} undone")
        return commit(store, newest, lambda state: undo_expiration(state, before, after), author)
    except (NotFoundError, CorruptError) as error:
        if open_newest(store, archive_id).state.swept < number - 1:
            raise
        raise RefusedError(  # a sweep was faster
            "objects of that expiration are deleted already", "run --undo within the grace time"
        ) from error


def open_catalog(store: Store, number: int, archive_id: str) -> Committed:
    catalog = read_catalog(store, number, archive_id)
    return Committed(state_of(store, catalog), catalog)
