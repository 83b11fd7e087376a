"""A folder that the Java tool (itadventurer/kafka-backup) wrote, read as it is: topic folders at its root, nothing
else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from kbackup.archive import layout
from kbackup.archive.java import Flaw, JavaFolder
from kbackup.archive.models import Group, GroupOffset
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content, with_offsets
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NoArchiveError
from kbackup.formats.index import decode_group_offsets
from kbackup.store.base import ObjectInfo, Store
from kbackup.util.system import in_threads

JAVA = "java"  # the archive id of a folder of the Java tool, which has none of its own


def open_archive_or_folder(store: Store) -> Archive | None:
    """Return the archive; None for a folder of the Java tool. `NoArchiveError` for neither."""
    try:
        return open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
    return None


def is_java_archive(store: Store) -> bool:
    """Return whether any folder at the root has a partition index or a segment."""
    store = _listed(store)
    # By the beginnings of names: a folder of another program may have millions of objects, which are not listed.
    for directory in store.list_dirs(""):
        for prefix in ("index_partition_", "segment_partition_"):
            for entry in store.list(f"{directory}/{prefix}"):
                name = entry.key.removeprefix(f"{directory}/")
                if layout.parse_partition_index(name) is not None or layout.parse_segment(name) is not None:
                    return True
    return False


def readable(store: Store, archive_id: str) -> Store:
    """Return the store that the records of the archive `archive_id` at `store` are read from."""
    return JavaFolder(store) if archive_id == JAVA else store


def java_topics(store: Store) -> list[str]:
    """Return the folders that hold files of the format."""
    topics: list[str] = []
    for directory in store.list_dirs(""):
        if any(_files(store, directory)):
            topics.append(directory)
    return topics


def java_content(store: Store, topics: Sequence[str]) -> Content:
    """Return `topics` of the folder, without segments that have no records: the tool makes such a segment for an empty
    partition. Records are to be read from the store that `readable` returns."""
    folder = store if isinstance(store, JavaFolder) else JavaFolder(store)
    warnings: list[str] = []
    groups: dict[str, list[GroupOffset]] = {}
    archived: list[ArchivedTopic] = []
    for topic in topics:
        files: dict[str, ObjectInfo] = {}
        for entry in _files(store, topic):
            files[entry.key.removeprefix(f"{topic}/")] = entry
        # Records are read through `folder`, which leaves out what the tool did not finish; the warnings name it.
        archived.append(_topic(folder, topic, files))
        warnings += [flaw.message for flaw in folder.flaws(topic)]
        warnings += [flaw.message for flaw in missing_indexes(topic, files)]
        for name, entry in files.items():
            partition = layout.parse_group_offsets(name)
            if partition is None:
                continue
            if not entry.size:
                warnings.append(empty_groups(entry.key).message)
            committed = decode_group_offsets(folder.get(entry.key), entry.key)
            for group, offset in committed.items():
                # A group that this program commits offsets with, not one of the user's.
                if layout.is_own_group(group):
                    continue
                archived_offset = GroupOffset(topic=topic, partition=partition, offset=offset)
                groups.setdefault(group, []).append(archived_offset)
    if not archived:
        raise NoArchiveError(f"there is no archive at {store.url}", "check the address")
    by_group: dict[str, Group] = {}
    for name, offsets in sorted(groups.items()):
        empty = Group(group=name, type="", state="", offsets=())
        by_group[name] = with_offsets(empty, offsets)
    return Content(JAVA, 0, tuple(archived), by_group, warnings=tuple(warnings))


def empty_groups(key: str) -> Flaw:
    """Return the flaw of an empty file of group offsets."""
    return Flaw(key, "is empty: offsets of groups of that partition are not known")


def missing_indexes(topic: str, files: Iterable[str]) -> Iterator[Flaw]:
    """Yield a flaw for each partition index that `topic` lacks, by the names of its files."""
    indexed: set[int] = set()
    with_segments: set[int] = set()
    for file in files:
        number = layout.parse_partition_index(file)
        segment = layout.parse_segment(file)
        if number is not None:
            indexed.add(number)
        elif segment is not None:
            with_segments.add(segment.partition)
    for number in sorted(with_segments - indexed):
        yield Flaw(layout.partition_index_key(f"{topic}/", number), "is missing")


def _listed(store: Store) -> Store:
    """Return the store with the files as the tool wrote them: `JavaFolder` shows whole records alone."""
    return store.inner if isinstance(store, JavaFolder) else store


def _files(store: Store, topic: str) -> Iterator[ObjectInfo]:
    """Yield the files of the format in the folder of a topic."""
    for entry in _listed(store).list(f"{topic}/"):
        name = entry.key.removeprefix(f"{topic}/")
        parsers = (layout.parse_segment, layout.parse_partition_index, layout.parse_group_offsets)
        if any(parse(name) is not None for parse in parsers):
            yield entry


def _topic(store: JavaFolder, topic: str, files: dict[str, ObjectInfo]) -> ArchivedTopic:
    """Return a topic by its files. `CorruptError` if a partition has none, or if segments overlap."""
    numbers: set[int] = set()
    records: list[tuple[int, ObjectInfo]] = []  # of each segment: its partition, and the file with its records
    for name, entry in files.items():
        indexed = layout.parse_partition_index(name)
        if indexed is not None:
            numbers.add(indexed)
        parsed = layout.parse_segment(name)
        if parsed is None:
            continue
        numbers.add(parsed.partition)
        if parsed.kind != "index":
            records.append((parsed.partition, entry))

    def read(each: tuple[int, ObjectInfo]) -> Segment:
        partition, entry = each
        return segment_of(store, topic, partition, entry)

    segments = in_threads(read, records)
    missing = set(range(max(numbers) + 1)) - numbers  # Kafka numbers partitions from 0 without gaps
    if missing:
        raise CorruptError(
            f"topic {topic} has no files for partition {min(missing)}",
            "copy the whole folder again; every partition has at least an index there",
        )
    partitions: list[ArchivedPartition] = []
    for number in sorted(numbers):
        own = [segment for segment in segments if segment.partition == number]
        partitions.append(_partition(number, own))
    return ArchivedTopic(
        name=topic,
        incarnation=1,
        as_of=0,
        state="present",
        partitions=tuple(partitions),
        configs=None,
        replication_factor=None,
    )


def _partition(number: int, segments: Iterable[Segment]) -> ArchivedPartition:
    """Return a partition with its segments that have records. `CorruptError` if segments overlap."""
    filled = [segment for segment in segments if segment.count]
    filled.sort(key=lambda segment: segment.first)
    for segment, following in pairwise(filled):
        if following.first <= segment.last:
            raise CorruptError(
                f"file {following.key} begins within {segment.key}",
                "split the folder by archive: it looks like a mix of two",
            )
    start = end = 0
    if filled:
        start = filled[0].first
        end = filled[-1].last + 1
    return ArchivedPartition(number, start, end, tuple(filled))


def segment_of(store: JavaFolder, topic: str, partition: int, entry: ObjectInfo) -> Segment:
    """Return the segment of a records file, as its index describes it. Checksums and timestamps are not known."""
    read = store.segment(entry.key, entry.size)
    index = read.index
    count = len(index)
    first, last, largest = 0, -1, 0
    if count:
        first = int(index.offsets[0])
        last = int(index.offsets[-1])
        largest = int(np.max(index.lengths))
    return Segment(
        topic=topic,
        incarnation=1,
        partition=partition,
        first=first,
        last=last,
        count=count,
        bytes=index.file_size,
        stored=read.stored,
        min_timestamp=None,
        max_timestamp=None,
        largest=largest,
        crc="",
        index_crc="",
        key=entry.key,
    )
