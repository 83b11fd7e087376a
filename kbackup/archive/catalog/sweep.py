"""Find and delete orphans: objects that no catalog refers to and that no reader may still have open.

A delete may reach the store late, after a pause of any length. Therefore a key is deleted only when nobody creates
it again: catalogs and tables are named once, restore points have numbers that were given, and segments lie below
the end (or the log start) of their partition, or belong to an incarnation that is over. What lies at or beyond an
end belongs to the next backup.

Few catalogs decide: the newest, and the oldest one that was the newest within the grace time, by the times of the
store. Ends only grow, and what one of the catalogs between them dropped is in the oldest, or lies beyond its ends,
or was brought back in between: the catalogs that brought rows back (`Catalog.reinstated`) decide as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from msgspec.structs import astuple

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit, open_catalog, open_newest, read_catalog, state_of
from kbackup.archive.catalog.documents import Catalog, TableRef
from kbackup.archive.catalog.retention import mark_swept, undo_expiration
from kbackup.archive.catalog.state import HistoryRow, State
from kbackup.archive.identity import REPAIR
from kbackup.archive.models import Manifest, load
from kbackup.errors import CorruptError, NotFoundError, RefusedError
from kbackup.store.base import Failed, ObjectInfo, Store
from kbackup.types import IncarnationPartition
from kbackup.util.system import in_threads

_AT_ONCE = 1000
Ends = Mapping[IncarnationPartition, int]


@dataclass(frozen=True)
class Orphans:
    """Objects to delete, catalogs first, and `upto`, the newest of the catalogs among them or before them.

    `unreadable` is a catalog of the grace time that can't be read, or that is not the one that the next catalog names:
    nothing is deleted until its time is over."""

    upto: int
    objects: tuple[ObjectInfo, ...]
    unreadable: int | None = None


def find_orphans(store: Store, newest: Committed, objects: Iterable[ObjectInfo], cutoff: float) -> Orphans:
    """Return the orphans among `objects`, a listing of the whole store, that are not needed by readers who opened the
    archive after `cutoff` (seconds since the epoch by the store's clock).

    Whoever may write can commit any catalog and overwrite others, but not make an object older than its last write.
    Therefore the oldest catalog that decides was written before `cutoff` and has its checksums of everything else, and
    only objects that were written before `cutoff` are orphans. No catalog's own numbers or times count.
    """
    state = newest.state
    listed: dict[int, ObjectInfo] = {}
    for each in store.list(layout.CATALOG):
        parsed = layout.parse_catalog_key(each.key)
        if parsed is not None and parsed <= state.number:
            listed[parsed] = each
    first = max((number for number, each in listed.items() if each.modified <= cutoff), default=None)
    if first is None:
        return Orphans(0, ())

    def read(number: int) -> Catalog | None:
        with suppress(NotFoundError, CorruptError):
            return read_catalog(store, number, state.archive_id)
        return None

    window = sorted(number for number in listed if first <= number < state.number)
    catalogs = dict(zip(window, in_threads(read, window), strict=True))
    unreadable = [number for number, catalog in catalogs.items() if catalog is None]
    readable = [catalog for catalog in (*catalogs.values(), newest.catalog) if catalog is not None]
    replaced: list[int] = []
    for before, after in pairwise(readable):
        link = after.previous
        if link is not None and link.number == before.number and link.checksum != before.checksum:
            replaced.append(before.number)
    if unreadable or replaced:
        return Orphans(0, (), min(unreadable + replaced))
    deciding = [
        Committed(state_of(store, catalog), catalog)
        for catalog in readable[:-1]
        if catalog.number in (first, catalog.reinstated)
    ]
    deciding.append(newest)
    number, manifests = first, []
    try:
        for committed in deciding:
            number = committed.state.number
            referred_keys(committed)
            manifests.append(_newest_manifest(store, committed))
    except (NotFoundError, CorruptError):
        return Orphans(0, (), number)
    oldest = layout.catalog_key(first)
    old = sorted(each for each in listed.values() if each.key < oldest and each.modified <= cutoff)
    ends = [(deciding[at].state, _ends(deciding[at].state, manifests[at])) for at in (0, -1)]
    return Orphans(first - 1, (*old, *_without_reference(deciding, ends, objects, cutoff)))


def _newest_manifest(store: Store, committed: Committed) -> Manifest | None:
    point = committed.state.newest
    if point is None:
        return None
    manifest = load(Manifest, store.get(point.documents[0]), point.documents[0])
    if manifest.checksum != point.manifest:
        raise CorruptError(f"file {point.documents[0]} is not the manifest that the catalog names", REPAIR)
    return manifest


def _ends(state: State, manifest: Manifest | None) -> Ends:
    partitions = manifest.partitions() if manifest is not None else {}
    # from there on the next backup may write segments, which no sweep must take for those of an earlier one
    ends = {place: p.unbroken for place, p in partitions.items()}
    for place, start in state.starts.items():
        ends[place] = max(start.start, ends.get(place, 0))
    return ends


def _without_reference(
    deciding: Sequence[Committed], ends: Sequence[tuple[State, Ends]], objects: Iterable[ObjectInfo], cutoff: float
) -> list[ObjectInfo]:
    """Return the objects, apart from catalogs, that are orphans by the oldest and by the newest of the catalogs that
    decide."""
    referred = set[str]().union(*map(referred_keys, deciding))
    filled = {place for c in deciding for place in c.state.segments.rows("topic", "incarnation", "partition")}
    return sorted(
        each
        for each in objects
        if each.modified <= cutoff
        and layout.parse_catalog_key(each.key) is None
        and each.key not in referred
        and all(_may_go(each.key, state, filled, end) for state, end in ends)
    )


def referred_keys(committed: Committed) -> set[str]:
    """Return the keys that a catalog refers to."""
    state, catalog = committed.state, committed.catalog
    keys = {ref.key for ref in table_refs(catalog)} if catalog is not None else set()
    keys.update(key for documents in state.points.columns("documents")[0] for key in documents)
    (segments,) = state.segments.columns("key")
    return keys.union(segments, map(layout.index_key_of, segments))


def table_refs(catalog: Catalog) -> list[TableRef]:
    """Return the files of a catalog's tables."""
    return [ref for refs in astuple(catalog.tables) for ref in refs]


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
    is_over = incarnation < state.highest.get(topic, 0)
    if is_over or (life is not None and (life.retired or life.last is not None)):
        if segment is not None:
            return True
        partition = layout.parse_partition_index(name)
        if partition is not None:
            return (topic, incarnation, partition) not in filled
        return layout.parse_group_offsets(name) is not None and all(p[:2] != place[0] for p in filled)
    return segment is not None and segment.start < ends.get((topic, incarnation, segment.partition), 0)


def commit_sweep(store: Store, newest: Committed, orphans: Orphans, author: Author) -> Committed:
    """Commit that `orphans` of catalog `newest` are about to be deleted: no undo reaches back behind this commit, and
    the history of deleted catalogs stays in a table. `RefusedError` where rows were brought back in the meantime."""
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
    return [failed for at in range(0, len(keys), _AT_ONCE) for failed in store.delete(keys[at : at + _AT_ONCE])]


def read_history(store: Store, archive_id: str, numbers: Iterable[int]) -> list[HistoryRow]:
    """Return the rows of catalogs, in order; none for a catalog that a sweep has deleted."""

    def read(number: int) -> HistoryRow | None:
        with suppress(NotFoundError):
            made = read_catalog(store, number, archive_id).operation
            return HistoryRow(number, made.kind, made.run, made.by, made.at, made.summary)
        return None

    return [row for row in in_threads(read, sorted(numbers)) if row is not None]


def last_expiration(store: Store, newest: Committed) -> int | None:
    """Return the catalog of the newest expiration that was not undone and that no sweep has reached; None without
    one."""
    undone = 0
    for number in range(newest.state.number, newest.state.swept + 1, -1):
        try:
            kind = read_catalog(store, number, newest.state.archive_id).operation.kind
        except NotFoundError:
            return None
        if kind == "expire" and not undone:
            return number
        undone += {"undo": 1, "expire": -1}.get(kind, 0)
    return None


def commit_undo(store: Store, newest: Committed, number: int) -> Committed:
    """Take back the expiration of catalog `number`; `RefusedError` if a sweep may have deleted its objects."""
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
