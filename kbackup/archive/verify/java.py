"""A folder of the Java tool: no manifest promises anything there, so its files are held against each other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from kbackup.archive import layout
from kbackup.archive.identity import ANOTHER_COPY
from kbackup.archive.java import Flaw, JavaFolder
from kbackup.archive.query.java import empty_groups, segment_of
from kbackup.archive.segments.table import Segment
from kbackup.archive.verify.catalog import INDEX_HINT
from kbackup.archive.verify.findings import Findings
from kbackup.formats.index import decode_group_offsets, decode_partition_index, encode_partition_index
from kbackup.store.base import ObjectInfo, Store
from kbackup.util.system import in_threads

_WITHOUT_ENTRIES = 1  # bytes: the magic
_MIXED = "is the folder a mix of two archives?"


@dataclass
class _Partition:
    """The files of one partition. `records` and `indexes` are by the offset in the file's name."""

    records: dict[int, ObjectInfo] = field(default_factory=dict)
    indexes: dict[int, ObjectInfo] = field(default_factory=dict)
    index: ObjectInfo | None = None


def survey_folder(store: JavaFolder, topics: list[str], findings: Findings) -> tuple[list[Segment], set[str]]:
    """Check everything but the records themselves. Return the segments, and the keys of segments that are not worth
    reading. What a sink left behind when it was killed becomes a note."""
    segments: list[Segment] = []
    for topic in topics:
        for number, partition in sorted(_partitions(store.inner, topic, findings).items()):
            segments += _check_partition(store, topic, number, partition, findings)
        for flaw in store.flaws(topic):
            _report_flaw(flaw, findings)
    unreadable = {segment.key for segment in segments if not _fits(segment)}
    return segments, unreadable


def _report_flaw(flaw: Flaw, findings: Findings) -> None:
    if flaw.damaged:
        findings.add(flaw.key, flaw.defect, INDEX_HINT)
    else:
        findings.note(flaw.key, flaw.defect, flaw.bytes)


def _partitions(store: Store, topic: str, findings: Findings) -> dict[int, _Partition]:
    partitions: dict[int, _Partition] = defaultdict(_Partition)
    for entry in store.list(f"{topic}/"):
        name = entry.key.removeprefix(f"{topic}/")
        segment = layout.parse_segment(name)
        number = layout.parse_partition_index(name)
        if segment is not None:
            partition = partitions[segment.partition]
            kind = partition.indexes if segment.kind == "index" else partition.records
            # two files of one offset: compressed and not, or with and without padding in the name
            twin = kind.setdefault(segment.start, entry)
            if twin is not entry:
                findings.add(entry.key, f"is there beside {twin.key}", _MIXED)
        elif number is not None:
            partitions[number].index = entry
        elif layout.parse_group_offsets(name) is not None:
            if not entry.size:
                _report_flaw(empty_groups(entry.key), findings)
                continue
            with findings.catching(entry.key):
                decode_group_offsets(store.get(entry.key), entry.key)
        else:
            findings.note(entry.key, "is no file of the format", entry.size)
    # Kafka numbers partitions from 0 without gaps.
    expected = set(range(max(partitions, default=-1) + 1))
    for missing in sorted(expected - partitions.keys()):
        findings.add(
            f"{topic}/index_partition_{missing:03d}",
            f"is missing, as is every other file of partition {missing}",
            "is the folder complete?",
        )
    return partitions


def _check_partition(
    store: JavaFolder, topic: str, number: int, partition: _Partition, findings: Findings
) -> list[Segment]:
    for start in partition.indexes.keys() - partition.records.keys():
        if partition.indexes[start].size > _WITHOUT_ENTRIES:  # the sink makes an index before its records file
            records = layout.records_key(f"{topic}/", number, start, "none")
            findings.add(records, "is missing, its index is there", ANOTHER_COPY)
    segments = _describe(store, topic, number, partition, findings)
    _check_order(segments, findings)
    _check_index(store, layout.partition_index_key(f"{topic}/", number), partition, findings)
    for segment in segments:
        if not _fits(segment):
            findings.add(segment.key, f"has {segment.stored} bytes, its index says {segment.bytes}", ANOTHER_COPY)
    return segments


def _describe(store: JavaFolder, topic: str, number: int, partition: _Partition, findings: Findings) -> list[Segment]:
    """Return the segments of a partition by their indexes, without segments whose index is damaged."""

    def describe(start: int) -> Segment | None:
        with findings.catching(partition.records[start].key):
            return segment_of(store, topic, number, partition.records[start])
        return None

    described = in_threads(describe, sorted(partition.records))
    return [segment for segment in described if segment is not None]


def _check_order(segments: list[Segment], findings: Findings) -> None:
    """Add a finding for each segment that overlaps the one before it, or begins before the offset in its name."""
    filled = [segment for segment in segments if segment.count]
    filled.sort(key=lambda segment: segment.first)
    for before, segment in pairwise(filled):
        if segment.first <= before.last:
            what = f"begins at offset {segment.first}, but {before.key} ends at {before.last}"
            findings.add(segment.key, what, _MIXED)
    for segment in filled:
        name = layout.parse_segment(segment.key.rpartition("/")[2])
        if name is not None and segment.first < name.start:
            findings.add(segment.key, f"begins at offset {segment.first}, before its name says", _MIXED)


def _fits(segment: Segment) -> bool:
    """Return whether the records file has the size that its index says. Nobody knows that of a compressed file."""
    return layout.compression_of(segment.key) != "none" or segment.stored == segment.bytes


def _check_index(store: Store, key: str, partition: _Partition, findings: Findings) -> None:
    """Check that the partition index names exactly the segments that are there."""
    stems: set[str] = set()
    for entry in [*partition.records.values(), *partition.indexes.values()]:
        stems.add(layout.stem_of(entry.key.removesuffix("_index")))
    if partition.index is None:
        findings.note(key, "is missing: the partition's segments are read without it")
        return
    key = partition.index.key
    data = store.get(key)
    if not data:
        findings.note(key, "is empty: the partition's segments are read without it")
        return
    with findings.catching(key):
        entries = {entry.name: entry for entry in decode_partition_index(data, key, partial=True)}
        whole = encode_partition_index(list(entries.values()))
        # What is left behind the entries that could be decoded: the sink was killed while it wrote one.
        rest = len(data) - len(whole)
        if rest:
            findings.note(key, "ends within an entry", rest)
        for name in sorted(stems - entries.keys()):
            findings.note(key, f"does not name {name}, which is there")
        for name in sorted(entries.keys() - stems):
            findings.add(key, f"names {name}, which is not there", ANOTHER_COPY)
        for name in sorted(entries.keys() & stems):
            if not name.endswith(f"_{entries[name].start_offset:010d}"):
                findings.add(key, f"says that {name} starts at {entries[name].start_offset}", INDEX_HINT)
