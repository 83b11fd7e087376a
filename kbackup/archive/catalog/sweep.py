"""Find and delete orphans: objects that no catalog refers to and that no reader may still have open.

A delete may reach the store late, after a pause of any length. Therefore a key is deleted only when nobody creates
it again: catalogs and tables are named once, restore points have numbers that were given, and segments lie below
the end (or the log start) of their partition, or belong to an incarnation that is over. What lies at or beyond an
end belongs to the next backup.

Few catalogs decide: the newest, and the oldest one that was the newest within the grace time, by the times of the
store. Ends only grow, and what one of the catalogs between them dropped is in the oldest, or lies beyond its ends,
or was brought back in between, or written anew: the catalogs that put older objects to use (`Catalog.reinstated`)
decide as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from msgspec.structs import astuple

from kbackup.archive import layout
from kbackup.archive.catalog.commit import (
    Author,
    Committed,
    commit,
    list_catalogs,
    open_catalog,
    open_newest,
    read_catalog,
    state_of,
)
from kbackup.archive.catalog.documents import Catalog, TableRef
from kbackup.archive.catalog.retention import mark_swept, undo_expiration
from kbackup.archive.catalog.state import HistoryRow, State
from kbackup.archive.identity import REPAIR
from kbackup.archive.models import Manifest, load
from kbackup.errors import CorruptError, NotFoundError, RefusedError
from kbackup.store.base import Failed, ObjectInfo, Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.system import in_threads

_AT_ONCE = 1000
"""Keys of one delete: as many as S3 takes in a request."""
Ends = Mapping[IncarnationPartition, int]


@dataclass(frozen=True)
class Orphans:
    """Objects to delete, catalogs first. `upto` is the newest catalog among them, or that an earlier sweep deleted.

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
    listed = _list_catalogs(store, state.number)
    old = [number for number, each in listed.items() if each.modified <= cutoff]
    first = max(old, default=None)
    if first is None:
        # No catalog is older than the grace time: readers may still have any state open.
        return Orphans(0, ())
    window = [number for number in sorted(listed) if first <= number < state.number]
    catalogs = _read_catalogs(store, window, state.archive_id)
    untrusted = [number for number, catalog in catalogs.items() if catalog is None]
    readable = [catalog for catalog in catalogs.values() if catalog is not None]
    untrusted += _replaced_catalogs(readable, newest.catalog)
    if untrusted:
        return Orphans(0, (), unreadable=min(untrusted))

    deciding: list[Committed] = []
    for catalog in readable:
        # The oldest one, and those that brought rows back: they name themselves.
        if catalog.number in (first, catalog.reinstated):
            deciding.append(Committed(state_of(store, catalog), catalog))
    deciding.append(newest)
    manifests: list[Manifest | None] = []
    for committed in deciding:
        try:
            # Its tables are read now: the keys of one that is missing or altered would be missing among those to keep.
            referred_keys(committed)
            manifests.append(_newest_manifest(store, committed))
        except (NotFoundError, CorruptError):
            return Orphans(0, (), unreadable=committed.state.number)

    # Catalogs come first, so that a sweep that is interrupted leaves none whose tables are gone.
    oldest_key = layout.catalog_key(first)
    orphans: list[ObjectInfo] = []
    for each in sorted(listed.values()):
        if each.key < oldest_key and each.modified <= cutoff:
            orphans.append(each)
    oldest_state = deciding[0].state
    oldest_ends = _ends(oldest_state, manifests[0])
    newest_ends = _ends(state, manifests[-1])
    ends = [(oldest_state, oldest_ends), (state, newest_ends)]
    orphans += _without_reference(deciding, ends, objects, cutoff)
    return Orphans(first - 1, tuple(orphans))


def _list_catalogs(store: Store, newest: int) -> dict[int, ObjectInfo]:
    """Return the objects of catalogs up to number `newest`."""
    listed: dict[int, ObjectInfo] = {}
    for each in store.list(layout.CATALOG):
        number = layout.parse_catalog_key(each.key)
        if number is not None and number <= newest:
            listed[number] = each
    return listed


def _read_catalogs(store: Store, numbers: Sequence[int], archive_id: str) -> dict[int, Catalog | None]:
    """Return catalogs by number; None for one that can't be read."""

    def read(number: int) -> Catalog | None:
        with suppress(NotFoundError, CorruptError):
            return read_catalog(store, number, archive_id)
        return None

    catalogs = in_threads(read, numbers)
    return dict(zip(numbers, catalogs, strict=True))


def _replaced_catalogs(catalogs: Sequence[Catalog], newest: Catalog | None) -> list[int]:
    """Return the numbers of `catalogs` that are not what the next catalog was made from: somebody overwrote them.

    The numbers of `catalogs` rise, and the `newest` comes after them.
    """
    chain = list(catalogs)
    if newest is not None:
        chain.append(newest)
    replaced: list[int] = []
    for before, after in pairwise(chain):
        link = after.previous
        if link is not None and link.number == before.number and link.checksum != before.checksum:
            replaced.append(before.number)
    return replaced


def _newest_manifest(store: Store, committed: Committed) -> Manifest | None:
    """Return the manifest of a catalog's newest restore point; None without one. `CorruptError` for another one."""
    point = committed.state.newest
    if point is None:
        return None
    key = point.documents[0]
    manifest = load(Manifest, store.get(key), key)
    if manifest.checksum != point.manifest:
        raise CorruptError(f"file {key} is not the manifest that the catalog names", REPAIR)
    return manifest


def _ends(state: State, manifest: Manifest | None) -> Ends:
    """Return the offsets of partitions below which nobody writes a segment again."""
    ends: dict[IncarnationPartition, int] = {}
    if manifest is not None:
        for place, partition in manifest.partitions().items():
            # The next backup writes from the end on, and also what is held below the end.
            ends[place] = partition.unbroken
    for place, start in state.starts.items():
        ends[place] = max(start.start, ends.get(place, 0))
    return ends


def _without_reference(
    deciding: Sequence[Committed], ends: Sequence[tuple[State, Ends]], objects: Iterable[ObjectInfo], cutoff: float
) -> list[ObjectInfo]:
    """Return the objects, apart from catalogs, that are orphans by the oldest and by the newest of the catalogs that
    decide."""
    referred: set[str] = set()
    filled: set[IncarnationPartition] = set()
    for committed in deciding:
        referred |= referred_keys(committed)
        filled.update(committed.state.segments.rows("topic", "incarnation", "partition"))
    orphans: list[ObjectInfo] = []
    for each in objects:
        if each.modified > cutoff or each.key in referred or layout.parse_catalog_key(each.key) is not None:
            continue
        if all(_may_go(each.key, state, filled, end) for state, end in ends):
            orphans.append(each)
    return sorted(orphans)


def referred_keys(committed: Committed) -> set[str]:
    """Return the keys that a catalog refers to."""
    state = committed.state
    keys: set[str] = set()
    if committed.catalog is not None:
        keys.update(ref.key for ref in table_refs(committed.catalog))
    (documents,) = state.points.columns("documents")
    for point_documents in documents:
        keys.update(point_documents)
    (segments,) = state.segments.columns("key")
    keys.update(segments)
    keys.update(map(layout.index_key_of, segments))
    return keys


def table_refs(catalog: Catalog) -> list[TableRef]:
    """Return the files of a catalog's tables."""
    refs: list[TableRef] = []
    for table in astuple(catalog.tables):
        refs += table
    return refs


def _may_go(key: str, state: State, filled: Collection[IncarnationPartition], ends: Ends) -> bool:
    """Return whether an object that no deciding catalog refers to is an orphan that nobody creates again. Derived files
    stay where there are segments (`filled`)."""
    table = layout.parse_table_key(key)
    if table is not None:
        return table <= state.number
    point = layout.parse_point_key(key)
    if point is not None:
        number, _run, _name = point
        return number < state.next_point
    place = layout.parse_topic_key(key)
    if place is None:
        return False
    incarnation_key, name = place
    segment = layout.parse_segment(name)
    if segment is not None and segment.rewrite and _may_be_written(key, incarnation_key, segment, state):
        return False
    if _is_over(incarnation_key, state):
        return _may_go_of_ended(incarnation_key, name, filled)
    if segment is None:
        return False
    # What lies at or beyond the end belongs to the next backup.
    end = ends.get((*incarnation_key, segment.partition), 0)
    return segment.start < end


def _may_be_written(key: str, incarnation_key: Incarnation, segment: layout.SegmentName, state: State) -> bool:
    """Return whether a run may still write a rewritten segment that nothing refers to, below the end of its partition:
    an erasure, or a copy. A merge needs no protection: it commits nothing once a sweep has passed it."""
    if state.open_run is not None and state.open_run.command in ("erase", "copy"):
        return True
    if state.origin is None:
        return False
    # A copy may send what its source has, at any time. What a later rewrite replaced at the source, or what expired,
    # is never sent again.
    life = state.lives.get(incarnation_key)
    is_retired = life is None or life.retired
    log_start = state.starts.get((*incarnation_key, segment.partition))
    has_expired = log_start is not None and segment.start < log_start.start
    return not is_retired and not has_expired and key not in state.replaced_objects


def _is_over(key: Incarnation, state: State) -> bool:
    """Return whether no run writes segments of an incarnation any more."""
    topic, incarnation = key
    if incarnation < state.highest.get(topic, 0):
        return True
    life = state.lives.get(key)
    return life is not None and (life.retired or life.last is not None)


def _may_go_of_ended(key: Incarnation, name: str, filled: Collection[IncarnationPartition]) -> bool:
    """Return whether file `name` in the folder of an incarnation that is over is an orphan."""
    topic, incarnation = key
    if layout.parse_segment(name) is not None:
        return True
    partition = layout.parse_partition_index(name)
    if partition is not None:
        return (topic, incarnation, partition) not in filled
    # The file of a partition's group offsets stays as long as any partition of the incarnation has segments.
    is_group_file = layout.parse_group_offsets(name) is not None
    return is_group_file and all(place[:2] != key for place in filled)


def commit_sweep(store: Store, newest: Committed, orphans: Orphans, author: Author) -> Committed:
    """Commit that `orphans` of catalog `newest` are about to be deleted: no undo reaches back behind this commit, and
    the history of deleted catalogs stays in a table. `RefusedError` if rows were brought back in the meantime."""
    if not orphans.objects:
        return newest
    numbers: list[int] = []
    for each in orphans.objects:
        number = layout.parse_catalog_key(each.key)
        if number is not None:
            numbers.append(number)
    history = read_history(store, newest.state.archive_id, numbers)

    def operation(state: State) -> State:
        # An undo or a rewrite that was faster may refer to what were orphans. One that is later is refused, by `swept`.
        if state.reinstated != newest.state.reinstated:
            raise RefusedError(
                f"nothing was deleted: catalog {state.reinstated} put objects back to use in the meantime",
                "run the command again",
            )
        if state.swept >= orphans.upto and not history:
            return state
        # A sweep that was interrupted after its commit has written some of the rows.
        known = set(state.history.columns("catalog")[0])
        rows = [row for row in history if row.catalog not in known]
        with_history = replace(state, history=state.history.append(rows))
        return mark_swept(with_history, orphans.upto)

    return commit(store, newest, operation, author)


def delete_orphans(store: Store, orphans: Orphans) -> list[Failed]:
    """Delete `orphans`, and return each object that could not be deleted: a later sweep tries again."""
    keys = [each.key for each in orphans.objects]
    failed: list[Failed] = []
    for begin in range(0, len(keys), _AT_ONCE):
        failed += store.delete(keys[begin : begin + _AT_ONCE])
    return failed


def read_history(store: Store, archive_id: str, numbers: Iterable[int]) -> list[HistoryRow]:
    """Return the rows of catalogs, in order; none for a catalog that a sweep has deleted."""

    def read(number: int) -> HistoryRow | None:
        with suppress(NotFoundError):
            operation = read_catalog(store, number, archive_id).operation
            return HistoryRow(number, operation.kind, operation.run, operation.by, operation.at, operation.summary)
        return None

    rows = in_threads(read, sorted(numbers))
    return [row for row in rows if row is not None]


def last_expiration(store: Store, newest: Committed) -> int | None:
    """Return the catalog of the newest expiration that was not undone and that no sweep has reached; None without
    one."""
    # Backwards, each undo is of the nearest expiration that has none yet.
    undos = 0
    for number in range(newest.state.number, newest.state.swept + 1, -1):
        try:
            kind = read_catalog(store, number, newest.state.archive_id).operation.kind
        except NotFoundError:
            return None
        if kind == "undo":
            undos += 1
        elif kind == "expire":
            if undos == 0:
                return number
            undos -= 1
    return None


def commit_undo(store: Store, newest: Committed, number: int) -> Committed:
    """Take back the expiration of catalog `number`; `RefusedError` if a sweep may have deleted its objects."""
    archive_id = newest.state.archive_id
    author = Author("undo", "", f"expiration of catalog {number} undone")
    try:
        after = open_catalog(store, number, archive_id).state
        before = open_catalog(store, number - 1, archive_id).state

        def undo(state: State) -> State:
            return undo_expiration(state, before, after)

        return commit(store, newest, undo, author)
    except (NotFoundError, CorruptError) as error:
        # A sweep that was faster deletes catalogs and tables: a refusal. Otherwise the archive is damaged.
        if open_newest(store, archive_id).state.swept < number - 1:
            raise
        raise RefusedError(
            "objects of that expiration are deleted already", "run --undo within the grace time"
        ) from error


def undoable_points(store: Store, newest: Committed) -> frozenset[int]:
    """Return the expired restore points that `kbackup expire --undo` may bring back."""
    state = newest.state
    expired = frozenset(state.past_manifests) - frozenset(state.numbers.tolist())
    if not expired:
        return expired
    # An undo takes back expirations behind the last catalog that is swept. What had expired by then stays so.
    first = min(list_catalogs(store, state.swept + 1), default=state.number)
    try:
        oldest = open_catalog(store, first, state.archive_id).state
        return expired - frozenset(oldest.past_manifests)
    except (NotFoundError, CorruptError):
        # A sweep deletes it at this moment, or it is damaged: then all count until a sweep has passed it.
        return expired
