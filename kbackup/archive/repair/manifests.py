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
    """The offsets of a segment or of a loss, and what the restore point that added it has there."""

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

    Several restore points may have one capture in common. It is made anew once, and `_captures` has it by its keys and
    its number.
    """

    writing: WritingRun
    documents: Documents
    manifests: dict[int, Manifest]
    losses: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    _captures: dict[tuple[str, str, int], Capture] = field(default_factory=dict)

    def mend(self, state: State) -> State:
        """Return `state` with every document of its restore points there. The manifests that are replaced stay known:
        who follows the archive has seen them."""
        extents = _extents_of(state)
        new: dict[int, PointRow] = {}
        # Rising, so that a manifest that is made anew serves the restore points after it.
        for point in state.restore_points:
            made = self._mended(state, point, extents)
            if made is None:
                continue
            ref = self.writing.put_document(point.number, layout.MANIFEST, made)
            # as it was written: only then has it its checksum
            manifest = load(Manifest, self.writing.store.get(ref.key), ref.key)
            self.manifests[point.number] = manifest
            new[point.number] = point_row(manifest, ref.key)
        if not new:
            return state
        rows = [new.get(point.number, point) for point in state.restore_points]
        replaced = [ExpiredPoint(p.number, p.manifest) for p in state.restore_points if p.number in new]
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
            not_known=(*manifest.not_known, *notes),
        )

    def _is_whole(self, ref: DocumentRef) -> bool:
        """Return whether the document is there, and is the one that the reference means."""
        _, found = self.documents.get(ref.key, (None, None))
        return found == ref

    def _whole(self, number: int, capture: Capture, notes: list[str]) -> Capture:
        """Return the capture with documents that are there, empty ones where they are lost."""
        lost = [ref.key for ref in (capture.groups, capture.metadata) if not self._is_whole(ref)]
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
        """Return the capture with empty documents for those that are `lost`, written for restore point `number`."""
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
        earlier = [other for other in self.manifests if other < number]
        later = [other for other in self.manifests if other > number]
        before = self.manifests.get(max(earlier, default=0))
        after = self.manifests.get(min(later, default=0))
        own = self._own_capture(point)
        topics, unsure = self._lost_topics(state, point, extents, (before, after), own)
        not_known = [partitions_not_known(unsure)] if unsure else []
        captures: dict[int, Capture] = {}
        # the one before comes last: where both have a capture, its own reference counts
        for beside in (after, before):
            if beside is not None:
                captures |= {capture.number: capture for capture in beside.captures}
        captures[number] = own
        needed = {topic.captured for topic in topics}
        needed.add(number)
        found = [row.loss for row in state.lost if row.point == number]
        losses = [loss for loss in found if loss.kind != "damaged"]  # what was damaged since shows in the catalog
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
            captures=tuple(captures[each] for each in sorted(needed)),
            schemas=self._named(point, Schemas),
            deletions=self._named(point, Deletions),
            topics=tuple(topics),
            not_known=tuple(not_known),
        )

    def _lost_topics(
        self,
        state: State,
        point: PointRow,
        extents: Mapping[Incarnation, list[_Extent]],
        beside: tuple[Manifest | None, Manifest | None],
        own: Capture,
    ) -> tuple[list[TopicState], list[str]]:
        """Return the topics of a restore point whose manifest is lost, and the names of those whose number of
        partitions is not known for certain."""
        document, _ = self.documents.get(own.metadata.key, (None, None))
        captured = {topic.name for topic in document.topics} if isinstance(document, Metadata) else None
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
        newest, key = -1, layout.point_key(point.number, "0", name)
        for each in point.documents:
            if not each.endswith(name):
                continue
            parsed = layout.parse_point_key(each)
            number = parsed[0] if parsed is not None else 0
            if number > newest:
                newest, key = number, each
        return self._found(key, kind) or DocumentRef(key=key, size=0, sha256="")


def _extents_of(state: State) -> dict[Incarnation, list[_Extent]]:
    """Return the extents of all segments and of all losses, whose offsets the restore points went over as well."""
    extents: dict[Incarnation, list[_Extent]] = defaultdict(list)
    names = ("point", "partition", "first", "last", "count", "bytes")
    for topic, incarnation, *row in state.segments.rows("topic", "incarnation", *names):
        extents[topic, incarnation].append(_Extent(*row))
    for lost in state.lost:
        loss = lost.loss
        if loss.partition is None or loss.end is None:
            continue
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
    """Return a topic of a restore point whose manifest is lost. `count` is its number of partitions by a capture, 0
    where no document has it: a partition that never had a record has no row."""
    before, after = (_topic_of(manifest, key) for manifest in beside)
    if after is not None and after.captured <= point.number:  # it was captured then, and not since
        is_own = after.captured == point.number
        return msgspec.structs.replace(after, state="present") if is_own else after
    own = [extent for extent in extents if extent.point <= point.number]
    # The topic may have got more partitions by the time of `after`: the capture's count comes before that one.
    template = before if before is not None or count else after
    known = {p.partition for p in template.partitions} if template is not None else set[int]()
    # Kafka numbers partitions from 0 without gaps, so the highest one that left a trace tells how many there were.
    # A partition that never had a record leaves none: then the capture's count decides, and a topic has at least one.
    with_records = [extent.partition + 1 for extent in own]
    least = 0 if known else 1
    number_of_partitions = max([least, count, *with_records])
    numbers = known.union(range(number_of_partitions))
    number = point.number
    if before is not None and captured is not None and key[0] not in captured:
        number = before.captured  # its run did not look at the topic
    partitions: list[PartitionState] = []
    for partition in sorted(numbers):
        added = [extent for extent in own if extent.partition == partition]
        partitions.append(_lost_partition(state, (*key, partition), added, before, after))
    as_before = before is not None and number == before.captured
    return TopicState(
        name=key[0],
        id=state.lives[key].topic_id,
        incarnation=key[1],
        captured=number,
        state=before.state if before is not None and as_before else "present",
        partitions=tuple(partitions),
    )


def _lost_partition(
    state: State,
    key: IncarnationPartition,
    extents: Sequence[_Extent],
    before: TopicState | None,
    after: TopicState | None,
) -> PartitionState:
    """Return a partition of a restore point whose manifest is lost. It ends where the last of its segments does, or
    where it ended before: what transactions held back then may be missing."""
    old = _partition_of(before, key[2])
    new = _partition_of(after, key[2])
    log_start = state.starts.get(key)
    known = old or new
    firsts = [extent.first for extent in extents]
    ends = [extent.last + 1 for extent in extents]
    start = known.start if known is not None else min(firsts, default=0)
    end = max([start, *ends])
    if old is not None:
        end = max(end, old.end)
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
        partition=key[2],
        start=start,
        end=end,
        log_start=known.log_start if known is not None else start,
        log_end=log_end,
        records=records,
        bytes=size,
    )


def _topic_of(manifest: Manifest | None, key: Incarnation) -> TopicState | None:
    return manifest.incarnations().get(key) if manifest is not None else None


def _partition_of(topic: TopicState | None, number: int) -> PartitionState | None:
    if topic is None:
        return None
    for partition in topic.partitions:
        if partition.partition == number:
            return partition
    return None
