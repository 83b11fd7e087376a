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
from kbackup.archive.segments.table import PLACE, Starts
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
    """Write files, by several threads."""

    def put(file: tuple[str, bytes]) -> None:
        key, content = file
        store.put(key, content)

    in_threads(put, files, _WRITERS)


def write_none(files: Files) -> Files:
    """Return all of `files`: none of them is written elsewhere."""
    return files


def refresh_derived(archive: Archive, write: Callable[[Files], Files] = write_none) -> None:
    """Write the derived files that changed since the catalog that `derived.json` names. All are written if that
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
        # The damage may be in the tables of `before` alone, which the archive needs no more.
        files = derived_files(archive)
    remaining = write(files)
    put_files(archive.store, remaining.items())
    # The mark comes last: after a crash, the next writer finds the former one and writes all files since that again.
    mark = Derived(archive_id=archive.info.id, catalog=archive.state.number)
    archive.store.put(layout.DERIVED, dump(mark))


def refresh_under_lease(archive: Archive, command: str, seconds: float) -> None:
    """Write the derived files of the newest catalog, and reopen the archive at it, if nobody holds the lease. A writer
    that holds the lease writes the derived files with its next commit."""
    state = _written_for(archive)
    if state is not None and state.number == archive.state.number:
        return
    with suppress(LockedError), HeldLease(archive.store, command, seconds) as lease:
        # The former holder may have committed just before it released the lease.
        archive.reopen()
        guarded = GuardedStore(archive.store, lease.check)
        refresh_derived(Archive(guarded, archive.info, archive.committed))


def _written_for(archive: Archive) -> State | None:
    """Return the state that the derived files were last written for; None if it is no longer known."""
    with suppress(NotFoundError, CorruptError):
        mark = load(Derived, archive.store.get(layout.DERIVED), layout.DERIVED)
        if mark.catalog == archive.state.number:
            return archive.state
        return open_catalog(archive.store, mark.catalog, archive.info.id).state
    return None


def derived_files(archive: Archive, before: State | None = None) -> dict[str, bytes]:
    """Return the derived files of the archive's catalog, bytes by key: all, or those that may differ since `before`.

    A partition that the newest restore point lacks has derived files while it has segments.
    """
    head = archive.head
    state = archive.state
    assert head is not None  # noqa: S101 (callers look first)
    starts = archive.starts()
    partitions = {*starts, *head.partitions()}
    since = 0
    if before is not None:
        since = before.newest.number if before.newest is not None else 0
        partitions &= changed_partitions(before, state) | _new_partitions(archive, head, since)
    incarnations = {(topic, incarnation) for topic, incarnation, _ in partitions}
    topics = list(_group_topics(archive, head, incarnations, since))
    files = _group_files(archive, topics, state)
    if before is not None:
        # Each run captures every selected topic, and most groups stay where they are: only what differs is written.
        files = dict(files.items() - _former_group_files(archive, topics, before).items())
    files.update(_index_files(state, starts, partitions))
    return files


def _new_partitions(archive: Archive, head: Manifest, since: int) -> set[IncarnationPartition]:
    """Return the partitions of the newest restore point that restore point `since` does not have. They need an index
    even if they have no segment."""
    if since >= head.number:
        return set()
    known = archive.state.point(since)
    if known is None:
        return set(head.partitions())
    return head.partitions().keys() - archive.manifest(known).partitions().keys()


def _former_group_files(archive: Archive, topics: Iterable[TopicState], before: State) -> dict[str, bytes]:
    """Return the group files of `topics` as they were derived from the catalog `before`; none if that can't be told."""
    point = before.newest
    # A repair may have made the manifest of this number anew.
    if point is None or archive.state.point(point.number) != point:
        return {}
    incarnations = {(topic.name, topic.incarnation) for topic in topics}
    topics_then = [topic for key, topic in archive.manifest(point).incarnations().items() if key in incarnations]
    return _group_files(archive, topics_then, before)


def _index_files(
    state: State, starts: Starts, partitions: Iterable[IncarnationPartition]
) -> Iterator[tuple[str, bytes]]:
    """Yield the partition index of each of `partitions`."""
    special_names = _special_names(state)
    for place in partitions:
        topic, incarnation, number = place
        entries: list[PartitionIndexEntry] = []
        for first in starts.get(place, _NONE).tolist():
            name = special_names.get((place, first)) or layout.segment_stem(number, first)
            entries.append(PartitionIndexEntry(name, first))
        folder = layout.topic_dir(topic, incarnation)
        yield layout.partition_index_key(folder, number), encode_partition_index(entries)


def _special_names(state: State) -> dict[tuple[IncarnationPartition, int], str]:
    """Return the names of the segments that have a padded one or were rewritten, by partition and first offset: few or
    none, found by column."""
    table = state.segments.read([*PLACE.names, "key"])
    is_special = pc.match_substring_regex(table["key"], layout.SPECIAL_NAME)
    names: dict[tuple[IncarnationPartition, int], str] = {}
    for row in table.filter(is_special).to_pylist():
        place = (row["topic"], row["incarnation"], row["partition"])
        names[place, row["first"]] = layout.stem_of(row["key"])
    return names


def changed_partitions(before: State, after: State) -> set[IncarnationPartition]:
    """Return the partitions whose segments or log start differ. Chunks of tables that both states have are not read."""
    changed: set[IncarnationPartition] = set()
    for topic, incarnation, partition, _key in _own_segments(before, after) ^ _own_segments(after, before):
        changed.add((topic, incarnation, partition))
    changed.update(place for place, _ in before.starts.items() ^ after.starts.items())
    return changed


def _own_segments(state: State, other: State) -> set[tuple[str, int, int, str]]:
    """Return the partition and the key of each segment in the chunks of `state` that `other` has not. A rewritten one
    may begin where the former one did, and has another name in the index."""
    shared = {chunk.ref.key for chunk in other.segments.chunks if chunk.ref is not None}
    segments: set[tuple[str, int, int, str]] = set()
    for chunk in state.segments.chunks:
        if chunk.ref is not None and chunk.ref.key in shared:
            continue
        table = chunk.read([*PLACE.names[:3], "key"])
        columns = [column.to_pylist() for column in table.columns]
        segments.update(zip(*columns, strict=True))
    return segments


def _group_topics(
    archive: Archive, head: Manifest, changed: Collection[Incarnation], since: int
) -> Iterator[TopicState]:
    """Yield the topics whose group files may differ: those captured after restore point `since`, and those
    `changed`."""
    newest = head.incarnations()
    for key, topic in newest.items():
        if topic.captured > since or key in changed:
            yield topic
    # Incarnations that have ended are as the last restore point has them.
    last = archive.state.last_points()
    for key in sorted(set(changed) - newest.keys()):
        point = archive.state.point(last.get(key, 0))
        if point is None:
            continue
        former = archive.manifest(point).incarnations().get(key)
        if former is not None:
            yield former


def _group_files(archive: Archive, topics: Iterable[TopicState], state: State) -> dict[str, bytes]:
    """Return the group offsets of each partition of `topics`, bytes by key, by the last capture of each topic."""
    by_capture: dict[int, list[TopicState]] = defaultdict(list)
    for topic in topics:
        by_capture[topic.captured].append(topic)
    files: dict[str, bytes] = {}
    for captured, captured_topics in by_capture.items():
        # Not `archive.groups`, which leaves kbackup's own out: files that were derived from the document stay valid.
        ref = archive.capture(captured).groups
        groups = load(Groups, archive.read_document(ref), ref.key)
        offsets = _offsets_of_groups(groups, captured_topics, state)
        for topic in captured_topics:
            folder = layout.topic_dir(topic.name, topic.incarnation)
            for partition in topic.partitions:
                key = layout.group_offsets_key(folder, partition.partition)
                files[key] = encode_group_offsets(offsets[topic.name, partition.partition])
    return files


def _offsets_of_groups(
    groups: Groups, topics: Iterable[TopicState], state: State
) -> defaultdict[tuple[str, int], dict[str, int]]:
    """Return the offset of each group in each partition of `topics`, as the Java tool can find it.

    If the archive ends before the log did, a group that is further on gets the archive's end. A group before the log
    start gets the log start.
    """
    ends: dict[tuple[str, int], int] = {}
    incarnations: dict[str, int] = {}
    for topic in topics:
        incarnations[topic.name] = topic.incarnation
        for partition in topic.partitions:
            if partition.end < partition.log_end:
                ends[topic.name, partition.partition] = partition.end
    offsets: defaultdict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for group in groups.groups:
        # The files don't say what kind of group one is, and the Java tool would set a share group like the others.
        if group.type == SHARE:
            continue
        for committed in group.offsets:
            place = (committed.topic, committed.partition)
            offset = min(committed.offset, ends.get(place, committed.offset))
            incarnation = incarnations.get(committed.topic, 0)
            start = state.starts.get((committed.topic, incarnation, committed.partition))
            if start is not None:
                offset = max(offset, start.start)
            offsets[place][group.group] = offset
    return offsets
