"""Lost documents of listed restore points, made anew.

A listed restore point stays where its manifest, groups or metadata are lost: a manifest follows from the catalog and
from the restore points beside it. Lost groups and metadata are empty, and the manifest says that they are not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.points import point_row
from kbackup.archive.catalog.state import ExpiredPoint, PointRow, State
from kbackup.archive.models import (
    Capture,
    Deletions,
    Document,
    DocumentRef,
    Groups,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    Schemas,
    TopicState,
    Totals,
    load,
)
from kbackup.archive.repair.base import Documents
from kbackup.archive.repair.points import captured_topics, partitions_not_known, topic_at
from kbackup.archive.run import TOOL, WritingRun
from kbackup.metadata.entities import NotCarried
from kbackup.types import Incarnation, IncarnationPartition

_LOST = "is lost or damaged"


class _Extent(NamedTuple):
    """The offsets of a segment or of a loss, with the restore point that added it, its records and bytes."""

    point: int
    partition: int
    first: int
    last: int
    records: int
    bytes: int


@dataclass
class ManifestRebuilder:
    """Makes documents anew for `writing`, which has not committed yet. `manifests` has the readable manifests by
    number, `losses` describes what can't be recovered, and `made` has the keys of replaced documents.

    Several restore points may have one capture in common. Such a capture is made anew once: `_captures` keeps it, by
    its keys and its number.
    """

    writing: WritingRun
    documents: Documents
    manifests: dict[int, Manifest]
    losses: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    _captures: dict[tuple[str, str, int], Capture] = field(default_factory=dict)

    def mend(self, state: State) -> State:
        """Return `state` with every document of its restore points there. The replaced manifests stay known as expired
        ones: whoever follows the archive has seen them."""
        extents = _extents_of(state)
        new: dict[int, PointRow] = {}
        # Rising, so that a manifest that is made anew serves the restore points after it.
        for point in state.restore_points:
            made = self._mended(state, point, extents)
            if made is None:
                continue
            ref = self.writing.put_document(point.number, layout.MANIFEST, made)
            # read back: a manifest has its checksum only once it was written
            manifest = load(Manifest, self.writing.store.get(ref.key), ref.key)
            self.manifests[point.number] = manifest
            new[point.number] = point_row(manifest, ref.key)
        if not new:
            return state
        rows: list[PointRow] = []
        replaced: list[ExpiredPoint] = []
        for point in state.restore_points:
            rows.append(new.get(point.number, point))
            if point.number in new:
                replaced.append(ExpiredPoint(point.number, point.manifest))
        return replace(state, points=state.points.replace(rows), past=state.past.append(replaced))

    def _mended(self, state: State, point: PointRow, extents: Mapping[Incarnation, list[_Extent]]) -> Manifest | None:
        """Return the manifest that a restore point needs instead of its own; None if all of its documents are there."""
        notes: list[str] = []
        manifest = self.manifests.get(point.number)
        if manifest is None:
            manifest = self._manifest(state, point, extents)
            notes.append(
                "the manifest was lost: it is made of the catalog and of other restore points; records of "
                "transactions that it left to the next one may be missing"
            )
            self.losses.append(f"restore point {point.number}: its manifest {_LOST}; made of the catalog")
            self.made.append(point.documents[0])
        # These three describe in `notes` what is lost. Without a note the manifest stays the one that was committed.
        captures = [self._whole(point.number, capture, notes) for capture in manifest.captures]
        schemas = self._schemas(point.number, manifest.schemas, notes)
        deletions = self._deletions(point.number, manifest.deletions, notes)
        if not notes:
            return None
        return msgspec.structs.replace(
            manifest,
            run=self.writing.run,
            captures=tuple(captures),
            schemas=schemas,
            deletions=deletions,
            not_known=manifest.not_known + tuple(notes),
        )

    def _is_whole(self, ref: DocumentRef) -> bool:
        """Return whether the document is there, and is the one that the reference means."""
        _, found = self.documents.get(ref.key, (None, None))
        return found == ref

    def _whole(self, number: int, capture: Capture, notes: list[str]) -> Capture:
        """Return the capture with documents that are there: empty ones in the place of lost ones."""
        lost: list[str] = []
        for ref in (capture.groups, capture.metadata):
            if not self._is_whole(ref):
                lost.append(ref.key)
        if not lost:
            return capture
        unknown: list[str] = []
        for each in lost:
            what = "group offsets" if each.endswith(layout.GROUPS) else "configs and settings"
            unknown.append(f"{what} captured for restore point {capture.number}: the document {_LOST}")
        notes += unknown
        key = (capture.groups.key, capture.metadata.key, capture.number)
        if key not in self._captures:
            self._captures[key] = self._new_capture(number, capture, lost)
            self.losses += [f"restore point {capture.number}: {text}" for text in unknown]
            self.made += lost
        return self._captures[key]

    def _new_capture(self, number: int, capture: Capture, lost: Sequence[str]) -> Capture:
        """Return the capture with empty documents in place of the `lost` ones, written for restore point `number`."""
        at = capture.started_at
        groups = capture.groups
        if groups.key in lost:
            no_groups = Groups(captured_at=at, groups=())
            groups = self._put(number, f"{capture.number}-{layout.GROUPS}", no_groups)
        metadata = capture.metadata
        if metadata.key in lost:
            why = "the document was lost; kbackup repair made it anew"
            unread = NotCarried(part=None, what="cluster", reason="failed", why=why)
            nothing = Metadata(captured_at=at, cluster_id="", brokers=0, topics=(), not_carried=(unread,))
            metadata = self._put(number, f"{capture.number}-{layout.METADATA}", nothing)
        return Capture(number=capture.number, started_at=at, groups=groups, metadata=metadata)

    def _schemas(self, number: int, ref: DocumentRef | None, notes: list[str]) -> DocumentRef | None:
        """Return the schemas of a restore point, None where they are lost."""
        if ref is None or self._is_whole(ref):
            return ref
        notes.append(f"schemas: the document {_LOST}")
        self.losses.append(f"restore point {number}: schemas: the document {_LOST}")
        return None

    def _deletions(self, number: int, ref: DocumentRef | None, notes: list[str]) -> DocumentRef | None:
        """Return the records that a restore leaves out, None where the document is lost."""
        if ref is None or self._is_whole(ref):
            return ref
        unknown = f"deletions: the document {_LOST}; a restore brings back keys that were deleted at the source"
        notes.append(unknown)
        self.losses.append(f"restore point {number}: {unknown}")
        return None

    def _put(self, number: int, name: str, document: Document) -> DocumentRef:
        ref = self.writing.put_document(number, name, document)
        self.documents[ref.key] = (document, ref)
        return ref

    def _manifest(self, state: State, point: PointRow, extents: Mapping[Incarnation, list[_Extent]]) -> Manifest:
        """Return a manifest of a restore point whose own is lost, by its row and by the restore points beside it."""
        number = point.number
        before, after = self._beside(number)
        own = self._own_capture(point)
        topics, unsure = self._lost_topics(state, point, extents, (before, after), own)
        not_known = [partitions_not_known(unsure)] if unsure else []
        losses: list[Loss] = []
        for row in state.lost:
            if row.point == number and row.loss.kind != "damaged":  # what was damaged since shows in the catalog
                losses.append(row.loss)
        totals = {name: getattr(point, name) for name in Totals.__struct_fields__}
        uncommitted = point.isolation_level == "read_uncommitted"
        all_earlier = [other for other in state.numbers.tolist() if other < number]
        return Manifest(
            archive_id=state.archive_id,
            number=number,
            run=self.writing.run,
            previous=max(all_earlier, default=None),
            origin="repair",
            tool=TOOL,
            started_at=point.started_at,
            committed_at=point.committed_at,
            cluster_id=point.cluster_id,
            isolation_level="read_uncommitted" if uncommitted else "read_committed",
            losses=tuple(losses),
            totals=Totals(**totals),
            captures=_needed_captures(topics, own, (before, after)),
            schemas=self._named(point, Schemas),
            deletions=self._named(point, Deletions),
            topics=tuple(topics),
            not_known=tuple(not_known),
        )

    def _beside(self, number: int) -> tuple[Manifest | None, Manifest | None]:
        """Return the nearest manifests before and after a restore point, None where there is none."""
        earlier = [other for other in self.manifests if other < number]
        later = [other for other in self.manifests if other > number]
        # Restore points are numbered from 1, so there is none under 0.
        before = self.manifests.get(max(earlier, default=0))
        after = self.manifests.get(min(later, default=0))
        return before, after

    def _lost_topics(
        self,
        state: State,
        point: PointRow,
        extents: Mapping[Incarnation, list[_Extent]],
        beside: tuple[Manifest | None, Manifest | None],
        own: Capture,
    ) -> tuple[list[TopicState], list[str]]:
        """Return the topics of a restore point whose manifest is lost, and the names of the topics whose number of
        partitions is not known for certain."""
        document, _ = self.documents.get(own.metadata.key, (None, None))
        captured: set[str] | None = None  # the capture is lost: then nobody knows
        if isinstance(document, Metadata):
            captured = {topic.name for topic in document.topics}
        every = captured_topics(self.documents)
        in_others: set[Incarnation] = set()
        for manifest in beside:
            if manifest is not None:
                in_others.update(manifest.incarnations())
        topics: list[TopicState] = []
        unsure: list[str] = []
        for key, life in sorted(state.lives.items()):
            if life.first is None or life.retired:
                continue
            if not life.first <= point.number <= (life.last or point.number):
                continue
            known = topic_at(every, key[0], life.topic_id, point.number)
            # Segments show only partitions that have had a record, so without a capture or a manifest beside this one
            # the number of partitions may be too low.
            count = known.partitions if known is not None else 0
            topics.append(_lost_topic(state, point, key, extents.get(key, ()), beside, captured, count))
            if known is None and key not in in_others:
                unsure.append(key[0])
        return topics, unsure

    def _named(self, point: PointRow, kind: type[Document]) -> DocumentRef | None:
        """Return the whole document of a kind that a restore point's row names; None if it has none."""
        for key in point.documents:
            ref = self._found(key, kind)
            if ref is not None:
                return ref
        return None

    def _found(self, key: str, kind: type[Document]) -> DocumentRef | None:
        """Return the reference of a whole document, None if it is lost or of another kind."""
        document, ref = self.documents.get(key, (None, None))
        return ref if isinstance(document, kind) else None

    def _own_capture(self, point: PointRow) -> Capture:
        """Return the capture of a restore point whose manifest is lost, by the documents that its row names."""
        groups = self._newest(point, layout.GROUPS, Groups)
        metadata = self._newest(point, layout.METADATA, Metadata)
        return Capture(number=point.number, started_at=point.started_at, groups=groups, metadata=metadata)

    def _newest(self, point: PointRow, name: str, kind: type[Document]) -> DocumentRef:
        """Return the document of that name whose restore point is the newest. If it is lost, return a reference that no
        document can have."""
        newest = -1
        key = layout.point_key(point.number, "0", name)
        for each in point.documents:
            if not each.endswith(name):
                continue
            parsed = layout.parse_point_key(each)
            number = parsed[0] if parsed is not None else 0
            if number > newest:
                newest = number
                key = each
        return self._found(key, kind) or DocumentRef(key=key, size=0, sha256="")


def _needed_captures(
    topics: Sequence[TopicState], own: Capture, beside: tuple[Manifest | None, Manifest | None]
) -> tuple[Capture, ...]:
    """Return the captures that `topics` refer to, and the restore point's `own`, in order."""
    before, after = beside
    captures: dict[int, Capture] = {}
    # the manifest before comes last: if both have a capture, its reference counts
    for manifest in (after, before):
        if manifest is not None:
            for capture in manifest.captures:
                captures[capture.number] = capture
    captures[own.number] = own
    needed = {topic.captured for topic in topics}
    needed.add(own.number)
    return tuple(captures[number] for number in sorted(needed))


def _extents_of(state: State) -> dict[Incarnation, list[_Extent]]:
    """Return the extents of all segments, and of what was erased from them or lost: the restore points went over these
    offsets as well."""
    extents: dict[Incarnation, list[_Extent]] = defaultdict(list)
    names = ("point", "partition", "first", "last", "count", "bytes")
    for topic, incarnation, *row in state.segments.rows("topic", "incarnation", *names):
        extents[topic, incarnation].append(_Extent(*row))
    for gone in state.rewrites:
        # A manifest counts erased records as well, and goes as far as the segment went that had them.
        extent = _Extent(gone.point, gone.partition, gone.first, gone.last, gone.records, gone.bytes)
        extents[gone.topic, gone.incarnation].append(extent)
    for lost in state.lost:
        loss = lost.loss
        if loss.partition is None or loss.end is None:
            continue
        # A loss without a start has no offsets that are known, and still shows how far the partition went.
        start = loss.start if loss.start is not None else loss.end
        extent = _Extent(lost.point, loss.partition, start, loss.end - 1, 0, 0)
        extents[lost.incarnation_key].append(extent)
    return extents


def _lost_topic(
    state: State,
    point: PointRow,
    key: Incarnation,
    extents: Sequence[_Extent],
    beside: tuple[Manifest | None, Manifest | None],
    captured: set[str] | None,
    count: int,
) -> TopicState:
    """Return a topic of a restore point whose manifest is lost. `count` is its number of partitions by a capture, 0 if
    no document has it: a partition that never had a record has no row."""
    name, incarnation = key
    before, after = (_topic_of(manifest, key) for manifest in beside)
    if after is not None and after.captured <= point.number:
        # It was captured then, and not since, so nothing was added to it. Its `state` is what the later run found: at
        # its own capture the topic was present.
        if after.captured == point.number:
            return msgspec.structs.replace(after, state="present")
        return after
    own = [extent for extent in extents if extent.point <= point.number]
    # The topic may have got more partitions by the time of `after`: the capture's count comes before that one.
    template = before if before is not None or count else after
    partitions: list[PartitionState] = []
    for partition in _partition_numbers(template, own, count):
        added = [extent for extent in own if extent.partition == partition]
        partitions.append(_lost_partition(state, (name, incarnation, partition), added, before, after))
    captured_at = point.number
    if before is not None and captured is not None and name not in captured:
        # The lost restore point's run did not look at the topic, and carried it over.
        captured_at = before.captured
    as_before = before is not None and captured_at == before.captured
    return TopicState(
        name=name,
        id=state.lives[key].topic_id,
        incarnation=incarnation,
        captured=captured_at,
        state=before.state if before is not None and as_before else "present",
        partitions=tuple(partitions),
    )


def _partition_numbers(template: TopicState | None, extents: Sequence[_Extent], count: int) -> list[int]:
    """Return the partitions of a topic: the ones of `template`, and as many as left a trace or were captured."""
    known: set[int] = set()
    if template is not None:
        known.update(partition.partition for partition in template.partitions)
    # Kafka numbers partitions from 0 without gaps, so the highest one that left a trace tells how many there were.
    # A partition that never had a record leaves none: then the capture's count decides, and a topic has at least one.
    number_of_partitions = max(count, 0 if known else 1)
    for extent in extents:
        number_of_partitions = max(number_of_partitions, extent.partition + 1)
    return sorted(known.union(range(number_of_partitions)))


def _lost_partition(
    state: State,
    key: IncarnationPartition,
    extents: Sequence[_Extent],
    before: TopicState | None,
    after: TopicState | None,
) -> PartitionState:
    """Return a partition of a restore point whose manifest is lost. It ends where the last of its segments ends, or
    where it ended before: what transactions held back then may be missing."""
    partition = key[2]
    old = _partition_of(before, partition)
    new = _partition_of(after, partition)
    log_start = state.starts.get(key)
    known = old or new
    first = min((extent.first for extent in extents), default=0)
    start = known.start if known is not None else first
    end = start
    for extent in extents:
        end = max(end, extent.last + 1)
    if old is not None:
        end = max(end, old.end)
    # Segments below the log start have expired, so none shows that the partition went as far. If the restore point
    # after this one ends before the log start, those records came later.
    if log_start is not None and (new is None or new.end >= log_start.start):
        end = max(end, log_start.start)
    log_end = max(end, old.log_end) if old is not None else end
    records = sum(extent.records for extent in extents)
    size = sum(extent.bytes for extent in extents)
    if log_start is not None and end >= log_start.start:
        # no segment shows the records that expired since; the restore point had them
        records += log_start.records
        size += log_start.bytes
    return PartitionState(
        partition=partition,
        start=start,
        end=end,
        log_start=known.log_start if known is not None else start,
        log_end=log_end,
        records=records,
        bytes=size,
    )


def _topic_of(manifest: Manifest | None, key: Incarnation) -> TopicState | None:
    if manifest is None:
        return None
    return manifest.incarnations().get(key)


def _partition_of(topic: TopicState | None, number: int) -> PartitionState | None:
    if topic is None:
        return None
    for partition in topic.partitions:
        if partition.partition == number:
            return partition
    return None
