"""The files that follow from a catalog: partition indexes, and the group offsets of each partition.

They make a topic's folder readable by the Java tool. A reader of ours needs none of them. One writer at a time writes
them, under the lease; `derived.json` names the catalog that they were written for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import numpy as np
import pyarrow.compute as pc

from kbackup.archive import layout
from kbackup.archive.catalog.commit import open_catalog
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import SHARE, Groups, Manifest, TopicState, dump, load
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import PLACE
from kbackup.errors import CorruptError, LockedError, NotFoundError
from kbackup.formats.index import PartitionIndexEntry, encode_group_offsets, encode_partition_index
from kbackup.store.base import Store
from kbackup.store.wrappers import GuardedStore
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.system import in_threads

_NONE = np.empty(0, np.int64)
_WRITERS = 32
"""Threads. At 30 ms a request 32 wrote twice as many files to S3 as 8. Python's lock bounds them: 1.4 ms a file."""

Files = Mapping[str, bytes]
"""Keys and contents."""


def put_files(store: Store, files: Iterable[tuple[str, bytes]]) -> None:
    in_threads(lambda entry: store.put(*entry), files, _WRITERS)


def refresh_derived(archive: Archive, write: Callable[[Files], Files] = lambda files: files) -> None:
    """Write the derived files that changed since the catalog that `derived.json` names. All are written where that
    catalog is not known, or a table of it is damaged. `write` may write some of them elsewhere, and returns the
    others."""
    if archive.state.newest is None:
        return
    before = _written_for(archive)
    if before is not None and before.number == archive.state.number:
        return
    try:
        files = derived_files(archive, before)
    except CorruptError:
        if before is None:
            raise
        files = derived_files(archive)
    put_files(archive.store, write(files).items())
    archive.store.put(layout.DERIVED, dump(Derived(archive_id=archive.info.id, catalog=archive.state.number)))


def refresh_under_lease(archive: Archive, command: str, seconds: float) -> None:
    """Write the derived files of the newest catalog, and reopen the archive at it, where nobody holds the lease. A
    writer that holds the lease writes the derived files with its next commit."""
    state = _written_for(archive)
    if state is not None and state.number == archive.state.number:
        return
    with suppress(LockedError), HeldLease(archive.store, command, seconds) as lease:
        archive.reopen()
        refresh_derived(Archive(GuardedStore(archive.store, lease.check), archive.info, archive.committed))


def _written_for(archive: Archive) -> State | None:
    """Return the state that the derived files were last written for; None if it is no longer known."""
    with suppress(NotFoundError, CorruptError):
        mark = load(Derived, archive.store.get(layout.DERIVED), layout.DERIVED)
        if mark.catalog == archive.state.number:
            return archive.state
        return open_catalog(archive.store, mark.catalog, archive.info.id).state
    return None


def derived_files(archive: Archive, before: State | None = None) -> dict[str, bytes]:
    """Key -> bytes of the derived files of the archive's catalog: all, or those that may differ since `before`.

    A partition that the newest restore point lacks has derived files while it has segments.
    """
    head, state = archive.head, archive.state
    assert head is not None  # noqa: S101 (callers look first)
    starts = archive.starts()
    partitions = {*starts, *head.partitions()}
    since = 0
    if before is not None:
        changed = changed_partitions(before, state)
        since = before.newest.number if before.newest is not None else 0
        if since < head.number:
            known = state.point(since)
            changed |= head.partitions().keys() - (archive.manifest(known).partitions() if known else {}).keys()
        partitions &= changed
    topics = list(_group_topics(archive, head, {key[:2] for key in partitions}, since))
    files = _group_files(archive, topics, state)
    point = before.newest if before is not None else None
    if before is not None and point is not None and state.point(point.number) == point:
        names = {(t.name, t.incarnation) for t in topics}
        known_topics = [t for key, t in archive.manifest(point).incarnations().items() if key in names]
        files = dict(files.items() - _group_files(archive, known_topics, before).items())
    table = state.segments.read([*PLACE.names, "key"])
    padded_names = {  # names of segments, where they are not the usual ones
        ((row["topic"], row["incarnation"], row["partition"]), row["first"]): layout.stem_of(row["key"])
        for row in table.filter(pc.match_substring_regex(table["key"], layout.PADDED_NAME)).to_pylist()
    }
    for place in partitions:
        topic, incarnation, number = place
        entries = [
            PartitionIndexEntry(padded_names.get((place, first)) or layout.segment_stem(number, first), first)
            for first in starts.get(place, _NONE).tolist()
        ]
        key = layout.partition_index_key(layout.topic_dir(topic, incarnation), number)
        files[key] = encode_partition_index(entries)
    return files


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


def _group_topics(
    archive: Archive, head: Manifest, changed: Collection[Incarnation], since: int
) -> Iterator[TopicState]:
    """Yield the topics whose group files may differ: those captured after restore point `since`, and those
    `changed`."""
    newest = head.incarnations()
    yield from (topic for key, topic in newest.items() if topic.captured > since or key in changed)
    last = archive.state.last_points()
    for key in sorted(set(changed) - newest.keys()):
        point = archive.state.point(last.get(key, 0))
        if point is not None and (topic := archive.manifest(point).incarnations().get(key)) is not None:
            yield topic


def _group_files(archive: Archive, topics: Iterable[TopicState], state: State) -> dict[str, bytes]:
    """Key -> bytes of the group offsets of each partition of `topics`, by the last capture of each topic.

    Where the archive ends before the log did, a group that is further on stands at the archive's end, and a group
    before the log start stands there: the Java tool finds its position.
    """
    by_capture: dict[int, list[TopicState]] = defaultdict(list)
    for topic in topics:
        by_capture[topic.captured].append(topic)
    files: dict[str, bytes] = {}
    for captured, some in by_capture.items():
        ref = archive.capture(captured).groups  # as it is: files that were derived from it before stay valid
        ends = {(t.name, p.partition): p.end for t in some for p in t.partitions if p.end < p.log_end}
        incarnations = {t.name: t.incarnation for t in some}
        offsets: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        for group in load(Groups, archive.read_document(ref), ref.key).groups:
            for committed in group.offsets if group.type != SHARE else ():  # the files have no type
                place = (committed.topic, committed.partition)
                offset = min(committed.offset, ends.get(place, committed.offset))
                start = state.starts.get((place[0], incarnations.get(place[0], 0), place[1]))
                offsets[place][group.group] = max(offset, start.start) if start is not None else offset
        for t in some:
            folder = layout.topic_dir(t.name, t.incarnation)
            for p in t.partitions:
                key = layout.group_offsets_key(folder, p.partition)
                files[key] = encode_group_offsets(offsets[t.name, p.partition])
    return files
