"""The files that follow from a catalog: partition indexes, and the group offsets of each partition.

They make a topic's folder readable by the Java tool. A reader of ours needs none of them. One writer at a time writes
them, under the lease; `derived.json` names the catalog that they were written for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType

import numpy as np
import pyarrow.compute as pc

from kbackup.archive import layout
from kbackup.archive.catalog.commit import read_catalog, state_of
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Groups, Manifest, TopicState, dump, load
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import PLACE, Starts
from kbackup.errors import CorruptError, LockedError, NotFoundError
from kbackup.formats.index import PartitionIndexEntry, encode_group_offsets, encode_partition_index
from kbackup.store.wrappers import GuardedStore
from kbackup.types import Incarnation, IncarnationPartition

_NONE = np.empty(0, np.int64)
_THREADS = 8


def refresh_derived(archive: Archive) -> None:
    """Write the derived files that changed since the catalog that `derived.json` names, or all where none is known."""
    if archive.state.newest is None:
        return
    before = _written_for(archive)
    if before is not None and before.number == archive.state.number:
        return
    files = _changed_files(archive, before)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda entry: archive.store.put(*entry), files.items()))
    mark = Derived(archive_id=archive.info.id, catalog=archive.state.number)
    archive.store.put(layout.DERIVED, dump(mark))


def _changed_files(archive: Archive, before: State | None) -> dict[str, bytes]:
    """Return the derived files that may differ since `before`; all of them where a table of that older state is
    damaged."""
    try:
        return derived_files(archive, before)
    except CorruptError:
        if before is None:
            raise
        return derived_files(archive)


def refresh_under_lease(archive: Archive, command: str, seconds: float) -> None:
    """Write the derived files of the newest catalog, and reopen the archive at it, where nobody holds the lease. A
    writer that holds the lease writes the derived files with its next commit."""
    if is_refreshed(archive):
        return
    with suppress(LockedError), HeldLease(archive.store, command, seconds) as lease:
        archive.reopen()
        refresh_derived(Archive(GuardedStore(archive.store, lease.check), archive.info, archive.committed))


def is_refreshed(archive: Archive) -> bool:
    """Return whether the derived files were written for the archive's catalog."""
    state = _written_for(archive)
    return state is not None and state.number == archive.state.number


def _written_for(archive: Archive) -> State | None:
    """Return the state that the derived files were last written for; None if it is no longer known."""
    try:
        mark = load(Derived, archive.store.get(layout.DERIVED), layout.DERIVED)
        if mark.catalog == archive.state.number:
            return archive.state
        return state_of(archive.store, read_catalog(archive.store, mark.catalog, archive.info.id))
    except (NotFoundError, CorruptError):
        return None


def derived_files(archive: Archive, before: State | None = None) -> dict[str, bytes]:
    """Key -> bytes of the derived files of the archive's catalog: all, or those that may differ since `before`.

    A partition that the newest restore point lacks has derived files while it has segments.
    """
    head = archive.head
    assert head is not None  # noqa: S101 (callers look first)
    starts = archive.starts()
    partitions = {*starts, *((t.name, t.incarnation, p.partition) for t in head.topics for p in t.partitions)}
    since = 0
    if before is not None:
        since = before.newest.number if before.newest is not None else 0
        changed = changed_partitions(before, archive.state)
        if since < head.number:
            changed |= _new_partitions(archive, head, since)
        partitions &= changed
    topics = list(_group_topics(archive, head, {key[:2] for key in partitions}, since))
    files = _captured_files(archive, topics, archive.state)
    if before is not None:
        files = dict(files.items() - _written_files(archive, before, topics).items())
    return files | partition_indexes(partitions, starts, spare_stems(archive.state))


def _captured_files(archive: Archive, topics: Iterable[TopicState], state: State) -> dict[str, bytes]:
    """Return the group files of `topics` by the last capture of each."""
    together: dict[int, list[TopicState]] = {}
    for topic in topics:
        together.setdefault(topic.captured, []).append(topic)
    files: dict[str, bytes] = {}
    for captured, group in together.items():
        ref = archive.capture(captured).groups  # as it is: files that were derived from it before stay valid
        files |= group_files(group, load(Groups, archive.read_document(ref), ref.key), state)
    return files


def _written_files(archive: Archive, before: State, topics: Iterable[TopicState]) -> dict[str, bytes]:
    """Return the group files of `topics` as they were written for `before`; none if the newest restore point of
    `before` is gone."""
    point = before.newest
    if point is None or archive.state.point(point.number) != point:
        return {}
    names = {(t.name, t.incarnation) for t in topics}
    known = [t for t in archive.manifest(point).topics if (t.name, t.incarnation) in names]
    return _captured_files(archive, known, before)


def changed_partitions(before: State, after: State) -> set[IncarnationPartition]:
    """Return the partitions whose segments or log start differ. Chunks of tables that both states have are not read."""
    refs = [{c.ref.key for c in s.segments.chunks if c.ref is not None} for s in (before, after)]
    rows = [
        {
            row
            for chunk in state.segments.chunks
            if chunk.ref is None or chunk.ref.key not in other
            for row in zip(*(c.to_pylist() for c in chunk.read(PLACE.names).columns), strict=True)
        }
        for state, other in ((before, refs[1]), (after, refs[0]))
    ]
    starts = {place for place, _ in before.starts.items() ^ after.starts.items()}
    return {row[:3] for row in rows[0] ^ rows[1]} | starts


def _new_partitions(archive: Archive, head: Manifest, since: int) -> set[IncarnationPartition]:
    """Return partitions of `head` that restore point `since` did not have."""
    before = archive.state.point(since)
    known = archive.manifest(before).topics if before is not None else ()
    there = {(t.name, t.incarnation, p.partition) for t in known for p in t.partitions}
    return {(t.name, t.incarnation, p.partition) for t in head.topics for p in t.partitions} - there


def _group_topics(
    archive: Archive, head: Manifest, changed: Collection[Incarnation], since: int
) -> Iterator[TopicState]:
    """Yield the topics whose group files may differ: those captured after restore point `since`, and those
    `changed`."""
    newest = {(t.name, t.incarnation) for t in head.topics}
    yield from (t for t in head.topics if t.captured > since or (t.name, t.incarnation) in changed)
    last = archive.state.last_points()
    for key in sorted(set(changed) - newest):
        point = archive.state.point(last.get(key, 0))
        if point is not None:
            manifest = archive.manifest(point)
            yield from (t for t in manifest.topics if (t.name, t.incarnation) == key)


def spare_stems(state: State) -> dict[tuple[IncarnationPartition, int], str]:
    """Return, by partition and first offset, the names of the segments that have a spare name."""
    table = state.segments.read([*PLACE.names, "key"])
    table = table.filter(pc.match_substring_regex(table["key"], layout.SPARE_NAME))
    return {
        ((row["topic"], row["incarnation"], row["partition"]), row["first"]): layout.stem_of(row["key"])
        for row in table.to_pylist()
    }


def partition_indexes(
    partitions: Iterable[IncarnationPartition],
    starts: Starts,
    spare: Mapping[tuple[IncarnationPartition, int], str] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Key -> bytes of the partition index of each of `partitions`; `spare` are `spare_stems`."""
    return {
        layout.partition_index_key(layout.topic_dir(topic, incarnation), partition): encode_partition_index(
            [
                PartitionIndexEntry(
                    spare.get(((topic, incarnation, partition), first)) or layout.segment_stem(partition, first), first
                )
                for first in starts.get((topic, incarnation, partition), _NONE).tolist()
            ]
        )
        for topic, incarnation, partition in partitions
    }


def group_files(topics: Collection[TopicState], groups: Groups, state: State) -> dict[str, bytes]:
    """Key -> bytes of the group offsets of each partition of `topics`, which the run of `groups` captured.

    Where the archive ends before the log did, a group that is further on stands at the archive's end, and a group
    before the log start stands there: the Java tool finds its position.
    """
    ends = {(t.name, p.partition): p.end for t in topics for p in t.partitions if p.end < p.log_end}
    incarnations = {t.name: t.incarnation for t in topics}
    offsets: dict[tuple[str, int], dict[str, int]] = {}
    for group in groups.groups:
        for committed in group.offsets:
            place = (committed.topic, committed.partition)
            offset = min(committed.offset, ends.get(place, committed.offset))
            start = state.starts.get((place[0], incarnations.get(place[0], 0), place[1]))
            offsets.setdefault(place, {})[group.group] = max(offset, start.start) if start is not None else offset
    return {
        layout.group_offsets_key(layout.topic_dir(t.name, t.incarnation), p.partition): encode_group_offsets(
            offsets.get((t.name, p.partition), {})
        )
        for t in topics
        for p in t.partitions
    }
