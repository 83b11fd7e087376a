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
    """Makes documents anew for `writing`, which has not committed yet. `manifests` has the readable ones by number,
    `losses` describes what can't be recovered, and `made` has the keys of replaced documents."""

    writing: WritingRun
    documents: Documents
    manifests: dict[int, Manifest]
    losses: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    _captures: dict[tuple[str, str, int], Capture] = field(default_factory=dict)

    def mend(self, state: State) -> State:
        """`state` with rows of restore points whose documents are all there. The manifests that they had stay known:
        who follows the archive has seen them."""
        extents: dict[Incarnation, list[_Extent]] = defaultdict(list)
        names = ("point", "partition", "first", "last", "count", "bytes")
        for topic, incarnation, *row in state.segments.rows("topic", "incarnation", *names):
            extents[topic, incarnation].append(_Extent(*row))
        for lost in state.lost:
            loss = lost.loss
            if loss.partition is not None and loss.end is not None:
                start = loss.start if loss.start is not None else loss.end
                extent = _Extent(lost.point, loss.partition, start, loss.end - 1, 0, 0)
                extents[lost.incarnation_key].append(extent)
        new: dict[int, PointRow] = {}
        for point in state.restore_points:
            manifest = self.manifests.get(point.number)
            notes: list[str] = []
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
                continue
            made = msgspec.structs.replace(
                manifest,
                run=self.writing.run,
                captures=tuple(captures),
                schemas=schemas,
                deletions=deletions,
                not_known=(*manifest.not_known, *notes),
            )
            ref = self.writing.put_document(point.number, layout.MANIFEST, made)
            self.manifests[point.number] = load(Manifest, self.writing.store.get(ref.key), ref.key)
            new[point.number] = point_row(self.manifests[point.number], ref.key)
        if not new:
            return state
        return replace(
            state,
            points=state.points.replace([new.get(p.number, p) for p in state.restore_points]),
            past=state.past.append(
                [ExpiredPoint(p.number, p.manifest) for p in state.restore_points if p.number in new]
            ),
        )

    def _whole(self, number: int, capture: Capture, notes: list[str]) -> Capture:
        """Return the capture with documents that are there, empty ones where they are lost."""
        key = (capture.groups.key, capture.metadata.key, capture.number)
        refs = (capture.groups, capture.metadata)
        lost = [ref.key for ref in refs if self.documents.get(ref.key, (None, None))[1] != ref]
        if not lost:
            return capture
        unknown = [
            f"{'group offsets' if each.endswith(layout.GROUPS) else 'configs and settings'} captured for restore point "
            f"{capture.number}: the document {_LOST}"
            for each in lost
        ]
        notes += unknown
        if key not in self._captures:
            at, why = capture.started_at, "the document was lost; kbackup repair made it anew"
            unread = NotCarried(part=None, what="cluster", reason="failed", why=why)
            nothing = Metadata(captured_at=at, cluster_id="", brokers=0, topics=(), not_carried=(unread,))
            groups, metadata = (
                ref if ref.key not in lost else self._put(number, f"{capture.number}-{name}", empty)
                for ref, name, empty in (
                    (capture.groups, layout.GROUPS, Groups(captured_at=at, groups=())),
                    (capture.metadata, layout.METADATA, nothing),
                )
            )
            self._captures[key] = Capture(number=capture.number, started_at=at, groups=groups, metadata=metadata)
            self.losses += [f"restore point {capture.number}: {text}" for text in unknown]
            self.made += lost
        return self._captures[key]

    def _schemas(self, number: int, ref: DocumentRef | None, notes: list[str]) -> DocumentRef | None:
        """Return the schemas of a restore point, None where they are lost."""
        if ref is None or self.documents.get(ref.key, (None, None))[1] == ref:
            return ref
        notes.append(f"schemas: the document {_LOST}")
        self.losses.append(f"restore point {number}: schemas: the document {_LOST}")
        return None

    def _deletions(self, number: int, ref: DocumentRef | None, notes: list[str]) -> DocumentRef | None:
        """Return the records that a restore leaves out, None where the document is lost."""
        if ref is None or self.documents.get(ref.key, (None, None))[1] == ref:
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
        before = self.manifests.get(max((n for n in self.manifests if n < number), default=0))
        after = self.manifests.get(min((n for n in self.manifests if n > number), default=0))
        own = self._own_capture(point)
        topics, unsure = self._lost_topics(state, point, extents, (before, after), own)
        captures = {capture.number: capture for beside in (after, before) if beside for capture in beside.captures}
        captures[number] = own
        needed = sorted({number, *(topic.captured for topic in topics)})
        found = [row.loss for row in state.lost if row.point == number]
        losses = [loss for loss in found if loss.kind != "damaged"]  # what was damaged since shows in the catalog
        totals = {name: getattr(point, name) for name in Totals.__struct_fields__}
        uncommitted = point.isolation_level == "read_uncommitted"
        return Manifest(
            archive_id=state.archive_id,
            number=number,
            run=self.writing.run,
            previous=max((n for n in state.numbers.tolist() if n < number), default=None),
            origin="repair",
            tool=TOOL,
            started_at=point.started_at,
            committed_at=point.committed_at,
            cluster_id=point.cluster_id,
            isolation_level="read_uncommitted" if uncommitted else "read_committed",
            losses=tuple(losses),
            totals=Totals(**totals),
            captures=tuple(captures[n] for n in needed),
            schemas=self._named(point, Schemas),
            deletions=self._named(point, Deletions),
            topics=tuple(topics),
            not_known=(partitions_not_known(unsure),) if unsure else (),
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
        in_others = {key for manifest in beside if manifest is not None for key in manifest.incarnations()}
        topics: list[TopicState] = []
        unsure: list[str] = []
        for key, life in sorted(state.lives.items()):
            if life.first is None or life.retired or not life.first <= point.number <= (life.last or point.number):
                continue
            known = topic_at(every, key[0], life.topic_id, point.number)
            count = known.partitions if known is not None else 0
            topics.append(_lost_topic(state, point, key, extents.get(key, ()), beside, captured, count))
            if known is None and key not in in_others:
                unsure.append(key[0])
        return topics, unsure

    def _named(self, point: PointRow, kind: type[Document]) -> DocumentRef | None:
        """Return the whole document of a kind that a restore point's row names; None if it has none."""
        found = (self._found(key, kind) for key in point.documents)
        return next(filter(None, found), None)

    def _found(self, key: str, kind: type[Document]) -> DocumentRef | None:
        document, ref = self.documents.get(key, (None, None))
        return ref if isinstance(document, kind) else None

    def _own_capture(self, point: PointRow) -> Capture:
        """Return the capture of a restore point whose manifest is lost, by the documents that its row names."""

        def newest(name: str, kind: type[Document]) -> DocumentRef:
            keys = [key for key in point.documents if key.endswith(name)]
            numbers = {key: parsed[0] for key in keys if (parsed := layout.parse_point_key(key)) is not None}
            key = max(keys, key=lambda key: numbers.get(key, 0), default=layout.point_key(point.number, "0", name))
            return self._found(key, kind) or DocumentRef(key=key, size=0, sha256="")

        groups, metadata = newest(layout.GROUPS, Groups), newest(layout.METADATA, Metadata)
        return Capture(number=point.number, started_at=point.started_at, groups=groups, metadata=metadata)


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
    before, after = (manifest.incarnations().get(key) if manifest is not None else None for manifest in beside)
    if after is not None and after.captured <= point.number:  # it was captured then, and not since
        is_own = after.captured == point.number
        return msgspec.structs.replace(after, state="present") if is_own else after
    own = [extent for extent in extents if extent.point <= point.number]
    template = before if before is not None or count else after
    numbers = {p.partition for p in template.partitions} if template is not None else set[int]()
    with_records = [extent.partition + 1 for extent in own]
    least = 0 if numbers else 1  # a topic has at least one partition
    numbers |= set(range(max([least, count, *with_records])))
    number = point.number
    if before is not None and captured is not None and key[0] not in captured:
        number = before.captured  # its run did not look at the topic
    partitions: list[PartitionState] = []
    for partition in sorted(numbers):
        added = [extent for extent in own if extent.partition == partition]
        partitions.append(_lost_partition(state, (*key, partition), added, before, after))
    return TopicState(
        name=key[0],
        id=state.lives[key].topic_id,
        incarnation=key[1],
        captured=number,
        state=before.state if before is not None and number == before.captured else "present",
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
    old, new = _partition_of(before, key[2]), _partition_of(after, key[2])
    log_start = state.starts.get(key)
    known = old or new
    start = known.start if known is not None else min((extent.first for extent in extents), default=0)
    end = max([start, *(extent.last + 1 for extent in extents)])
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


def _partition_of(topic: TopicState | None, number: int) -> PartitionState | None:
    if topic is None:
        return None
    return next((partition for partition in topic.partitions if partition.partition == number), None)
